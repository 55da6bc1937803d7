//! Checks every kernel on every backend of this machine against plain references in f64
//! (`hearth_shaders::check`), on fresh random inputs, with outputs and pools filled with NaN first.
//!
//! `HEARTH_KERNEL_CASES` is the number of random cases of each kernel on each backend.
//! `HEARTH_EXPECT_TILES` (`vulkan:f16,cuda:bf16`) lists the backends and types that must have
//! cooperative matrices. With `HEARTH_REQUIRE_CUDA` or `HEARTH_REQUIRE_VULKAN`, a missing device is
//! a failure.

mod order;
mod pools;
mod products;
mod tiles;

use std::hash::{BuildHasher, RandomState};

use burn::tensor::{DType, Tensor, TensorData, TensorPrimitive};
use hearth_shaders::check::{self, CASES_PER_SHAPE, Case, Kernel, PoolKind, Precision, Random};
use hearth_shaders::device::{self, ShaderLanguage};
use hearth_shaders::{Activation, BlockFormat, HeadLayout, Kernels, Summation};

const DEFAULT_CASES: usize = 3;

/// Runs a generic check on every backend that this machine has.
macro_rules! on_every_backend {
    ($name:ident) => {
        mod $name {
            use super::*;
            #[test]
            fn on_the_cpu() {
                super::super::checks::$name::<burn_flex::Flex>(&Default::default(), "cpu");
            }
            #[test]
            fn on_vulkan_spirv() {
                if let Some(device) = wgpu_device(ShaderLanguage::SpirV) {
                    super::super::checks::$name::<burn_wgpu::Wgpu>(&device, "vulkan");
                }
            }
            #[test]
            fn on_wgsl() {
                if let Some(device) = wgpu_device(ShaderLanguage::Wgsl) {
                    super::super::checks::$name::<burn_wgpu::Wgpu>(&device, "wgsl");
                }
            }
            #[test]
            fn on_cuda() {
                if cuda_is_here() {
                    super::super::checks::$name::<burn_cuda::Cuda>(&Default::default(), "cuda");
                }
            }
        }
    };
}

mod backends {
    use super::*;
    on_every_backend!(linear_takes_any_batch_and_width);
    on_every_backend!(attention_takes_any_heads_and_contexts);
    on_every_backend!(half_precision_is_off_by_rounding_alone);
    on_every_backend!(chunks_of_many_tokens_are_right_in_half_precision);
    on_every_backend!(poison_reaches_the_next_allocation);
    on_every_backend!(random_cases_of_linear);
    on_every_backend!(packed_linear_takes_any_batch_and_width);
    on_every_backend!(gated_rows_equal_two_separate_kernels);
    on_every_backend!(random_cases_of_packed_linear);
    on_every_backend!(random_cases_of_embed);
    on_every_backend!(random_cases_of_packed_embed);
    on_every_backend!(random_cases_of_low_rank);
    on_every_backend!(random_cases_of_choose_experts);
    on_every_backend!(random_cases_of_mix_experts);
    on_every_backend!(random_cases_of_mix_packed_experts);
    on_every_backend!(random_cases_of_rms_norm);
    on_every_backend!(random_cases_of_add_rms_norm);
    on_every_backend!(random_cases_of_norm_projections);
    on_every_backend!(random_cases_of_gate);
    on_every_backend!(random_cases_of_scale_and_cap);
    on_every_backend!(random_cases_of_rope_and_store);
    on_every_backend!(random_cases_of_store_in_8_bits);
    on_every_backend!(random_cases_of_attention);
    on_every_backend!(random_cases_of_attention_over_8_bits);
    on_every_backend!(heads_in_8_bits_are_stored_to_the_bit);
    on_every_backend!(slots_are_copied_to_the_bit);
    on_every_backend!(random_cases_of_sample);
    on_every_backend!(in_a_fixed_order_bits_do_not_depend_on_the_batch);
    on_every_backend!(half_precision_has_a_fixed_order_too);
    on_every_backend!(a_row_that_depends_on_its_batch_is_noticed);
    on_every_backend!(every_matmul_kernel_is_right_or_refuses);
    on_every_backend!(split_sums_of_long_rows_are_added_up);
}

