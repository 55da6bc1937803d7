//! Checks the kernels for matrix multiplications of many tokens against the default kernel.

use burn::tensor::DType;
use hearth_shaders::check::Random;
use hearth_shaders::tune::{Outcome, compare};
use hearth_shaders::{Kernels, ProductKernel};

use super::{cases, fresh_random, half_precisions};

/// Few and many tokens, and widths, both divisible by tiles and not.
fn sizes(random: &mut Random, case: usize) -> [usize; 3] {
    let tokens = match case % 4 {
        0 => [9, 33, 64, 100, 128, 256, 513][random.below(7)],
        _ => random.within(9, 300),
    };
    let width = |random: &mut Random| match case % 3 {
        0 => 64 * random.within(1, 6),
        1 => 16 * random.within(1, 20),
        _ => random.within(1, 300),
    };
    [tokens, width(random), width(random)]
}

pub fn every_matmul_kernel_is_right_or_refuses<B: Kernels>(device: &B::Device, backend: &str) {
    // The same kernels are tested in SPIR-V; both take minutes where a CPU stands in for the GPU.
    if backend == "wgsl" && std::env::var_os("HEARTH_ALL_GPU_TESTS").is_none() {
        return;
    }
    let dtypes = [&[DType::F32], half_precisions(backend)].concat();
    let (mut random, seed) = fresh_random();
    let (mut ran, mut wrong) = (0, Vec::new());
    let others = ProductKernel::ALL.into_iter();
    let others = others.filter(|kernel| *kernel != ProductKernel::Usual);
    // The stand-in for CUDA cannot run PTX (see `tests/cuda/README.md`).
    let without_ptx = std::env::var_os("STANDIN_KERNELS").is_some();
    for kernel in others.filter(|kernel| !(without_ptx && kernel.name().ends_with("mma"))) {
        for &dtype in &dtypes {
            let (mut right, mut refused, mut worst) = (0, 0, 0.0f64);
            for case in 0..cases() {
                let sizes = sizes(&mut random, case);
                match compare::<B>(kernel, sizes, dtype, device) {
                    Ok(error) => (right, worst) = (right + 1, worst.max(error)),
                    Err(Outcome::Refused) => refused += 1,
                    Err(other) => wrong.push(format!("{kernel} {sizes:?} {dtype:?}: {other:?}")),
                }
            }
            eprintln!(
                "{backend}: {kernel} {dtype:?}: {right} right (off by {worst:.1e}), {refused} refused"
            );
            ran += right;
        }
    }
    assert!(wrong.is_empty(), "{backend}, seed {seed}: {wrong:#?}");
    // Every GPU supports at least the kernel without matrix units; the CPU supports none of them.
    assert_eq!(ran == 0, backend == "cpu", "{ran} ran");
}

/// Tests long rows, which are split among cubes where there are few tiles.
pub fn split_sums_of_long_rows_are_added_up<B: Kernels>(device: &B::Device, backend: &str) {
    let (mut random, seed) = fresh_random();
    for &dtype in half_precisions(backend) {
        let (mut right, mut worst) = (0, 0.0f64);
        for _ in 0..cases() {
            let input = 64 * random.within(8, 60);
            let sizes = [random.within(9, 150), input, random.within(1, 200)];
            match compare::<B>(ProductKernel::SplitColumns, sizes, dtype, device) {
                Ok(error) => (right, worst) = (right + 1, worst.max(error)),
                Err(Outcome::Refused) => {}
                Err(other) => panic!("{backend}, seed {seed}: {sizes:?} {dtype:?}: {other:?}"),
            }
        }
        eprintln!("{backend}: {dtype:?}: {right} right (off by {worst:.1e})");
        assert!(right > 0 || backend != "cuda", "none ran");
    }
}
