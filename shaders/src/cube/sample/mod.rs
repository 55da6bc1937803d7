//! Samples one token from each row of logits, with one cube per row: mask, edits, temperature,
//! min-p, top-k, top-p and the draw.
//!
//! Each unit owns a run of consecutive tokens, which it copies to its own part of global memory.
//! Units exchange only sums, through shared memory. Each step removes the tokens that it rules out
//! from the runs, so later steps read less. Top-k and top-p find their cut by bisection ([`cuts`]);
//! ties are kept by lowest id. Weights are added up as integers ([`wide_sums`]), so the sums are
//! exact and do not depend on the order of addition.
//!
//! A row is read three times. For normally distributed logits, top-k or top-p needs two to five
//! more passes; where the logits are nearly equal, it needs up to one pass per bit of a float.

mod cuts;
mod weights;
mod wide_sums;

use burn::tensor::{DType, Shape};
use burn_cubecl::CubeRuntime;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::dims;
use crate::sample_plan::{EDIT_WORDS, ROW_WORDS};
use cuts::cut;
pub use weights::{clean, finite, order};
use weights::{presentable, weight};
use wide_sums::{carry, fold, fold_extremes, part, scan, units_high, units_low};

/// Units of a cube at most: as many as share memory on most devices, and as many as a row can use.
const MOST_THREADS: usize = 1024;
const FEWEST_THREADS: usize = 64;
/// Tokens of a run at least, if the row has enough.
const RUN: usize = 8;

/// [`Kernels::sample`](crate::Kernels::sample): `logits` `[rows, vocab]` and the `plan` of
/// [`crate::sample_plan`] for as many rows, both contiguous. Returns `[rows]`, i32.
pub fn sample<R: CubeRuntime>(logits: CubeTensor<R>, plan: CubeTensor<R>) -> CubeTensor<R> {
    let [rows, vocab] = dims(&logits);
    let (client, device, dtype) = (logits.client.clone(), logits.device.clone(), logits.dtype);
    let most = client.properties().hardware.max_units_per_cube as usize;
    let most = 1 << most.min(MOST_THREADS).ilog2();
    let threads = (vocab / RUN)
        .next_power_of_two()
        .clamp(FEWEST_THREADS.min(most), most);
    let padded = vocab.next_multiple_of(threads);
    let empty =
        |shape, dtype| empty_device_contiguous_dtype(client.clone(), device.clone(), shape, dtype);
    let values = empty(Shape::from([rows, padded]), DType::F32);
    let ids = empty(Shape::from([rows, padded]), DType::I32);
    let near = empty(Shape::from([rows, padded]), DType::F32);
    let out = empty(Shape::from([rows]), DType::I32);
    // SAFETY: there is one cube per row of `logits`, `plan` and `out`. Each unit indexes `values`,
    // `ids` and `near` within its run, and the runs of a row fit its `padded` elements. The
    // offsets in the plan are those at which `sample_plan` wrote masks and edits.
    unsafe {
        sample_kernel::launch_unchecked(
            &client,
            CubeCount::Static(rows as u32, 1, 1),
            CubeDim::new_1d(threads as u32),
            logits.into_array_arg(),
            plan.into_array_arg(),
            values.into_array_arg(),
            ids.into_array_arg(),
            near.into_array_arg(),
            out.clone().into_array_arg(),
            vocab as u32,
            threads,
            dtype.into(),
        );
    }
    out
}

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
fn sample_kernel<E: Float>(
    logits: &Array<E>,
    plan: &Array<i32>,
    values: &mut Array<f32>,
    ids: &mut Array<i32>,
    near: &mut Array<f32>,
    out: &mut Array<i32>,
    vocab: u32,
    #[comptime] threads: usize,
    #[define(E)] _dtype: StorageType,
) {
    let mut high = SharedMemory::<u32>::new(threads);
    let mut low = SharedMemory::<u32>::new(threads);
    let row = CUBE_POS_X as usize;
    let head = row * comptime!(ROW_WORDS);
    let temperature = f32::reinterpret(plan[head]);
    let top_k = u32::reinterpret(plan[head + 1]);
    let top_p = u32::reinterpret(plan[head + 2]);
    let min_p = f32::reinterpret(plan[head + 3]);
    let draw = u32::reinterpret(plan[head + 4]);
    let run = (vocab + comptime!(threads as u32 - 1)) / comptime!(threads as u32);
    // Neighbouring units own neighbouring elements, so that their accesses coalesce.
    let unit = UNIT_POS as usize;
    let base = row * run as usize * threads + unit;

    let mut kept = gather::<E>(
        logits, plan, values, ids, &mut high, &mut low, base, vocab, run, threads,
    );
    fold_extremes(&mut high, &mut low, threads);
    let (least, largest) = (high[0], low[0]);
    sync_cube();

    if top_k > 0u32 {
        high[unit] = 0u32;
        low[unit] = kept;
        fold(&mut high, &mut low, threads);
        let all = low[0];
        sync_cube();
        if all > top_k {
            kept = cut(
                values, ids, near, base, kept, least, largest, 0u32, top_k, &mut high, &mut low,
                threads, false,
            );
        }
    }

    // From here on, `values` holds weights, and none of them is zero.
    let mut weighty = 0u32;
    let mut lightest = 0xffff_ffffu32;
    let mut heaviest = 0u32;
    let mut sum_high = 0u32;
    let mut sum_low = 0u32;
    for j in 0..kept {
        let at = base + j as usize * threads;
        let value = weight(values[at], largest, temperature);
        if value > 0.0f32 && value >= min_p {
            let to = base + weighty as usize * threads;
            values[to] = value;
            ids[to] = ids[at];
            weighty += 1u32;
            lightest = cubecl::prelude::min(lightest, order(value));
            heaviest = cubecl::prelude::max(heaviest, order(value));
            let added = units_low(value);
            sum_low += added;
            sum_high += units_high(value) + carry(sum_low, added);
        }
    }
    kept = weighty;

    if top_p > 0u32 {
        high[unit] = lightest;
        low[unit] = heaviest;
        fold_extremes(&mut high, &mut low, threads);
        let (least, largest) = (high[0], low[0]);
        sync_cube();
        high[unit] = sum_high;
        low[unit] = sum_low;
        fold(&mut high, &mut low, threads);
        let (all_high, all_low) = (high[0], low[0]);
        sync_cube();
        let enough_high = part(all_high, all_low, top_p, true);
        let enough_low = part(all_high, all_low, top_p, false);
        kept = cut(
            values,
            ids,
            near,
            base,
            kept,
            least,
            largest,
            enough_high,
            enough_low,
            &mut high,
            &mut low,
            threads,
            true,
        );
    } else {
        high[unit] = sum_high;
        low[unit] = sum_low;
    }

    // Draw a token: the weights are added up in the order of token ids.
    scan(&mut high, &mut low, threads);
    let last = comptime!(threads - 1);
    let (all_high, all_low) = (high[last], low[last]);
    let target_high = part(all_high, all_low, draw, true);
    let target_low = part(all_high, all_low, draw, false);
    sum_high = 0u32;
    sum_low = 0u32;
    if UNIT_POS > 0u32 {
        sum_high = high[unit - 1];
        sum_low = low[unit - 1];
    }
    if all_high == 0u32 && all_low == 0u32 {
        if UNIT_POS == 0u32 {
            out[row] = i32::new(-1);
        }
    } else {
        for j in 0..kept {
            let at = base + j as usize * threads;
            let value = values[at];
            let before =
                sum_high < target_high || (sum_high == target_high && sum_low <= target_low);
            let added = units_low(value);
            sum_low += added;
            sum_high += units_high(value) + carry(sum_low, added);
            let after = sum_high > target_high || (sum_high == target_high && sum_low > target_low);
            // This holds for exactly one token of the row.
            if before && after {
                out[row] = ids[at];
            }
        }
    }
}

