//! Checks that rows have the same bits in any batch in a fixed order of summation.

use burn::tensor::DType;
use hearth_shaders::check::{
    CASES_PER_SHAPE, Case, Kernel, PoolKind, Precision, Random, same_bits,
};
use hearth_shaders::{HeadLayout, Kernels, Summation};

use super::{cases, fresh_random, half_precisions, precision, single, supported_kernels};

/// A random case with several rows, so that rows have neighbours.
fn batch(kernel: Kernel, shape: &Random, random: &mut Random) -> Case {
    let mut case = Case::random(kernel, shape.clone(), random).summed(Summation::Fixed);
    if let Case::Linear { tokens, .. } | Case::PackedLinear { tokens, .. } = &mut case {
        *tokens = random.within(2, 40);
    }
    case
}

fn assert_same_bits<B: Kernels>(
    device: &B::Device,
    backend: &str,
    case: &Case,
    precision: Precision,
    random: &mut Random,
) {
    if let Err(differs) = same_bits::<B>(case, precision, random, device) {
        panic!("{backend}: {differs}");
    }
}

fn random_cases<B: Kernels>(
    device: &B::Device,
    backend: &str,
    kernel: Kernel,
    precision: Precision,
    cases: usize,
) {
    let (mut random, seed) = fresh_random();
    eprintln!("{kernel:?}: seed {seed}");
    let mut shape = random.clone();
    for case in 0..cases {
        if case.is_multiple_of(CASES_PER_SHAPE.min(cases.div_ceil(3))) {
            shape = Random::seeded(random.bits());
        }
        let case = batch(kernel, &shape, &mut random);
        assert_same_bits::<B>(device, backend, &case, precision, &mut random);
    }
}

/// Contexts of one split and of several splits, full and partial, with chunks beside decode rows.
fn attention(head_dim: usize, heads: usize, kv_heads: usize, window: Option<u32>) -> Case {
    Case::Attention {
        sequences: vec![(700, 9), (256, 1), (257, 2), (40, 30), (1, 1)],
        layout: HeadLayout {
            heads,
            kv_heads,
            head_dim,
        },
        window,
        capped: window == Some(300),
        sinks: window == Some(300),
        summation: Summation::Fixed,
        pool: PoolKind::Floats,
    }
}

pub fn in_a_fixed_order_bits_do_not_depend_on_the_batch<B: Kernels>(
    device: &B::Device,
    backend: &str,
) {
    let (mut random, _) = fresh_random();
    for kernel in supported_kernels::<B>() {
        random_cases::<B>(device, backend, kernel, single(), cases());
    }
    for (head_dim, heads, kv_heads) in [(64, 6, 2), (40, 3, 3)] {
        for window in [None, Some(100), Some(300)] {
            let case = attention(head_dim, heads, kv_heads, window);
            assert_same_bits::<B>(device, backend, &case, single(), &mut random);
        }
    }
    let mut over_8_bits = attention(64, 6, 2, Some(300));
    if let Case::Attention { pool, .. } = &mut over_8_bits {
        *pool = PoolKind::Int8;
    }
    assert_same_bits::<B>(device, backend, &over_8_bits, single(), &mut random);
}

pub fn half_precision_has_a_fixed_order_too<B: Kernels>(device: &B::Device, backend: &str) {
    for dtype in half_precisions(backend) {
        for kernel in supported_kernels::<B>() {
            random_cases::<B>(device, backend, kernel, precision(backend, *dtype), 2);
        }
    }
}

/// Makes sure that the check can fail: on a GPU, the fastest order depends on the number of rows.
pub fn a_row_that_depends_on_its_batch_is_noticed<B: Kernels>(device: &B::Device, backend: &str) {
    let (mut random, _) = fresh_random();
    let linear = Case::Linear {
        tokens: 40,
        input: 200,
        output: 96,
        bias: false,
        gated: None,
        summation: Summation::Fastest,
    };
    let attention = attention(64, 6, 2, Some(100)).summed(Summation::Fastest);
    let precision = precision(backend, DType::F32);
    for case in [linear, attention] {
        let seen = same_bits::<B>(&case, precision, &mut random, device).is_err();
        assert_eq!(seen, backend != "cpu", "{backend}: {case}");
    }
}
