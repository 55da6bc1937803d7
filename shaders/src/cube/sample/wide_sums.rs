//! Sums of weights as 64-bit integers in two 32-bit words. A weight of 1 is 2^40. The sum of a row
//! of 2^24 tokens does not overflow, and each weight loses less than 10^-12.

use cubecl::prelude::*;

/// The upper word of `weight`, which lies in [0, 1].
#[cube]
pub fn units_high(weight: f32) -> u32 {
    u32::cast_from(f32::floor(weight * 256.0f32))
}

/// The lower word of `weight`. The result is exact. It is converted in two halves, because not
/// every device converts floats of 2^31 and above to integers.
#[cube]
pub fn units_low(weight: f32) -> u32 {
    let scaled = weight * 256.0f32;
    let upper = (scaled - f32::floor(scaled)) * 65_536.0f32;
    let lower = (upper - f32::floor(upper)) * 65_536.0f32;
    (u32::cast_from(upper) << 16u32) + u32::cast_from(lower)
}

/// The carry into the upper word after `added` was added to the lower word, which is now `sum`.
#[cube]
pub fn carry(sum: u32, added: u32) -> u32 {
    u32::cast_from(sum < added)
}

/// The sum times `fraction` (in units of 2^-32), rounded down: its upper or its lower word.
#[cube]
pub fn part(high: u32, low: u32, fraction: u32, #[comptime] upper: bool) -> u32 {
    let added = product_high(low, fraction);
    let sum = high * fraction + added;
    if comptime!(upper) {
        product_high(high, fraction) + carry(sum, added)
    } else {
        sum
    }
}

/// The upper word of the product of two words, computed in halves, because WGSL has no 64-bit
/// integers.
#[cube]
fn product_high(a: u32, b: u32) -> u32 {
    let (a_low, a_high) = (a & 0xffffu32, a >> 16u32);
    let (b_low, b_high) = (b & 0xffffu32, b >> 16u32);
    let first = a_high * b_low + ((a_low * b_low) >> 16u32);
    let second = a_low * b_high + (first & 0xffffu32);
    a_high * b_high + (first >> 16u32) + (second >> 16u32)
}

/// Units that fold the other units' values before one unit folds theirs. Two levels need only few
/// barriers: reading shared memory is cheaper than waiting for all units.
const FOLDERS: usize = 32;

/// Adds up the `threads` elements of `high` and `low`, a power of two, into their first element.
/// Begins and ends with a barrier.
#[cube]
pub fn fold(high: &mut SharedMemory<u32>, low: &mut SharedMemory<u32>, #[comptime] threads: usize) {
    let folders = comptime!(threads.min(FOLDERS));
    sync_cube();
    fold_every(high, low, folders, comptime!(threads / folders));
    sync_cube();
    fold_every(high, low, 1usize, folders);
    sync_cube();
}

/// Each of the first `folders` elements becomes the sum of `count` elements: itself and those at
/// multiples of `folders` after it.
#[cube]
fn fold_every(
    high: &mut SharedMemory<u32>,
    low: &mut SharedMemory<u32>,
    #[comptime] folders: usize,
    #[comptime] count: usize,
) {
    let unit = UNIT_POS as usize;
    if unit < folders {
        let mut sum_high = high[unit];
        let mut sum_low = low[unit];
        for turn in 1..count {
            let at = unit + turn * folders;
            let added = low[at];
            sum_low += added;
            sum_high += high[at] + carry(sum_low, added);
        }
        high[unit] = sum_high;
        low[unit] = sum_low;
    }
}

/// Puts the smallest element of `least` and the largest of `largest` into their first element.
/// Begins and ends with a barrier.
#[cube]
pub fn fold_extremes(
    least: &mut SharedMemory<u32>,
    largest: &mut SharedMemory<u32>,
    #[comptime] threads: usize,
) {
    let folders = comptime!(threads.min(FOLDERS));
    sync_cube();
    fold_extremes_every(least, largest, folders, comptime!(threads / folders));
    sync_cube();
    fold_extremes_every(least, largest, 1usize, folders);
    sync_cube();
}

/// As [`fold_every`].
#[cube]
fn fold_extremes_every(
    least: &mut SharedMemory<u32>,
    largest: &mut SharedMemory<u32>,
    #[comptime] folders: usize,
    #[comptime] count: usize,
) {
    let unit = UNIT_POS as usize;
    if unit < folders {
        let mut low = least[unit];
        let mut high = largest[unit];
        for turn in 1..count {
            let at = unit + turn * folders;
            low = cubecl::prelude::min(low, least[at]);
            high = cubecl::prelude::max(high, largest[at]);
        }
        least[unit] = low;
        largest[unit] = high;
    }
}

/// Replaces each element by the sum of the elements up to and including it (Hillis and Steele,
/// 1986). Begins and ends with a barrier.
#[cube]
pub fn scan(high: &mut SharedMemory<u32>, low: &mut SharedMemory<u32>, #[comptime] threads: usize) {
    let unit = UNIT_POS as usize;
    sync_cube();
    for step in 0..comptime!(threads.ilog2()) {
        let stride = 1usize << step as usize;
        let mut added_high = 0u32;
        let mut added_low = 0u32;
        if unit >= stride {
            added_high = high[unit - stride];
            added_low = low[unit - stride];
        }
        sync_cube();
        let sum = low[unit] + added_low;
        low[unit] = sum;
        high[unit] = high[unit] + added_high + carry(sum, added_low);
        sync_cube();
    }
}
