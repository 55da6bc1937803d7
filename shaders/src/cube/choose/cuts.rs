//! Where top-k and top-p cut a row.

use cubecl::prelude::*;

use super::weigh::order;
use super::wide::{carry, fold, scan, units_high, units_low};

/// Keeps the head of the row's ranking, largest value first and of equals the lowest id, as
/// long as what is before a value adds up to less than `enough`: shares of weights if
/// `by_share`, else logits by number. Returns how many of the unit's first `kept` are left.
#[cube]
#[allow(clippy::too_many_arguments)]
pub fn cut(
    values: &mut Array<f32>,
    ids: &mut Array<i32>,
    base: usize,
    kept: u32,
    enough_high: u32,
    enough_low: u32,
    high: &mut SharedMemory<u32>,
    low: &mut SharedMemory<u32>,
    #[comptime] threads: usize,
    #[comptime] by_share: bool,
) -> u32 {
    let unit = UNIT_POS as usize;
    // The largest bits from which on values add up to enough: of `floor` they do or there is
    // no more, of `ceiling` they do not.
    let mut floor = 0u32;
    let mut ceiling = 0xffff_ffffu32;
    for _ in 0..32u32 {
        let middle = floor + (ceiling - floor) / 2u32;
        let mut sum_high = 0u32;
        let mut sum_low = 0u32;
        for j in 0..kept {
            let value = values[base + j as usize * threads];
            if order(value) >= middle {
                let added = amount_low(value, by_share);
                sum_low += added;
                sum_high += amount_high(value, by_share) + carry(sum_low, added);
            }
        }
        high[unit] = sum_high;
        low[unit] = sum_low;
        fold(high, low, threads);
        let reached = high[0] > enough_high || (high[0] == enough_high && low[0] >= enough_low);
        sync_cube();
        if reached {
            floor = middle;
        } else {
            ceiling = middle;
        }
    }
    // What is above is kept; what ties as long as it is needed.
    let mut above_high = 0u32;
    let mut above_low = 0u32;
    let mut ties_high = 0u32;
    let mut ties_low = 0u32;
    for j in 0..kept {
        let value = values[base + j as usize * threads];
        let added = amount_low(value, by_share);
        if order(value) > floor {
            above_low += added;
            above_high += amount_high(value, by_share) + carry(above_low, added);
        } else if order(value) == floor {
            ties_low += added;
            ties_high += amount_high(value, by_share) + carry(ties_low, added);
        }
    }
    high[unit] = above_high;
    low[unit] = above_low;
    fold(high, low, threads);
    let mut sum_high = high[0];
    let mut sum_low = low[0];
    sync_cube();
    high[unit] = ties_high;
    low[unit] = ties_low;
    scan(high, low, threads);
    if UNIT_POS > 0u32 {
        let added = low[unit - 1];
        sum_low += added;
        sum_high += high[unit - 1] + carry(sum_low, added);
    }
    sync_cube();
    let mut left = 0u32;
    for j in 0..kept {
        let at = base + j as usize * threads;
        let value = values[at];
        let mut needed = order(value) > floor;
        if order(value) == floor {
            needed = sum_high < enough_high || (sum_high == enough_high && sum_low < enough_low);
            let added = amount_low(value, by_share);
            sum_low += added;
            sum_high += amount_high(value, by_share) + carry(sum_low, added);
        }
        if needed {
            let to = base + left as usize * threads;
            values[to] = value;
            ids[to] = ids[at];
            left += 1u32;
        }
    }
    left
}

#[cube]
fn amount_high(value: f32, #[comptime] by_share: bool) -> u32 {
    if comptime!(by_share) {
        units_high(value)
    } else {
        u32::new(0)
    }
}

#[cube]
fn amount_low(value: f32, #[comptime] by_share: bool) -> u32 {
    if comptime!(by_share) {
        units_low(value)
    } else {
        u32::new(1)
    }
}