/// One device per language, shared by all tests: Burn keeps every device registered.
fn wgpu_device(language: ShaderLanguage) -> Option<burn_wgpu::WgpuDevice> {
    use std::sync::OnceLock;
    static SPIRV: OnceLock<Option<burn_wgpu::WgpuDevice>> = OnceLock::new();
    static WGSL: OnceLock<Option<burn_wgpu::WgpuDevice>> = OnceLock::new();
    let cell = match language {
        ShaderLanguage::SpirV => &SPIRV,
        ShaderLanguage::Wgsl => &WGSL,
    };
    cell.get_or_init(|| {
        let (instance, adapters) = device::adapters();
        let vulkan = |adapter: &wgpu::Adapter| adapter.get_info().backend == wgpu::Backend::Vulkan;
        let Some(adapter) = adapters.into_iter().find(vulkan) else {
            assert!(
                std::env::var_os("HEARTH_REQUIRE_VULKAN").is_none(),
                "HEARTH_REQUIRE_VULKAN is set, but there is no Vulkan adapter"
            );
            eprintln!("skipped: no Vulkan adapter on this machine");
            return None;
        };
        Some(device::open(instance, adapter, language).expect("the adapter opens"))
    })
    .clone()
}

fn cuda_is_here() -> bool {
    // SAFETY: loading libcuda runs its initialisers, which have no preconditions.
    let here = unsafe { libloading::Library::new("libcuda.so.1") }.is_ok();
    assert!(
        here || std::env::var_os("HEARTH_REQUIRE_CUDA").is_none(),
        "HEARTH_REQUIRE_CUDA is set, but there is no CUDA driver"
    );
    if !here {
        eprintln!("skipped: no CUDA driver on this machine");
    }
    here
}

fn fresh_random() -> (Random, u64) {
    let seed = RandomState::new().hash_one(0);
    (Random::seeded(seed), seed)
}

/// Panics if a result is off by more than rounding explains.
fn assert_right<B: Kernels>(
    device: &B::Device,
    backend: &str,
    case: &Case,
    precision: Precision,
    random: &mut Random,
) {
    let tolerance = precision.tolerance();
    if let Err(mismatch) = check::check::<B>(case, precision, tolerance, random, device) {
        panic!("{backend}: {mismatch}");
    }
}

fn single() -> Precision {
    Precision::uniform(DType::F32)
}

fn cases() -> usize {
    match std::env::var("HEARTH_KERNEL_CASES") {
        Ok(given) => given.parse().expect("HEARTH_KERNEL_CASES is a number"),
        Err(_) => DEFAULT_CASES,
    }
}

/// The 16-bit types that a backend supports.
fn half_precisions(backend: &str) -> &'static [DType] {
    match backend {
        "cpu" | "cuda" => &[DType::BF16, DType::F16],
        // lavapipe has no bf16.
        _ => &[DType::F16],
    }
}

fn precision(backend: &str, dtype: DType) -> Precision {
    match backend {
        "cpu" => Precision::on_cpu(dtype),
        _ => Precision::uniform(dtype),
    }
}

/// The kernels that a backend supports.
fn supported_kernels<B: Kernels>() -> impl Iterator<Item = Kernel> {
    Kernel::ALL
        .into_iter()
        .filter(|kernel| kernel.is_supported::<B>())
}

fn random_cases<B: Kernels>(device: &B::Device, backend: &str, kernel: Kernel) {
    if !kernel.is_supported::<B>() {
        return;
    }
    let cases = cases();
    let (mut random, seed) = fresh_random();
    eprintln!("seed {seed}");
    let mut shape = random.clone();
    for case in 0..cases {
        // Use few shapes even where there are few cases.
        if case.is_multiple_of(CASES_PER_SHAPE.min(cases.div_ceil(3))) {
            shape = Random::seeded(random.bits());
        }
        let case = Case::random(kernel, shape.clone(), &mut random);
        assert_right::<B>(device, backend, &case, single(), &mut random);
    }
}

/// Runs this program's CPU tests again with fewer instruction sets allowed, to test the code that
/// other CPUs use.
#[test]
fn every_level_of_the_cpu_passes() {
    const VARIABLE: &str = "HEARTH_CPU_LEVEL";
    if std::env::var_os(VARIABLE).is_some() {
        return;
    }
    let program = std::env::current_exe().expect("this program");
    for level in [
        "portable",
        "avx2",
        "avxvnni",
        "avx512",
        "avx512vnni",
        "avx512bf16",
    ] {
        let run = std::process::Command::new(&program)
            .arg("on_the_cpu")
            .env(VARIABLE, level)
            .output()
            .expect("this program starts");
        let output = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success(), "{level}: {output}");
        assert!(!output.contains("running 0 tests"), "{level}: {output}");
    }
}

