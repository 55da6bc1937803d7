//! The cut of a row by top-k and top-p.

use cubecl::prelude::*;

use super::weights::{order, value_of};
use super::wide_sums::{carry, fold, scan, units_high, units_low};

/// Keeps the head of the row's ranking (largest value first, ties by lowest id) and drops the rest.
/// A value is kept if all the values before it add up to less than `enough`. The sum counts values,
/// or adds up weights if `by_share`. `least` and `largest` are the row's extremes in their
/// [`order`].
///
/// Returns how many of the unit's first `kept` values remain, and leaves the unit's sum of them in
/// `high` and `low`.
///
/// The position of the cut is found by bisection over the order. Values that lie between the bounds
/// are copied to `near`, which shrinks with each pass, so the row itself is read only three times.
#[cube]
#[allow(clippy::too_many_arguments)]
pub fn cut(
    values: &mut Array<f32>,
    ids: &mut Array<i32>,
    near: &mut Array<f32>,
    base: usize,
    kept: u32,
    least: u32,
    largest: u32,
    enough_high: u32,
    enough_low: u32,
    high: &mut SharedMemory<u32>,
    low: &mut SharedMemory<u32>,
    #[comptime] threads: usize,
    #[comptime] by_share: bool,
) -> u32 {
    let unit = UNIT_POS as usize;
    // Invariant: the values in `floor..` add up to more than `enough`, or are all values; the
    // values in `ceiling..` do not, and their sum is `above`.
    let mut floor = least - 1u32;
    let mut ceiling = largest + 1u32;
    let mut above_high = 0u32;
    let mut above_low = 0u32;
    let mut in_question = kept;
    let mut pass = 0u32;
    while floor + 1u32 < ceiling {
        let middle = between(floor, ceiling, pass, by_share);
        let mut sum_high = 0u32;
        let mut sum_low = 0u32;
        let mut left = 0u32;
        for j in 0..in_question {
            let value = candidate(values, near, base + j as usize * threads, pass);
            let key = order(value);
            if key >= floor && key < ceiling {
                // In the first pass, all values lie between the bounds, so none needs to be copied.
                if pass > 0u32 {
                    near[base + left as usize * threads] = value;
                    left += 1u32;
                }
                if key >= middle {
                    let added = amount_low(value, by_share);
                    sum_low += added;
                    sum_high += amount_high(value, by_share) + carry(sum_low, added);
                }
            }
        }
        if pass > 0u32 {
            in_question = left;
        }
        high[unit] = sum_high;
        low[unit] = sum_low;
        fold(high, low, threads);
        let added = low[0];
        let all_low = above_low + added;
        let all_high = above_high + high[0] + carry(all_low, added);
        sync_cube();
        let exactly = all_high == enough_high && all_low == enough_low;
        let more = all_high > enough_high || (all_high == enough_high && all_low > enough_low);
        if more {
            floor = middle;
        } else {
            ceiling = middle;
            above_high = all_high;
            above_low = all_low;
            // The values from `middle` on are exactly the ones to keep.
            if exactly {
                floor = middle - 1u32;
            }
        }
        pass += 1u32;
    }
    // Values above `floor` are kept. Values equal to it are kept, lowest id first, until the sum is
    // reached.
    let mut ties_high = 0u32;
    let mut ties_low = 0u32;
    for j in 0..in_question {
        let value = candidate(values, near, base + j as usize * threads, pass);
        if order(value) == floor {
            let added = amount_low(value, by_share);
            ties_low += added;
            ties_high += amount_high(value, by_share) + carry(ties_low, added);
        }
    }
    high[unit] = ties_high;
    low[unit] = ties_low;
    scan(high, low, threads);
    let mut sum_high = above_high;
    let mut sum_low = above_low;
    if UNIT_POS > 0u32 {
        let added = low[unit - 1];
        sum_low += added;
        sum_high += high[unit - 1] + carry(sum_low, added);
    }
    sync_cube();
    let mut left = 0u32;
    let mut left_high = 0u32;
    let mut left_low = 0u32;
    for j in 0..kept {
        let at = base + j as usize * threads;
        let value = values[at];
        let key = order(value);
        let mut needed = key > floor;
        if key >= floor {
            let added_low = amount_low(value, by_share);
            let added_high = amount_high(value, by_share);
            if key == floor {
                needed =
                    sum_high < enough_high || (sum_high == enough_high && sum_low < enough_low);
                sum_low += added_low;
                sum_high += added_high + carry(sum_low, added_low);
            }
            if needed {
                let to = base + left as usize * threads;
                values[to] = value;
                ids[to] = ids[at];
                left += 1u32;
                left_low += added_low;
                left_high += added_high + carry(left_low, added_low);
            }
        }
    }
    high[unit] = left_high;
    low[unit] = left_low;
    left
}

/// Value number `at` of the values between the bounds. The first two passes read the row; the
/// second pass copies the values between the bounds to `near`, where later passes read them.
#[cube]
fn candidate(values: &Array<f32>, near: &Array<f32>, at: usize, pass: u32) -> f32 {
    if pass < 2u32 { values[at] } else { near[at] }
}

/// A middle strictly between `floor` and `ceiling`, which are at least 2 apart. In the order of
/// floats, the mean of two keys halves the range of exponents, which suits weights. Logits lie
/// around zero, so for them every other pass takes the mean of the two values instead.
#[cube]
#[allow(clippy::collapsible_if)] // `#[cube]` cannot join a comptime condition with a runtime one.
fn between(floor: u32, ceiling: u32, pass: u32, #[comptime] by_share: bool) -> u32 {
    let mut middle = floor + (ceiling - floor) / 2u32;
    if comptime!(!by_share) {
        if pass & 1u32 == 0u32 {
            let number = order(value_of(floor) * 0.5f32 + value_of(ceiling) * 0.5f32);
            // The mean is not used if it was rounded to one of the bounds or is NaN.
            if number > floor && number < ceiling {
                middle = number;
            }
        }
    }
    middle
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
