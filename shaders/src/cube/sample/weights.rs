//! Logits as ordered integers, and their weights.

use cubecl::prelude::*;

const SIGN: u32 = 0x8000_0000;
const INFINITY: u32 = 0x7f80_0000;
const LARGEST: u32 = 0x7f7f_ffff;

/// True if a token with this logit can be sampled: it is neither NaN nor minus infinity. The test
/// uses the bits, because shader compilers may assume that floats are finite.
#[cube]
pub fn presentable(logit: f32) -> bool {
    let bits = u32::reinterpret(logit);
    (bits & 0x7fff_ffffu32) <= u32::new(INFINITY as i64) && bits != 0xff80_0000u32
}

/// Replaces infinity by the largest finite number, and negative zero by zero.
#[cube]
pub fn clean(logit: f32) -> f32 {
    let bits = u32::reinterpret(logit);
    let finite = select(
        bits == u32::new(INFINITY as i64),
        u32::new(LARGEST as i64),
        bits,
    );
    f32::reinterpret(select(finite == u32::new(SIGN as i64), u32::new(0), finite))
}

/// The number itself if it is finite; otherwise the largest finite number of its sign, and for NaN
/// the smallest.
#[cube]
pub fn finite(value: f32) -> f32 {
    let bits = u32::reinterpret(value);
    let sign = u32::new(SIGN as i64);
    let negative = bits >= sign || (bits & 0x7fff_ffffu32) > u32::new(INFINITY as i64);
    let largest = select(
        negative,
        u32::new(LARGEST as i64) | sign,
        u32::new(LARGEST as i64),
    );
    let special = (bits & 0x7fff_ffffu32) >= u32::new(INFINITY as i64);
    f32::reinterpret(select(special, largest, bits))
}

/// Maps floats to integers in the same order; no finite float maps to 0.
#[cube]
pub fn order(value: f32) -> u32 {
    let bits = u32::reinterpret(value);
    let sign = u32::new(SIGN as i64);
    select(bits >= sign, bits ^ 0xffff_ffffu32, bits ^ sign)
}

/// The inverse of [`order`].
#[cube]
pub fn value_of(order: u32) -> f32 {
    let sign = u32::new(SIGN as i64);
    f32::reinterpret(select(order < sign, order ^ 0xffff_ffffu32, order ^ sign))
}

/// The probability of a token relative to that of the most likely one, whose logit is given as its
/// [`order`]. At temperature 0, the weight is 1 for the largest logit and 0 for all others.
#[cube]
pub fn weight(logit: f32, largest: u32, temperature: f32) -> f32 {
    let mut weight = f32::cast_from(order(logit) == largest);
    if temperature > 0.0f32 {
        weight = exp_of_nonpositive((logit - value_of(largest)) / temperature);
    }
    weight
}

/// The same exponential as the engine's (`engine/src/sampling/softmax.rs`), so that both see the
/// same weights. Only the rounding differs: `floor` is used here, because shader compilers may
/// optimise away adding and subtracting a large constant.
#[cube]
fn exp_of_nonpositive(x: f32) -> f32 {
    let mut result = f32::new(0.0);
    if x > -87.0f32 {
        let n = f32::floor(x * f32::new(std::f32::consts::LOG2_E) + 0.5f32);
        let r = x - n * 0.693_359_4f32 + n * 2.121_944_4e-4f32;
        let mut y = f32::new(1.0 / 5040.0);
        y = y * r + f32::new(1.0 / 720.0);
        y = y * r + f32::new(1.0 / 120.0);
        y = y * r + f32::new(1.0 / 24.0);
        y = y * r + f32::new(1.0 / 6.0);
        y = y * r + 0.5f32;
        y = y * r + 1.0f32;
        y = y * r + 1.0f32;
        let power = f32::reinterpret(u32::cast_from(n + 127.0f32) << 23u32);
        // No weight may exceed that of the most likely token, not even by rounding.
        result = cubecl::prelude::min(y * power, f32::new(1.0));
    }
    result
}