mod checks {
    use super::*;
    pub use order::{
        a_row_that_depends_on_its_batch_is_noticed, half_precision_has_a_fixed_order_too,
        in_a_fixed_order_bits_do_not_depend_on_the_batch,
    };
    pub use pools::{heads_in_8_bits_are_stored_to_the_bit, slots_are_copied_to_the_bit};
    pub use products::{
        every_matmul_kernel_is_right_or_refuses, split_sums_of_long_rows_are_added_up,
    };
    pub use tiles::chunks_of_many_tokens_are_right_in_half_precision;

    pub fn linear_takes_any_batch_and_width<B: Kernels>(device: &B::Device, backend: &str) {
        let (mut random, _) = fresh_random();
        // Full and partial tiles, odd sizes, a single output, and more rows than one dimension of a
        // grid can hold.
        for [tokens, input, output] in [
            [1, 64, 96],
            [8, 64, 96],
            [9, 64, 96],
            [130, 64, 96],
            [1, 7, 3],
            [3, 37, 1],
            [12, 37, 5],
            [1, 8, 300_000],
        ] {
            for summation in [Summation::Fastest, Summation::Fixed] {
                let case = Case::Linear {
                    tokens,
                    input,
                    output,
                    bias: true,
                    gated: (output % 2 == 1).then_some(Activation::Silu),
                    summation,
                };
                assert_right::<B>(device, backend, &case, single(), &mut random);
            }
        }
    }

    pub fn gated_rows_equal_two_separate_kernels<B: Kernels>(device: &B::Device, backend: &str) {
        let (mut random, seed) = fresh_random();
        // On the CPU, activations are always f32 and no kernel combines the two.
        let narrow = Some(half_precisions(backend)).filter(|_| backend != "cpu");
        for dtype in [&[DType::F32], narrow.unwrap_or_default()].concat() {
            for tokens in [1, 3, 8, 20] {
                let (input, inner) = (random.within(1, 300), random.within(1, 100));
                let mut make = |shape: Vec<usize>| {
                    let values = random.normal(shape.iter().product());
                    let data = TensorData::new(values, shape).convert_dtype(dtype);
                    B::float_from_data(data, device)
                };
                let (x, weight) = (make(vec![tokens, input]), make(vec![2 * inner, input]));
                let bias = (tokens != 3).then(|| make(vec![2 * inner]));
                for (summation, activation) in [
                    (Summation::Fastest, Activation::Silu),
                    (Summation::Fixed, Activation::GeluTanh),
                ] {
                    let both = B::project(x.clone(), weight.clone(), bias.clone(), summation);
                    let (x, weight, bias) = (x.clone(), weight.clone(), bias.clone());
                    let gated = B::project_gated(x, weight, bias, activation, summation);
                    let [one, two] = [gated, B::gate(both, activation)].map(|gated| {
                        Tensor::<B, 2>::from_primitive(TensorPrimitive::Float(gated)).into_data()
                    });
                    assert_eq!(
                        one, two,
                        "{backend}, seed {seed}: {tokens}, {input}, {inner}"
                    );
                }
            }
        }
    }

    pub fn packed_linear_takes_any_batch_and_width<B: Kernels>(device: &B::Device, backend: &str) {
        if !Kernel::PackedLinear.is_supported::<B>() {
            return;
        }
        let (mut random, _) = fresh_random();
        let (q8, q4) = (BlockFormat::Q8_0, BlockFormat::Q4_0);
        let (fastest, fixed) = (Summation::Fastest, Summation::Fixed);
        // Rows with an incomplete block, a single element, several iterations per lane, an odd last
        // row, groups with missing tokens, a dequantised copy, and more rows than one dimension of
        // a grid can hold.
        for (format, summation, [tokens, input, output]) in [
            (q4, fastest, [1, 2080, 97]),
            (q8, fastest, [2, 1100, 33]),
            (q4, fixed, [3, 72, 5]),
            (q8, fastest, [8, 64, 96]),
            (q4, fastest, [12, 37, 5]),
            (q4, fastest, [33, 1100, 33]),
            (q8, fixed, [33, 1, 1]),
            (BlockFormat::Q4_K, fastest, [1, 2048, 97]),
            (BlockFormat::Q6_K, fastest, [2, 768, 33]),
            (BlockFormat::Q3_K, fixed, [9, 256, 5]),
            (BlockFormat::Q2_K, fastest, [33, 512, 33]),
            (BlockFormat::Q5_1, fastest, [1, 40, 3]),
            (q4, fastest, [1, 8, 600_001]),
        ] {
            let case = Case::PackedLinear {
                format,
                tokens,
                input,
                output,
                bias: true,
                gated: (output % 2 == 1).then_some(Activation::GeluTanh),
                summation,
            };
            assert_right::<B>(device, backend, &case, single(), &mut random);
        }
    }

