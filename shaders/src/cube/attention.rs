//! Attention over slot indices.
//!
//! A cube takes a block of tokens of one sequence and those query heads of a group that
//! share a KV head: each key and each value is read once for all of these rows. A tile of
//! positions is scored with one unit per position; then groups of units, one vector of the
//! head each, mix the tile's values. The softmax is online (Milakov and Gimelshein, arXiv
//! 1805.02867), so that no memory grows with the context.
//!
//! Where that gives fewer cubes than the device runs at once, as when few sequences decode,
//! the positions are split over several cubes and their results merged ([`merge`], as in
//! flash decoding).

use burn::tensor::{DType, Shape};
use burn_cubecl::CubeRuntime;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::reduce::fold_rows;
use super::{dims, empty_like};
use crate::HeadLayout;

/// Positions that a split has at least, on average: merging is not free.
const POSITIONS_PER_SPLIT: usize = 128;
const MOST_SPLITS: usize = 64;
/// Cubes that keep a multiprocessor busy.
const CUBES_PER_PROCESSOR: usize = 4;
/// Multiprocessors of a device that does not tell.
const UNKNOWN_PROCESSORS: u32 = 32;

pub struct SlotTable<R: CubeRuntime> {
    pub positions: CubeTensor<R>,
    pub start: CubeTensor<R>,
    pub slots: CubeTensor<R>,
    pub blocks: CubeTensor<R>,
    pub block_count: usize,
    pub block_tokens: usize,
    /// The longest context.
    pub longest: usize,
    /// How many of the last positions a token sees; 0 for all.
    pub window: u32,
}

pub fn paged<R: CubeRuntime>(
    q: CubeTensor<R>,
    layout: HeadLayout,
    table: SlotTable<R>,
    k_pool: CubeTensor<R>,
    v_pool: CubeTensor<R>,
) -> CubeTensor<R> {
    let [tokens, width] = dims(&q);
    let out = empty_like(&q, tokens, width);
    let (client, dtype) = (q.client.clone(), q.dtype);
    let shared = layout.shared_heads();
    let rows = shared * table.block_tokens;
    // 16 bytes a load where the rows allow it and the sums leave registers for it.
    let widest = if dtype != DType::F32 && rows <= 4 {
        8
    } else {
        4
    };
    let vector = [widest, 4, 2, 1]
        .into_iter()
        .find(|n| layout.head_dim.is_multiple_of(*n))
        .unwrap_or(1);
    let threads = (layout.head_dim / vector).next_power_of_two().max(128);
    let groups = layout.heads / shared;
    let cubes = groups * table.block_count;
    let processors = client.properties().hardware.num_streaming_multiprocessors;
    let splits = splits(
        cubes,
        table.longest,
        processors.unwrap_or(UNKNOWN_PROCESSORS) as usize,
    );
    // One split writes what is wanted, several what has to be merged.
    let partial = (splits > 1).then(|| {
        let shape = Shape::from([tokens * layout.heads * splits, layout.head_dim + 2]);
        let (client, device) = (q.client.clone(), q.device.clone());
        empty_device_contiguous_dtype(client, device, shape, DType::F32)
    });
    let target = partial.as_ref().unwrap_or(&out).clone();
    let target_dtype = target.dtype;
    // SAFETY: the table's slots lie within the pools; the batch is checked by the caller.
    unsafe {
        attend::launch_unchecked(
            &client,
            CubeCount::Static(groups as u32, table.block_count as u32, splits as u32),
            CubeDim::new_1d(threads as u32),
            vector,
            q.into_array_arg(),
            k_pool.into_array_arg(),
            v_pool.into_array_arg(),
            table.positions.into_array_arg(),
            table.start.into_array_arg(),
            table.slots.into_array_arg(),
            table.blocks.into_array_arg(),
            target.into_array_arg(),
            1.0 / (layout.head_dim as f32).sqrt(),
            table.window,
            layout.heads,
            layout.kv_heads,
            layout.head_dim,
            shared,
            table.block_tokens,
            threads,
            partial.is_none(),
            dtype.into(),
            target_dtype.into(),
        );
    }
    if let Some(partial) = partial {
        let units = layout.head_dim.next_multiple_of(32);
        // SAFETY: units beyond the head's width write nothing.
        unsafe {
            merge::launch_unchecked(
                &client,
                CubeCount::Static(layout.heads as u32, tokens as u32, 1),
                CubeDim::new_1d(units as u32),
                partial.into_array_arg(),
                out.clone().into_array_arg(),
                splits as u32,
                layout.head_dim,
                dtype.into(),
            );
        }
    }
    out
}

/// Into how many parts the positions are cut: a power of two, so that the memory for what
/// is merged has few sizes.
fn splits(cubes: usize, longest: usize, processors: usize) -> usize {
    let wanted = CUBES_PER_PROCESSOR * processors / cubes.max(1);
    let most = wanted.min(longest / POSITIONS_PER_SPLIT).min(MOST_SPLITS);
    match most {
        0 => 1,
        most => 1 << most.ilog2(),
    }
}

/// Below every score that finite inputs can have.
const NONE: f32 = -3.0e38;
/// Between that and every score.
const ALMOST_NONE: f32 = -1.0e38;