/// Fills the unit's run with the token ids that can be sampled and their edited logits. Returns
/// their number, and leaves the [`order`] of the unit's smallest and largest logit in `least` and
/// `largest`.
#[cube]
#[allow(clippy::too_many_arguments)]
fn gather<E: Float>(
    logits: &Array<E>,
    plan: &Array<i32>,
    values: &mut Array<f32>,
    ids: &mut Array<i32>,
    least: &mut SharedMemory<u32>,
    largest: &mut SharedMemory<u32>,
    base: usize,
    vocab: u32,
    run: u32,
    #[comptime] threads: usize,
) -> u32 {
    let row = CUBE_POS_X as usize;
    let head = row * comptime!(ROW_WORDS);
    let mask_at = u32::reinterpret(plan[head + 5]) as usize;
    let edits_at = u32::reinterpret(plan[head + 6]) as usize;
    let edits = u32::reinterpret(plan[head + 7]);
    let start = UNIT_POS * run;
    let end = cubecl::prelude::min(start + run, vocab);
    // Find the first edit of the unit's run.
    let mut edit = 0u32;
    let mut beyond = edits;
    while edit < beyond {
        let middle = (edit + beyond) / 2u32;
        let token = u32::reinterpret(plan[edits_at + middle as usize * comptime!(EDIT_WORDS)]);
        if token < start {
            edit = middle + 1u32;
        } else {
            beyond = middle;
        }
    }
    let mut kept = 0u32;
    // If the run has no token, the smallest stays above the largest.
    let mut lowest = 0xffff_ffffu32;
    let mut highest = 0u32;
    for token in start..end {
        let mut logit = f32::cast_from(logits[row * vocab as usize + token as usize]);
        let mut allowed = true;
        if mask_at > 0 {
            let word = u32::reinterpret(plan[mask_at + token as usize / 32]);
            allowed = (word >> (token % 32u32)) & 1u32 == 1u32;
        }
        if edit < edits {
            let at = edits_at + edit as usize * comptime!(EDIT_WORDS);
            if u32::reinterpret(plan[at]) == token {
                logit += f32::reinterpret(plan[at + 1]);
                let factor = f32::reinterpret(plan[at + 2]);
                if logit > 0.0f32 {
                    logit /= factor;
                } else {
                    logit *= factor;
                }
                logit -= f32::reinterpret(plan[at + 3]);
                edit += 1u32;
            }
        }
        if allowed && presentable(logit) {
            let to = base + kept as usize * threads;
            let value = clean(logit);
            values[to] = value;
            ids[to] = i32::cast_from(token);
            kept += 1u32;
            lowest = cubecl::prelude::min(lowest, order(value));
            highest = cubecl::prelude::max(highest, order(value));
        }
    }
    least[UNIT_POS as usize] = lowest;
    largest[UNIT_POS as usize] = highest;
    kept
}
