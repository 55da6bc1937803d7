//! The kernels: one block of rows over one split of its positions, and the merge of the splits.

use cubecl::prelude::*;

use super::Weighed;
use crate::cube::elementwise::bounded;
use crate::cube::reduce::fold_rows;
use crate::kv_format::INFINITY_BITS;

/// Stands for the score of a position that a row does not attend. Lower than every score of finite
/// inputs.
pub const NONE: f32 = -3.0e38;
/// A bound between [`NONE`] and every real score.
pub const ALMOST_NONE: f32 = -1.0e38;

/// How a unit reads the pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pools {
    /// True if an element of a pool's tensor is a word of four integers, or the scale in front of a
    /// head's words ([`KvFormat::Int8`](crate::KvFormat::Int8)).
    pub integers: bool,
    /// Elements of a head that are read at once.
    pub vector: usize,
}

impl Pools {
    /// The number of reads in front of those of a head's elements.
    fn front(self) -> usize {
        usize::from(self.integers)
    }
}

/// Element `lane` of those that are read at once. An integer is not yet multiplied by its scale.
#[cube]
fn element_of<P: Numeric, N: Size>(
    read: Vector<P, N>,
    #[comptime] lane: usize,
    #[comptime] pools: Pools,
) -> f32 {
    if comptime!(pools.integers) {
        let byte = (u32::cast_from(read[0]) >> comptime!(8 * lane as u32)) & 0xffu32;
        // The sign bit stands for -128.
        f32::cast_from(byte ^ 0x80u32) - 128.0f32
    } else {
        f32::cast_from(read[lane])
    }
}

/// The scale in a word.
#[cube]
fn scale_of<P: Numeric, N: Size>(read: Vector<P, N>) -> f32 {
    f32::reinterpret(u32::cast_from(read[0]))
}

/// True if the scale with these bits is of a head that was not finite.
#[cube]
fn is_lost(scale: u32) -> bool {
    (scale & 0x7fffffffu32) >= comptime!(INFINITY_BITS)
}