/// Attention of a block's rows over one split of its positions: normalised, `[tokens, heads,
/// head_dim]`, when `whole`, else sums that are to be merged, `[tokens, heads, splits,
/// head_dim + 2]`, with the maximum and the sum of weights last.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
fn attend<E: Float, O: Float, N: Size>(
    q: &Array<E>,
    k_pool: &Array<Vector<E, N>>,
    v_pool: &Array<Vector<E, N>>,
    positions: &Array<i32>,
    table_start: &Array<i32>,
    slot_table: &Array<i32>,
    blocks: &Array<i32>,
    out: &mut Array<O>,
    scale: f32,
    window: u32,
    #[comptime] heads: usize,
    #[comptime] kv_heads: usize,
    #[comptime] head_dim: usize,
    #[comptime] shared: usize,
    #[comptime] block_tokens: usize,
    #[comptime] threads: usize,
    #[comptime] whole: bool,
    #[define(E)] _dtype: StorageType,
    #[define(O)] _target: StorageType,
) {
    let vector = N::value();
    let rows = comptime!(shared * block_tokens);
    // Units that read one row of the pool together, and how many rows are read at once.
    let lanes = comptime!(head_dim / vector);
    let strands = comptime!(threads / lanes);
    let first_head = CUBE_POS_X as usize * shared;
    let kv_head = first_head / comptime!(heads / kv_heads);
    let block = CUBE_POS_Y as usize;
    let first = blocks[2 * block] as usize;
    let count = blocks[2 * block + 1] as usize;
    let unit = UNIT_POS as usize;

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

    // The positions that some token of the block sees, and this cube's share of them.
    let end = positions[first + count - 1] as u32 + 1;
    let lowest = positions[first] as u32 + 1;
    let mut start = 0u32;
    if window > 0 && lowest > window {
        start = lowest - window;
    }
    let share = (end - start).div_ceil(CUBE_COUNT_Z);
    let from = cubecl::prelude::min(start + CUBE_POS_Z * share, end);
    let to = cubecl::prelude::min(from + share, end);
    let table = table_start[first] as u32;

    // Where each token's own context ends; 0 where the block has no token.
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
        #[unroll]
        for row in 0..rows {
            dots[row] = 0.0f32;
        }
        if position < to {
            let slot = slot_table[(table + position) as usize] as usize;
            let at = (slot * kv_heads + kv_head) * lanes;
            found[unit] = at as u32;
            for i in 0..lanes {
                let key = k_pool[at + i];
                #[unroll]
                for lane in 0..vector {
                    let element = f32::cast_from(key[lane]);
                    #[unroll]
                    for row in 0..rows {
                        let part = query[comptime!(row * head_dim) + i * vector + lane];
                        dots[row] = dots[row] + part * element;
                    }
                }
            }
        }
        #[unroll]
        for row in 0..rows {
            let own = ends[comptime!(row / shared)];
            let seen = position < to && position < own && (window == 0 || position + window >= own);
            let score = select(seen, dots[row], f32::new(NONE));
            dots[row] = score;
            scores[comptime!(row * threads) + unit] = score;
        }
        fold_rows(&mut scores, rows, threads, true);
        // What is in the rows' first elements is read by all before it is written over.
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
            // A row that has seen nothing yet has no maximum to measure by.
            let weight = select(dots[row] > f32::new(ALMOST_NONE), weight, 0.0f32);
            sum[row] = sum[row] + weight;
            scores[comptime!(row * threads) + unit] = weight;
        }
        sync_cube();
        if strand < strands {
            let here = cubecl::prelude::min(to - first_position, threads as u32) as usize;
            for i in range_stepped(strand, here, strands) {
                let value = v_pool[found[i] as usize + lane_of_unit];
                #[unroll]
                for row in 0..rows {
                    let weight = scores[comptime!(row * threads) + i];
                    #[unroll]
                    for lane in 0..vector {
                        let at = comptime!(row * vector + lane);
                        mixed[at] = mixed[at] + weight * f32::cast_from(value[lane]);
                    }
                }
            }
        }
        sync_cube();
    }

    // Each unit has its own part of the sums, each strand of the mixed values.
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
    let splits = CUBE_COUNT_Z as usize;
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
                let head = (first + token) * heads + first_head + row % shared;
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

/// One softmax out of those of the splits: `[tokens, heads, splits, head_dim + 2]` to
/// `[tokens, heads, head_dim]`.
#[cube(launch_unchecked)]
fn merge<E: Float>(
    partial: &Array<f32>,
    out: &mut Array<E>,
    splits: u32,
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
            let weight = f32::exp(partial[at + head_dim] - max);
            sum += weight * partial[at + head_dim + 1];
            mixed += weight * partial[at + unit];
        }
        out[head * head_dim + unit] = E::cast_from(mixed / sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_split_where_cubes_are_few_and_contexts_long() {
        // Llama-3.2-1B decoding one sequence of 1,024 on a device of 132 processors.
        assert_eq!(splits(8, 1024, 132), 8);
        assert_eq!(splits(8, 100, 132), 1);
        assert_eq!(splits(8, 300, 132), 2);
        assert_eq!(splits(8, 100_000, 132), 64);
        // 64 of them are enough by themselves.
        assert_eq!(splits(512, 1024, 132), 1);
        assert_eq!(splits(264, 4096, 132), 2);
    }
}