    pub fn attention_takes_any_heads_and_contexts<B: Kernels>(device: &B::Device, backend: &str) {
        let (mut random, _) = fresh_random();
        // A prefill chunk from the middle of a sequence beside a decode row and a first token;
        // decode rows alone, with contexts that are and are not long enough to be split; groups of
        // heads that are computed whole and in parts.
        let mixed = vec![(301, 1), (90, 23), (1, 1)];
        let short = vec![(5, 1), (130, 1), (1, 1)];
        let long = vec![(900, 1), (3, 1)];
        for (head_dim, heads, kv_heads) in [(64, 6, 2), (40, 3, 3), (256, 7, 1)] {
            for sequences in [&mixed, &short, &long] {
                for window in [None, Some(5), Some(100)] {
                    let case = Case::Attention {
                        sequences: sequences.clone(),
                        layout: HeadLayout {
                            heads,
                            kv_heads,
                            head_dim,
                        },
                        window,
                        capped: window == Some(100),
                        sinks: window == Some(5),
                        summation: Summation::Fastest,
                        pool: PoolKind::Floats,
                    };
                    for case in [case.clone(), case.summed(Summation::Fixed)] {
                        assert_right::<B>(device, backend, &case, single(), &mut random);
                    }
                }
            }
        }
    }

    pub fn half_precision_is_off_by_rounding_alone<B: Kernels>(device: &B::Device, backend: &str) {
        for dtype in half_precisions(backend) {
            let precision = precision(backend, *dtype);
            for kernel in supported_kernels::<B>() {
                let (mut random, _) = fresh_random();
                for _ in 0..2 {
                    let case = Case::random(kernel, random.clone(), &mut random);
                    assert_right::<B>(device, backend, &case, precision, &mut random);
                }
            }
        }
    }

    pub fn poison_reaches_the_next_allocation<B: Kernels>(device: &B::Device, backend: &str) {
        // The CPU's allocator returns zeroed memory, so poison cannot be seen.
        if backend != "cpu" {
            let seen = (0..20).filter(|_| check::poison_is_seen::<B>(5_000, device));
            assert!(seen.count() > 0, "{backend}: outputs are never poisoned");
        }
    }

    macro_rules! random_cases_of {
        ($($name:ident: $kernel:ident),*) => {
            $(pub fn $name<B: Kernels>(device: &B::Device, backend: &str) {
                random_cases::<B>(device, backend, Kernel::$kernel);
            })*
        };
    }
    random_cases_of!(
        random_cases_of_linear: Linear,
        random_cases_of_packed_linear: PackedLinear,
        random_cases_of_embed: Embed,
        random_cases_of_packed_embed: PackedEmbed,
        random_cases_of_low_rank: LowRank,
        random_cases_of_choose_experts: ChooseExperts,
        random_cases_of_mix_experts: MixExperts,
        random_cases_of_mix_packed_experts: MixPackedExperts,
        random_cases_of_rms_norm: RmsNorm,
        random_cases_of_add_rms_norm: AddRmsNorm,
        random_cases_of_norm_projections: NormProjections,
        random_cases_of_gate: Gate,
        random_cases_of_scale_and_cap: ScaleAndCap,
        random_cases_of_rope_and_store: RopeAndStore,
        random_cases_of_store_in_8_bits: RopeAndRound,
        random_cases_of_attention: Attention,
        random_cases_of_attention_over_8_bits: RoundedAttention,
        random_cases_of_sample: Sample
    );
}
