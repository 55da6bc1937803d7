//! Attention of many rows with cooperative matrices, after FlashAttention-2 (Dao, arXiv
//! 2307.08691).
//!
//! A cube takes rows of a tile, which are queries of one KV head, and goes through the positions
//! that some of them attend. The keys and values of a tile of positions are gathered into shared
//! memory. Then each subgroup computes the scores of its own strip of rows, turns them into
//! weights, and adds the weighted values to sums that stay in cooperative matrices. How elements
//! are laid out in these matrices is unknown, so operations on single rows go through shared
//! memory. For rescaling the sums this would be most of the work. Therefore the maximum that a
//! row's weights are relative to is raised only when a score exceeds it by more than [`GROWTH`],
//! which is rare after the first positions.
//!
//! A key or value that is not finite also spoils those rows of its cube that do not attend it: in a
//! product of matrices, a weight of zero times infinity is NaN.

mod steps;

use cubecl::prelude::*;

use super::Weighed;
use super::kernels::NONE;
use super::plan::{AttentionTiles, PADDING, PARTS, SCORE_PADDING};
use crate::HeadLayout;
use steps::{correct, largest_scores, mix, score, store, weigh};

/// By how much a score may exceed the maximum that weights are relative to. e^5 is far below the
/// largest f16.
const GROWTH: f32 = 5.0;

/// Shared memory of a cube's strips.
#[derive(CubeType)]
struct Strips<E: Float> {
    /// `[rows, scored]`; also used to move elements into and out of matrices.
    scores: SharedMemory<f32>,
    /// `[rows, scored]`
    weights: SharedMemory<E>,
    /// By row: where its own context ends; 0 if the tile has no such token.
    ends: SharedMemory<u32>,
    /// By part of a row, with the same maximum in all parts: the largest score of the part, the
    /// maximum that weights are relative to, and the sum of the part's weights.
    largest: SharedMemory<f32>,
    maxima: SharedMemory<f32>,
    sums: SharedMemory<f32>,
    /// By row: the factor by which to rescale the sums so far.
    corrections: SharedMemory<f32>,
    /// By strip, or one for all strips: whether a factor differs from 1.
    grown: SharedMemory<u32>,
}

/// A barrier for the units of one subgroup, or for the cube where that is not enough.
#[cube]
fn strip_barrier(#[comptime] subgroup_barrier: bool) {
    if comptime!(subgroup_barrier) {
        sync_plane();
    } else {
        sync_cube();
    }
}

