//! Random weights for benchmarks: the shapes and sizes of a real model, without its meaning.

use crate::dtype::Dtype;

/// The standard deviation with which models of these families are usually initialised.
const STD: f32 = 0.02;

/// The values of the tensor `name` in `dtype`: 1 for norms, and otherwise approximately normal
/// with standard deviation 0.02.
pub(super) fn tensor(name: &str, shape: &[usize], dtype: Dtype, seed: u64) -> Vec<u8> {
    let count: usize = shape.iter().product();
    if name.ends_with("norm.weight") {
        return dtype.encode(std::iter::repeat_n(1.0, count));
    }
    let key = name_hash(name) ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    dtype.encode((0..count).map(|index| STD * normal(key, index as u64)))
}

/// An approximately normal value of unit variance: the centred sum of four uniform 16-bit numbers.
/// With a logarithm for each value, a model of a billion parameters would take minutes.
fn normal(key: u64, counter: u64) -> f32 {
    let bits = mix(key.wrapping_add(counter.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    let sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    // Each has variance 1/12 of its range squared, so four have 1/3.
    (sum as f32 / 65536.0 - 2.0) * 3f32.sqrt()
}

/// The output function of SplitMix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// FNV-1a: stable across runs and versions, unlike the standard hasher.
fn name_hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
