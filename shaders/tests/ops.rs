//! Every operation on every backend at hand against plain references in f64, on
//! fresh random inputs, with outputs and pools poisoned first.

mod reference;

use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{DType, Int, Tensor, TensorData, TensorPrimitive};
use hearth_shaders::device::{self, ShaderLanguage};
use hearth_shaders::{HeadLayout, Kernels, QkNorm, RaggedIndex, RopeTable};
use reference::Random;

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
    on_every_backend!(linear_is_the_matrix_product);
    on_every_backend!(linear_takes_any_batch_and_width);
    on_every_backend!(embed_picks_rows);
    on_every_backend!(norms_are_root_mean_square);
    on_every_backend!(silu_mul_gates);
    on_every_backend!(rope_rotates_and_stores_at_slots);
    on_every_backend!(attention_reads_scattered_slots);
}

/// One device per language: a second one on the same adapter would be a leak.
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
    // SAFETY: libcuda's initialisers have no precondition.
    let here = unsafe { libloading::Library::new("libcuda.so.1") }.is_ok();
    if !here {
        eprintln!("skipped: no CUDA driver on this machine");
    }
    here
}

fn float<B: Kernels>(values: &[f32], shape: &[usize], device: &B::Device) -> FloatTensor<B> {
    float_as::<B>(values, shape, DType::F32, device)
}

fn float_as<B: Kernels>(
    values: &[f32],
    shape: &[usize],
    dtype: DType,
    device: &B::Device,
) -> FloatTensor<B> {
    let data = TensorData::new(values.to_vec(), shape.to_vec()).convert_dtype(dtype);
    B::float_from_data(data, device)
}

fn int<B: Kernels>(values: &[i32], device: &B::Device) -> IntTensor<B> {
    let data = TensorData::new(values.to_vec(), [values.len()]);
    Tensor::<B, 1, Int>::from_data(data, (device, DType::I32)).into_primitive()
}

fn values<B: Kernels, const D: usize>(tensor: FloatTensor<B>) -> Vec<f32> {
    let tensor = Tensor::<B, D>::from_primitive(TensorPrimitive::Float(tensor));
    tensor
        .into_data()
        .convert::<f32>()
        .into_vec()
        .expect("converted to f32")
}

fn assert_close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    let scale = (want.iter().map(|x| x * x).sum::<f64>() / want.len() as f64).sqrt();
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(
            error <= tolerance * scale.max(want.abs()),
            "{what}: [{i}] is {got}, not {want}"
        );
    }
}