/// Attention of a block's rows over one split of its positions. If `whole`, the output is
/// normalised, `[tokens, heads, head_dim]`. Otherwise it is a partial result to be merged,
/// `[tokens, heads, splits, head_dim + 2]`, with the largest score and the sum of the weights at
/// the end. A split has `share` positions, or if that is 0, an equal part of the block's positions.
/// `first_block` is the first block of the launch, and `first_token` is the first token of `out`.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
pub fn attend<E: Float, P: Numeric, O: Float, N: Size>(
    q: &Array<E>,
    k_pool: &Array<Vector<P, N>>,
    v_pool: &Array<Vector<P, N>>,
    positions: &Array<i32>,
    table_start: &Array<i32>,
    slot_table: &Array<i32>,
    blocks: &Array<i32>,
    sinks: &Array<E>,
    out: &mut Array<O>,
    scale: f32,
    cap: f32,
    window: u32,
    share: u32,
    first_block: u32,
    first_token: u32,
    #[comptime] heads: usize,
    #[comptime] kv_heads: usize,
    #[comptime] head_dim: usize,
    #[comptime] shared: usize,
    #[comptime] block_tokens: usize,
    #[comptime] threads: usize,
    #[comptime] pools: Pools,
    #[comptime] weighed: Weighed,
    #[comptime] whole: bool,
    #[define(E)] _dtype: StorageType,
    #[define(P)] _stored: StorageType,
    #[define(O)] _target: StorageType,
) {
    let vector = comptime!(pools.vector);
    let rows = comptime!(shared * block_tokens);
    // Units that read one row of a pool together, and the number of rows that are read at once.
    let lanes = comptime!(head_dim / vector);
    let strands = comptime!(threads / lanes);
    let first_head = CUBE_POS_X as usize * shared;
    let kv_head = first_head / comptime!(heads / kv_heads);
    let block = (first_block + CUBE_POS_Y) as usize;
    let first = blocks[2 * block] as usize;
    let count = blocks[2 * block + 1] as usize;
    let unit = UNIT_POS as usize;
    let first_row = (first - first_token as usize) * heads + first_head;
    let splits = CUBE_COUNT_Z as usize;

    // The positions that some token of the block attends, and this cube's share of them.
    let end = positions[first + count - 1] as u32 + 1;
    let lowest = positions[first] as u32 + 1;
    let mut start = 0u32;
    if window > 0 && lowest > window {
        start = lowest - window;
    }
    let mut each = share;
    if share == 0 {
        each = (end - start).div_ceil(CUBE_COUNT_Z);
    }
    let from = cubecl::prelude::min(start + CUBE_POS_Z * each, end);
    let to = cubecl::prelude::min(from + each, end);
    if comptime!(!whole) {
        let nothing = from == to;
        if nothing {
            // An empty split only writes that its largest score is `NONE`.
            if unit < rows && unit / shared < count {
                let head = first_row + unit / shared * heads + unit % shared;
                let at = (head * splits + CUBE_POS_Z as usize) * comptime!(head_dim + 2);
                out[at + head_dim] = O::cast_from(f32::new(NONE));
            }
            terminate!();
        }
    }

    let mut query = SharedMemory::<f32>::new(comptime!(rows * head_dim));
    let mut scores = SharedMemory::<f32>::new(comptime!(rows * threads));
    let mut found = SharedMemory::<u32>::new(threads);
    for i in range_stepped(unit, comptime!(rows * head_dim), threads) {
        let row = i / head_dim;
        let token = row / shared;
        let mut value = 0.0f32;
        if token < count {
            let head = (first + token) * heads + first_head + row % shared;
            value = f32::cast_from(q[head * head_dim + i % head_dim]) * scale;
        }
        query[i] = value;
    }

    let table = table_start[first] as u32;

    // Where each token's own context ends; 0 if the block has no such token.
    let mut ends = Array::<u32>::new(block_tokens);
    #[unroll]
    for token in 0..block_tokens {
        let mut own = 0u32;
        if token < count {
            own = positions[first + token] as u32 + 1;
        }
        ends[token] = own;
    }
    let mut max = Array::<f32>::new(rows);
    let mut sum = Array::<f32>::new(rows);
    let mut dots = Array::<f32>::new(rows);
    let mut mixed = Array::<f32>::new(comptime!(rows * vector));
    #[unroll]
    for row in 0..rows {
        max[row] = f32::new(NONE);
        sum[row] = 0.0f32;
        if comptime!(weighed.sinks) {
            // The softmax of the first split begins with the sink, whose weight relative to itself
            // is 1. The units hold parts of the sum, and the first one holds this part.
            if CUBE_POS_Z == 0 {
                max[row] = f32::cast_from(sinks[first_head + comptime!(row % shared)]);
                if unit == 0 {
                    sum[row] = 1.0f32;
                }
            }
        }
        #[unroll]
        for lane in 0..vector {
            mixed[comptime!(row * vector + lane)] = 0.0f32;
        }
    }
    let strand = unit / lanes;
    let lane_of_unit = unit % lanes;
    sync_cube();

    let tiles = (to - from).div_ceil(threads as u32);
    for tile in 0..tiles {
        let first_position = from + tile * threads as u32;
        let position = first_position + unit as u32;
        // The scale of this position's key.
        let mut key_scale = 0u32;
        #[unroll]
        for row in 0..rows {
            dots[row] = 0.0f32;
        }
        if position < to {
            let slot = slot_table[(table + position) as usize] as usize;
            let front = comptime!(pools.front());
            let at = (slot * kv_heads + kv_head) * comptime!(lanes + front) + front;
            found[unit] = at as u32;
            for i in 0..lanes {
                let key = k_pool[at + i];
                #[unroll]
                for lane in 0..vector {
                    let element = element_of::<P, N>(key, lane, pools);
                    #[unroll]
                    for row in 0..rows {
                        let part = query[comptime!(row * head_dim) + i * vector + lane];
                        dots[row] = dots[row] + part * element;
                    }
                }
            }
            if comptime!(pools.integers) {
                key_scale = u32::cast_from(k_pool[at - 1][0]);
                #[unroll]
                for row in 0..rows {
                    dots[row] = dots[row] * f32::reinterpret(key_scale);
                }
            }
        }
        #[unroll]
        for row in 0..rows {
            let own = ends[comptime!(row / shared)];
            let seen = position < to && position < own && (window == 0 || position + window >= own);
            let mut score = dots[row];
            if comptime!(weighed.capped) {
                score = bounded(score, cap);
            }
            if comptime!(pools.integers) {
                // A score that is not finite would be no maximum; the weight below shows it instead.
                score = select(is_lost(key_scale), 0.0f32, score);
            }
            let score = select(seen, score, f32::new(NONE));
            dots[row] = score;
            scores[comptime!(row * threads) + unit] = score;
        }
        fold_rows(&mut scores, rows, threads, true);
        // All units read the first element of each row before it is overwritten.
        #[unroll]
        for row in 0..rows {
            let largest = cubecl::prelude::max(max[row], scores[comptime!(row * threads)]);
            let correction = f32::exp(max[row] - largest);
            max[row] = largest;
            sum[row] = sum[row] * correction;
            #[unroll]
            for lane in 0..vector {
                let at = comptime!(row * vector + lane);
                mixed[at] = mixed[at] * correction;
            }
        }
        sync_cube();
        #[unroll]
        for row in 0..rows {
            let weight = f32::exp(dots[row] - max[row]);
            // In a row that has not attended any position yet, all scores are NONE and so is the
            // maximum.
            let mut weight = select(dots[row] > f32::new(ALMOST_NONE), weight, 0.0f32);
            if comptime!(pools.integers) {
                let is_seen = dots[row] > f32::new(ALMOST_NONE);
                let nan = f32::reinterpret(key_scale);
                weight = select(is_seen && is_lost(key_scale), nan, weight);
            }
            sum[row] = sum[row] + weight;
            scores[comptime!(row * threads) + unit] = weight;
        }
        sync_cube();
        if strand < strands {
            let here = cubecl::prelude::min(to - first_position, threads as u32) as usize;
            for i in range_stepped(strand, here, strands) {
                let value = v_pool[found[i] as usize + lane_of_unit];
                let mut scale = 1.0f32;
                if comptime!(pools.integers) {
                    scale = scale_of::<P, N>(v_pool[found[i] as usize - 1]);
                }
                #[unroll]
                for row in 0..rows {
                    let mut weight = scores[comptime!(row * threads) + i];
                    if comptime!(pools.integers) {
                        weight *= scale;
                    }
                    #[unroll]
                    for lane in 0..vector {
                        let at = comptime!(row * vector + lane);
                        let element = element_of::<P, N>(value, lane, pools);
                        mixed[at] = mixed[at] + weight * element;
                    }
                }
            }
        }
        sync_cube();
    }

    // Each unit holds its own part of the sums, and each strand its own part of the weighted
    // values.
    let mut maxima = SharedMemory::<f32>::new(rows);
    let mut sums = SharedMemory::<f32>::new(rows);
    #[unroll]
    for row in 0..rows {
        scores[comptime!(row * threads) + unit] = sum[row];
        if unit == 0 {
            maxima[row] = max[row];
        }
    }
    fold_rows(&mut scores, rows, threads, false);
    if unit < rows {
        sums[unit] = scores[unit * threads];
    }
    #[unroll]
    for lane in 0..vector {
        sync_cube();
        #[unroll]
        for row in 0..rows {
            scores[comptime!(row * threads) + unit] = mixed[comptime!(row * vector + lane)];
        }
        sync_cube();
        for i in range_stepped(unit, comptime!(rows * lanes), threads) {
            let row = i / lanes;
            let token = row / shared;
            if token < count {
                let mut total = 0.0f32;
                for strand in 0..strands {
                    total += scores[row * threads + strand * lanes + i % lanes];
                }
                let head = first_row + token * heads + row % shared;
                let element = i % lanes * vector + lane;
                if comptime!(whole) {
                    out[head * head_dim + element] = O::cast_from(total / sums[row]);
                } else {
                    let at = (head * splits + CUBE_POS_Z as usize) * comptime!(head_dim + 2);
                    out[at + element] = O::cast_from(total);
                    if element == 0 {
                        out[at + head_dim] = O::cast_from(maxima[row]);
                        out[at + head_dim + 1] = O::cast_from(sums[row]);
                    }
                }
            }
        }
    }
}

