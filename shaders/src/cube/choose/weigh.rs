//! Logits by their bits, and what they weigh.

use cubecl::prelude::*;

const SIGN: u32 = 0x8000_0000;
const INFINITY: u32 = 0x7f80_0000;
const LARGEST: u32 = 0x7f7f_ffff;

/// Whether a logit is neither NaN nor minus infinity: told by its bits, as compilers may take
/// for granted that there are none.
#[cube]
pub fn presentable(logit: f32) -> bool {
    let bits = u32::reinterpret(logit);
    (bits & 0x7fff_ffffu32) <= u32::new(INFINITY as i64) && bits != 0xff80_0000u32
}

/// Infinity as the largest number, and no negative zero.
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

/// A number that is the larger the larger `value` is; never 0.
#[cube]
pub fn order(value: f32) -> u32 {
    let bits = u32::reinterpret(value);
    let sign = u32::new(SIGN as i64);
    select(bits >= sign, bits ^ 0xffff_ffffu32, bits ^ sign)
}

/// The float whose [`order`] this is.
#[cube]
pub fn value_of(order: u32) -> f32 {
    let sign = u32::new(SIGN as i64);
    f32::reinterpret(select(order < sign, order ^ 0xffff_ffffu32, order ^ sign))
}

/// The probability of a logit relative to that of the largest, which is given as its
/// [`order`]. Without temperature it is all or nothing.
#[cube]
pub fn weight(logit: f32, largest: u32, temperature: f32) -> f32 {
    let mut weight = f32::cast_from(order(logit) == largest);
    if temperature > 0.0f32 {
        weight = exp_of_nonpositive((logit - value_of(largest)) / temperature);
    }
    weight
}

/// The engine's exponential (`engine/src/softmax.rs`), so that both see the same weights; only
/// that it rounds by `floor`, as compilers may drop what is added and subtracted again.
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
        // Above the largest nothing weighs: rounding must not either.
        result = cubecl::prelude::min(y * power, f32::new(1.0));
    }
    result
}