/// What other CPUs do: this program's tests of the CPU once more, with fewer instructions allowed.
#[test]
fn every_level_of_the_cpu_passes() {
    const VARIABLE: &str = "HEARTH_CPU_LEVEL";
    if std::env::var_os(VARIABLE).is_some() {
        return;
    }
    let program = std::env::current_exe().expect("this program");
    for level in ["portable", "avx2", "avxvnni", "avx512", "avx512vnni"] {
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

    pub fn linear_is_the_matrix_product<B: Kernels>(device: &B::Device, backend: &str) {
        for tokens in [1, 2, 5, 8, 9, 33, 130] {
            for bias in [false, true] {
                linear::<B>(device, backend, [tokens, 64, 96], bias, DType::F32, 1e-5);
            }
        }
    }

    pub fn linear_takes_any_batch_and_width<B: Kernels>(device: &B::Device, backend: &str) {
        // Odd sizes, one output, and more rows than one grid dimension would take.
        for shape in [
            [1, 7, 3],
            [3, 37, 1],
            [12, 37, 5],
            [1, 8, 300_000],
            [17, 30, 50],
        ] {
            linear::<B>(device, backend, shape, true, DType::F32, 1e-5);
        }
        if backend == "cpu" || backend == "cuda" {
            linear::<B>(device, backend, [3, 64, 40], true, DType::BF16, 2e-2);
            linear::<B>(device, backend, [20, 64, 40], false, DType::BF16, 2e-2);
            // Widths that matrix tiles take, and a last tile of rows that is not whole.
            linear::<B>(device, backend, [20, 70, 96], true, DType::BF16, 2e-2);
            linear::<B>(device, backend, [1, 128, 64], false, DType::BF16, 2e-2);
            linear::<B>(device, backend, [3, 70, 40], true, DType::F16, 4e-3);
            linear::<B>(device, backend, [20, 70, 40], false, DType::F16, 4e-3);
        }
    }

    fn linear<B: Kernels>(
        device: &B::Device,
        backend: &str,
        [tokens, input, output]: [usize; 3],
        with_bias: bool,
        dtype: DType,
        tolerance: f64,
    ) {
        let mut random = Random::new();
        let x = random.normal(tokens * input);
        let weight = random.normal(output * input);
        let bias = random.normal(output);
        // The CPU keeps activations in f32 whatever the weights are.
        let x_dtype = if backend == "cpu" { DType::F32 } else { dtype };
        let y = B::project(
            float_as::<B>(&x, &[tokens, input], x_dtype, device),
            float_as::<B>(&weight, &[output, input], dtype, device),
            with_bias.then(|| float_as::<B>(&bias, &[output], dtype, device)),
        );
        let bias = with_bias.then_some(bias.as_slice());
        let want = reference::linear(&x, &weight, bias, input);
        let what = format!("{backend} linear [{tokens}, {input}] x [{output}, {input}] {dtype:?}");
        assert_close(&what, &values::<B, 2>(y), &want, tolerance);
    }

    pub fn embed_picks_rows<B: Kernels>(device: &B::Device, backend: &str) {
        let mut random = Random::new();
        let (vocab, hidden) = (50, 24);
        let table = random.normal(vocab * hidden);
        let ids: Vec<i32> = (0..19).map(|_| random.below(vocab) as i32).collect();
        let out = B::embed(
            float::<B>(&table, &[vocab, hidden], device),
            int::<B>(&ids, device),
        );
        let want: Vec<f64> = ids
            .iter()
            .flat_map(|id| &table[*id as usize * hidden..][..hidden])
            .map(|x| f64::from(*x))
            .collect();
        assert_close(
            &format!("{backend} embed"),
            &values::<B, 2>(out),
            &want,
            0.0,
        );
    }

    pub fn norms_are_root_mean_square<B: Kernels>(device: &B::Device, backend: &str) {
        for (tokens, hidden) in [(1, 16), (5, 576), (40, 1000)] {
            let mut random = Random::new();
            let (x, delta) = (
                random.normal(tokens * hidden),
                random.normal(tokens * hidden),
            );
            let weight = random.normal(hidden);
            let shape = [tokens, hidden];
            let tensor = |values: &[f32]| float::<B>(values, &shape, device);
            let w = float::<B>(&weight, &[hidden], device);
            let normed = B::rms_norm(tensor(&x), w.clone(), 1e-3);
            let want = reference::rms_norm(&x, &weight, 1e-3);
            assert_close(
                &format!("{backend} rms_norm"),
                &values::<B, 2>(normed),
                &want,
                1e-5,
            );

            let (sum, normed) = B::add_rms_norm(tensor(&x), tensor(&delta), w, 1e-3);
            let sums: Vec<f32> = x.iter().zip(&delta).map(|(x, delta)| x + delta).collect();
            let want: Vec<f64> = sums.iter().map(|x| f64::from(*x)).collect();
            assert_close(
                &format!("{backend} residual sum"),
                &values::<B, 2>(sum),
                &want,
                1e-6,
            );
            let want = reference::rms_norm(&sums, &weight, 1e-3);
            assert_close(
                &format!("{backend} add_rms_norm"),
                &values::<B, 2>(normed),
                &want,
                1e-5,
            );
        }
    }

    pub fn silu_mul_gates<B: Kernels>(device: &B::Device, backend: &str) {
        for (tokens, inner) in [(1, 48), (7, 300), (64, 1536)] {
            let gate_up = Random::new().normal(tokens * 2 * inner);
            let out = B::silu_mul(float::<B>(&gate_up, &[tokens, 2 * inner], device));
            let want = reference::silu_mul(&gate_up, inner);
            assert_close(
                &format!("{backend} silu_mul"),
                &values::<B, 2>(out),
                &want,
                1e-5,
            );
        }
    }

    pub fn rope_rotates_and_stores_at_slots<B: Kernels>(device: &B::Device, backend: &str) {
        // (head_dim, rotary_dim, q/k norm): partial rotation and head sizes that are no power of two too.
        for (head_dim, rotary_dim, norm) in [(64, 64, false), (48, 48, true), (64, 32, true)] {
            let layout = HeadLayout {
                heads: 6,
                kv_heads: 2,
                head_dim,
            };
            rope::<B>(device, backend, layout, rotary_dim, norm);
        }
    }

    fn rope<B: Kernels>(
        device: &B::Device,
        backend: &str,
        layout: HeadLayout,
        rotary_dim: usize,
        norm: bool,
    ) {
        let mut random = Random::new();
        let (tokens, slots, half) = (9, 40, rotary_dim / 2);
        let kv_width = layout.kv_heads * layout.head_dim;
        let qkv = random.normal(tokens * layout.qkv_width());
        let (cos, sin) = (random.normal(100 * half), random.normal(100 * half));
        let positions: Vec<i32> = (0..tokens).map(|_| random.below(100) as i32).collect();
        let write_slots: Vec<i32> = random.distinct(tokens, slots);
        let (q_norm, k_norm) = (
            random.normal(layout.head_dim),
            random.normal(layout.head_dim),
        );

        let poison = vec![f32::NAN; slots * kv_width];
        let pool = || float::<B>(&poison, &[slots, layout.kv_heads, layout.head_dim], device);
        let (mut k_pool, mut v_pool) = (pool(), pool());
        let rope = RopeTable::<B> {
            cos: float::<B>(&cos, &[100, half], device),
            sin: float::<B>(&sin, &[100, half], device),
            rotary_dim,
        };
        let qk_norm = norm.then(|| QkNorm::<B> {
            q: float::<B>(&q_norm, &[layout.head_dim], device),
            k: float::<B>(&k_norm, &[layout.head_dim], device),
            eps: 1e-3,
        });
        let index = RaggedIndex::<B> {
            positions: int::<B>(&positions, device),
            write_slots: int::<B>(&write_slots, device),
            table_start: int::<B>(&[0], device),
            slot_table: int::<B>(&[0], device),
        };
        let q = B::rope_and_store(
            float::<B>(&qkv, &[tokens, layout.qkv_width()], device),
            layout,
            qk_norm.as_ref(),
            &rope,
            &index,
            &mut k_pool,
            &mut v_pool,
        );
        let norms = norm.then_some((q_norm.as_slice(), k_norm.as_slice(), 1e-3));
        let want = reference::rope(&qkv, layout, norms, &cos, &sin, half, &positions);
        let what = format!("{backend} rope {layout:?} rotary {rotary_dim} norm {norm}");
        assert_close(&format!("{what} q"), &values::<B, 2>(q), &want.q, 1e-5);
        for (pool, want) in [(k_pool, &want.k), (v_pool, &want.v)] {
            let pool = values::<B, 3>(pool);
            for (token, slot) in write_slots.iter().enumerate() {
                let got = &pool[*slot as usize * kv_width..][..kv_width];
                let want = &want[token * kv_width..][..kv_width];
                assert_close(&format!("{what} pool"), got, want, 1e-5);
            }
            let untouched = (0..slots as i32).filter(|slot| !write_slots.contains(slot));
            for slot in untouched {
                let row = &pool[slot as usize * kv_width..][..kv_width];
                assert!(
                    row.iter().all(|x| x.is_nan()),
                    "{what}: slot {slot} was written"
                );
            }
        }
    }

    pub fn attention_reads_scattered_slots<B: Kernels>(device: &B::Device, backend: &str) {
        for (head_dim, heads, kv_heads) in [(64, 6, 2), (32, 4, 4), (128, 4, 1), (40, 3, 3)] {
            let layout = HeadLayout {
                heads,
                kv_heads,
                head_dim,
            };
            for window in [None, Some(5), Some(100)] {
                attention::<B>(device, backend, layout, window);
            }
        }
    }

    fn attention<B: Kernels>(
        device: &B::Device,
        backend: &str,
        layout: HeadLayout,
        window: Option<u32>,
    ) {
        let mut random = Random::new();
        let (slots, kv_width) = (600, layout.kv_heads * layout.head_dim);
        // Three sequences in one ragged batch: a long decode row, a prefill chunk
        // in mid-sequence, and a first token.
        let sequences = [(301usize, 1usize), (90, 23), (1, 1)];
        let mut free = random.distinct(slots, slots);
        let (mut positions, mut start, mut table) = (vec![], vec![], vec![]);
        for (context, new) in sequences {
            for position in context - new..context {
                positions.push(position as i32);
                start.push(table.len() as i32);
            }
            table.extend(free.drain(..context));
        }
        let q = random.normal(positions.len() * layout.heads * layout.head_dim);
        let (mut k, mut v) = (
            random.normal(slots * kv_width),
            random.normal(slots * kv_width),
        );
        // What no sequence owns must not be read.
        for slot in free {
            k[slot as usize * kv_width..][..kv_width].fill(f32::NAN);
            v[slot as usize * kv_width..][..kv_width].fill(f32::NAN);
        }
        let pool_shape = [slots, layout.kv_heads, layout.head_dim];
        let index = RaggedIndex::<B> {
            positions: int::<B>(&positions, device),
            write_slots: int::<B>(&[0], device),
            table_start: int::<B>(&start, device),
            slot_table: int::<B>(&table, device),
        };
        let out = B::paged_attention(
            float::<B>(
                &q,
                &[positions.len(), layout.heads * layout.head_dim],
                device,
            ),
            layout,
            &index,
            window,
            &float::<B>(&k, &pool_shape, device),
            &float::<B>(&v, &pool_shape, device),
        );
        let want = reference::attention(&q, &k, &v, layout, &positions, &start, &table, window);
        let what = format!("{backend} attention {layout:?} window {window:?}");
        assert_close(&what, &values::<B, 2>(out), &want, 2e-5);
    }
}