/// Merges the partial results of the splits, `[tokens, heads, splits, head_dim + 2]`, to one
/// softmax per row, `[tokens, heads, head_dim]` from `first_token` on.
#[cube(launch_unchecked)]
pub fn merge<E: Float>(
    partial: &Array<f32>,
    out: &mut Array<E>,
    splits: u32,
    first_token: u32,
    #[comptime] head_dim: usize,
    #[define(E)] _dtype: StorageType,
) {
    let width = comptime!(head_dim + 2);
    let head = (CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X) as usize;
    let unit = UNIT_POS as usize;
    let first = head * splits as usize * width;
    if unit < head_dim {
        let mut max = f32::new(NONE);
        for split in 0..splits as usize {
            max = cubecl::prelude::max(max, partial[first + split * width + head_dim]);
        }
        let mut sum = 0.0f32;
        let mut mixed = 0.0f32;
        for split in 0..splits as usize {
            let at = first + split * width;
            let its = partial[at + head_dim];
            // An empty split has written nothing but its largest score.
            if its > f32::new(ALMOST_NONE) {
                let weight = f32::exp(its - max);
                sum += weight * partial[at + head_dim + 1];
                mixed += weight * partial[at + unit];
            }
        }
        let target = first_token as usize * CUBE_COUNT_X as usize + head;
        out[target * head_dim + unit] = E::cast_from(mixed / sum);
    }
}
