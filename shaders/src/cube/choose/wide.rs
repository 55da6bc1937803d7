//! Sums of weights as whole numbers of 64 bits, in two words. A weight of 1 is 2^40: of a row
//! of 2^24 tokens the sum has room, and what is lost of each weight is less than 10^-12.

use cubecl::prelude::*;

/// The upper word of `weight`, in [0, 1].
#[cube]
pub fn units_high(weight: f32) -> u32 {
    u32::cast_from(f32::floor(weight * 256.0f32))
}

/// The lower word. All of this is exact; in two halves, as not every device converts floats
/// from 2^31 on.
#[cube]
pub fn units_low(weight: f32) -> u32 {
    let scaled = weight * 256.0f32;
    let upper = (scaled - f32::floor(scaled)) * 65_536.0f32;
    let lower = (upper - f32::floor(upper)) * 65_536.0f32;
    (u32::cast_from(upper) << 16u32) + u32::cast_from(lower)
}

/// What the upper word gets when `added` has been added to the lower one, which is `sum` now.
#[cube]
pub fn carry(sum: u32, added: u32) -> u32 {
    u32::cast_from(sum < added)
}

/// `fraction` 2^-32 parts of a sum, rounded down: one of its words.
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

/// The upper word of a product: in halves, as WGSL has no wider integers.
#[cube]
fn product_high(a: u32, b: u32) -> u32 {
    let (a_low, a_high) = (a & 0xffffu32, a >> 16u32);
    let (b_low, b_high) = (b & 0xffffu32, b >> 16u32);
    let first = a_high * b_low + ((a_low * b_low) >> 16u32);
    let second = a_low * b_high + (first & 0xffffu32);
    a_high * b_high + (first >> 16u32) + (second >> 16u32)
}

/// Units that fold the others' values before one folds theirs: few barriers, as reading shared
/// memory is cheaper than to wait for all units.
const FOLDERS: usize = 32;

/// The first element of `high` and `low` becomes the sum of all `threads`, a power of two.
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

/// Each of the first `folders` elements becomes the sum of `count`, each `folders` after the one
/// before.
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

/// The first element of `least` becomes the least of all, that of `largest` the largest. Begins
/// and ends with a barrier.
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

/// Each element becomes the sum of those up to and with it (Hillis and Steele, 1986). Begins
/// and ends with a barrier.
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