/// As [`attend`](super::kernels::attend), for the tiles from `first_tile` on.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
pub fn attend_tiles<E: Float, O: Float, N: Size>(
    q: &Array<Vector<E, N>>,
    k_pool: &Array<Vector<E, N>>,
    v_pool: &Array<Vector<E, N>>,
    positions: &Array<i32>,
    table_start: &Array<i32>,
    slot_table: &Array<i32>,
    blocks: &Array<i32>,
    sinks: &Array<E>,
    out: &mut Array<O>,
    scale: f32,
    cap: f32,
    window: u32,
    first_tile: u32,
    #[comptime] layout: HeadLayout,
    #[comptime] tiles: AttentionTiles,
    #[comptime] weighed: Weighed,
    #[comptime] whole: bool,
    #[define(E)] _dtype: StorageType,
    #[define(O)] _target: StorageType,
) {
    let vector = N::value();
    let heads = comptime!(layout.heads);
    let kv_heads = comptime!(layout.kv_heads);
    let head_dim = comptime!(layout.head_dim);
    let shared = comptime!(layout.tile_heads());
    let rows = comptime!(tiles.rows());
    let threads = comptime!(tiles.threads());
    let subgroup_barrier = comptime!(tiles.subgroup_barrier);
    let lanes = comptime!(head_dim / vector);
    // Vectors of a row in shared memory.
    let stride = comptime!((head_dim + PADDING) / vector);
    let unit = UNIT_POS as usize;

    // This cube's rows of the tile, and their tokens from `near` to `far`.
    let cubes = comptime!(tiles.cubes());
    let first_head = CUBE_POS_X as usize / cubes * shared;
    let first_row = CUBE_POS_X as usize % cubes * rows;
    let kv_head = first_head / comptime!(heads / kv_heads);
    let tile = (first_tile + CUBE_POS_Y) as usize;
    let first = blocks[2 * tile] as usize;
    let count = blocks[2 * tile + 1] as usize;
    let near = first_row / shared;
    let none_here = near >= count;
    if none_here {
        terminate!();
    }
    let far = cubecl::prelude::min((first_row + rows - 1) / shared, count - 1);

    // The positions that some of these tokens attend, and this split's share of them.
    let end = positions[first + far] as u32 + 1;
    let lowest = positions[first + near] as u32 + 1;
    let mut start = 0u32;
    if window > 0 && lowest > window {
        start = lowest - window;
    }
    let each = (end - start).div_ceil(CUBE_COUNT_Z);
    let from = cubecl::prelude::min(start + CUBE_POS_Z * each, end);
    let to = cubecl::prelude::min(from + each, end);
    if comptime!(!whole) {
        let nothing = from == to;
        if nothing {
            for row in range_stepped(unit, rows, threads) {
                let token = (first_row + row) / shared;
                if token < count {
                    let head = (first + token) * heads + first_head + (first_row + row) % shared;
                    let at = head * CUBE_COUNT_Z as usize + CUBE_POS_Z as usize;
                    out[at * comptime!(head_dim + 2) + head_dim] = O::cast_from(f32::new(NONE));
                }
            }
            terminate!();
        }
    }

    // Matrices are loaded from addresses that are multiples of 32 bytes.
    let mut queries =
        SharedMemory::<Vector<E, N>>::new_aligned(comptime!(rows * stride), comptime!(32usize));
    let mut keys = SharedMemory::<Vector<E, N>>::new_aligned(
        comptime!(tiles.positions * stride),
        comptime!(32usize),
    );
    let mut values = SharedMemory::<Vector<E, N>>::new_aligned(
        comptime!(tiles.positions * stride),
        comptime!(32usize),
    );
    let mut found = SharedMemory::<u32>::new(comptime!(tiles.positions));
    let mut strips = Strips::<E> {
        scores: SharedMemory::<f32>::new_aligned(
            comptime!(rows * (tiles.scored + SCORE_PADDING)),
            comptime!(32usize),
        ),
        weights: SharedMemory::<E>::new_aligned(
            comptime!(rows * (tiles.scored + PADDING)),
            comptime!(32usize),
        ),
        ends: SharedMemory::<u32>::new(rows),
        largest: SharedMemory::<f32>::new(comptime!(rows * PARTS)),
        maxima: SharedMemory::<f32>::new(comptime!(rows * PARTS)),
        sums: SharedMemory::<f32>::new(comptime!(rows * PARTS)),
        corrections: SharedMemory::<f32>::new(rows),
        grown: SharedMemory::<u32>::new(comptime!(tiles.strips)),
    };
    // Rows without a token compute with another row's query, and their result is not written.
    for i in range_stepped(unit, comptime!(rows * lanes), threads) {
        let row = first_row + i / lanes;
        let token = cubecl::prelude::min(row / shared, count - 1);
        let head = (first + token) * heads + first_head + row % shared;
        queries[i / lanes * stride + i % lanes] = q[head * lanes + i % lanes];
    }
    for row in range_stepped(unit, rows, threads) {
        let token = (first_row + row) / shared;
        let mut own = 0u32;
        if token < count {
            own = positions[first + token] as u32 + 1;
        }
        strips.ends[row] = own;
    }
    for part in range_stepped(unit, comptime!(rows * PARTS), threads) {
        strips.maxima[part] = f32::new(NONE);
        strips.sums[part] = 0.0f32;
        if comptime!(weighed.sinks) {
            // As in `attend`; the first part of a row holds this part of its sum.
            if CUBE_POS_Z == 0 {
                let head = first_head + (first_row + part / PARTS) % shared;
                strips.maxima[part] = f32::cast_from(sinks[head]);
                if part % PARTS == 0 {
                    strips.sums[part] = 1.0f32;
                }
            }
        }
    }
    // Slots beyond the last position repeat the last one; no row gives them weight.
    let table = table_start[first] as u32;
    for i in range_stepped(unit, comptime!(tiles.positions), threads) {
        let position = cubecl::prelude::min(from + i as u32, to - 1);
        let slot = slot_table[(table + position) as usize] as usize;
        found[i] = ((slot * kv_heads + kv_head) * lanes) as u32;
    }
    let columns = comptime!(head_dim / tiles.n);
    let mut mixed = Sequence::<cmma::Matrix<f32>>::new();
    #[unroll]
    for _ in 0..columns {
        mixed.push(cmma::Matrix::<f32>::from_value(
            cmma::MatrixIdent::Accumulator,
            tiles.m,
            tiles.n,
            tiles.k,
            cmma::MatrixLayout::Undefined,
            0.0f32,
        ));
    }
    let strip = PLANE_POS as usize;
    let busy = strip < comptime!(tiles.strips);
    let mut flag = 0usize;
    if comptime!(subgroup_barrier) {
        flag = strip;
    }
    sync_cube();

    let total = comptime!(tiles.positions * lanes);
    let even = comptime!(total.is_multiple_of(threads));
    for turn in 0..(to - from).div_ceil(tiles.positions as u32) {
        let first_position = from + turn * tiles.positions as u32;
        #[unroll]
        for step in 0..comptime!(total.div_ceil(threads)) {
            let i = step * threads + unit;
            if even || i < total {
                let at = found[i / lanes] as usize + i % lanes;
                let here = i / lanes * stride + i % lanes;
                keys[here] = k_pool[at];
                values[here] = v_pool[at];
            }
        }
        sync_cube();
        // Read the slots of the next tile while this one is computed.
        for i in range_stepped(unit, comptime!(tiles.positions), threads) {
            let position = first_position + tiles.positions as u32 + i as u32;
            let position = cubecl::prelude::min(position, to - 1);
            let slot = slot_table[(table + position) as usize] as usize;
            found[i] = ((slot * kv_heads + kv_head) * lanes) as u32;
        }
        let here = cubecl::prelude::min(to - first_position, tiles.positions as u32);
        for group in 0..here.div_ceil(tiles.scored as u32) {
            let first_column = group as usize * tiles.scored;
            let position = first_position + first_column as u32;
            if busy {
                score::<E, N>(
                    &queries,
                    &keys,
                    &mut strips,
                    strip,
                    first_column,
                    stride,
                    head_dim,
                    tiles,
                );
            }
            strip_barrier(subgroup_barrier);
            if busy {
                largest_scores::<E>(
                    &mut strips,
                    strip,
                    position,
                    to,
                    scale,
                    cap,
                    window,
                    tiles,
                    weighed,
                );
                if UNIT_POS_PLANE == 0 {
                    strips.grown[flag] = 0u32;
                }
            }
            strip_barrier(subgroup_barrier);
            if busy {
                weigh::<E>(
                    &mut strips,
                    strip,
                    flag,
                    position,
                    to,
                    scale,
                    cap,
                    window,
                    tiles,
                    weighed,
                );
            }
            strip_barrier(subgroup_barrier);
            let grown = strips.grown[flag] != 0;
            if grown {
                correct::<E>(&mut strips, &mixed, strip, busy, columns, tiles);
            }
            if busy {
                mix::<E, N>(
                    &strips,
                    &values,
                    &mixed,
                    strip,
                    first_column,
                    stride,
                    columns,
                    tiles,
                );
            }
        }
        sync_cube();
    }

    #[unroll]
    for column in 0..columns {
        if busy {
            store::<E>(&mut strips, mixed.index(column), strip, tiles);
        }
        strip_barrier(subgroup_barrier);
        if busy {
            for i in range_stepped(
                UNIT_POS_PLANE as usize,
                comptime!(tiles.m * tiles.n),
                PLANE_DIM as usize,
            ) {
                let row = strip * tiles.m + i / tiles.n;
                let token = (first_row + row) / shared;
                if token < count {
                    let head = (first + token) * heads + first_head + (first_row + row) % shared;
                    let element = column * tiles.n + i % tiles.n;
                    let value =
                        strips.scores[row * comptime!(tiles.scored + SCORE_PADDING) + i % tiles.n];
                    let sum = strips.sums[row * PARTS] + strips.sums[row * PARTS + 1];
                    if comptime!(whole) {
                        out[head * head_dim + element] = O::cast_from(value / sum);
                    } else {
                        let split = head * CUBE_COUNT_Z as usize + CUBE_POS_Z as usize;
                        let at = split * comptime!(head_dim + 2);
                        out[at + element] = O::cast_from(value);
                        if element == 0 {
                            out[at + head_dim] = O::cast_from(strips.maxima[row * PARTS]);
                            out[at + head_dim + 1] = O::cast_from(sum);
                        }
                    }
                }
            }
        }
        strip_barrier(subgroup_barrier);
    }
}
