//! The steps of the strips for one tile of positions, in their order.

use cubecl::prelude::*;

use super::super::Weighed;
use super::super::kernels::{ALMOST_NONE, NONE};
use super::super::plan::{AttentionTiles, PADDING, PARTS, SCORE_PADDING};
use super::{GROWTH, Strips, strip_barrier};
use crate::cube::elementwise::bounded;

/// Computes the scores of a strip's rows for the positions from `first_column` of the tile on.
#[cube]
#[allow(clippy::too_many_arguments)]
pub fn score<E: Float, N: Size>(
    queries: &SharedMemory<Vector<E, N>>,
    keys: &SharedMemory<Vector<E, N>>,
    strips: &mut Strips<E>,
    strip: usize,
    first_column: usize,
    #[comptime] stride: usize,
    #[comptime] head_dim: usize,
    #[comptime] tiles: AttentionTiles,
) {
    let vector = N::value();
    let columns = comptime!(tiles.scored / tiles.n);
    let mut sums = Sequence::<cmma::Matrix<f32>>::new();
    #[unroll]
    for _ in 0..columns {
        sums.push(cmma::Matrix::<f32>::from_value(
            cmma::MatrixIdent::Accumulator,
            tiles.m,
            tiles.n,
            tiles.k,
            cmma::MatrixLayout::Undefined,
            0.0f32,
        ));
    }
    #[unroll]
    for step in 0..comptime!(head_dim / tiles.k) {
        let at = strip * comptime!(tiles.m * stride) + comptime!(step * tiles.k / vector);
        let query = cmma::Matrix::<Vector<E, N>>::from_slice(
            cmma::MatrixIdent::A,
            tiles.m,
            tiles.n,
            tiles.k,
            cmma::MatrixLayout::RowMajor,
            &queries.slice(
                at,
                at + comptime!((tiles.m - 1) * stride + tiles.k / vector),
            ),
            comptime!((stride * vector) as u32),
        );
        #[unroll]
        for column in 0..columns {
            let at = (first_column + comptime!(column * tiles.n)) * stride
                + comptime!(step * tiles.k / vector);
            let key = cmma::Matrix::<Vector<E, N>>::from_slice(
                cmma::MatrixIdent::B,
                tiles.m,
                tiles.n,
                tiles.k,
                cmma::MatrixLayout::ColMajor,
                &keys.slice(
                    at,
                    at + comptime!((tiles.n - 1) * stride + tiles.k / vector),
                ),
                comptime!((stride * vector) as u32),
            );
            let sum = sums.index(column);
            cmma::execute::<Vector<E, N>, Vector<E, N>, f32, f32>(&query, &key, sum, sum);
        }
    }
    let stride = comptime!(tiles.scored + SCORE_PADDING);
    #[unroll]
    for column in 0..columns {
        let at = strip * comptime!(tiles.m * stride) + comptime!(column * tiles.n);
        cmma::store::<f32, f32>(
            &mut strips
                .scores
                .slice_mut(at, at + comptime!((tiles.m - 1) * stride + tiles.n)),
            sums.index(column),
            comptime!(stride as u32),
            cmma::MatrixLayout::RowMajor,
        );
    }
}

/// True if a row whose context ends at `end` attends `position`. The split ends at `to`.
#[cube]
pub fn sees(position: u32, end: u32, to: u32, window: u32) -> bool {
    position < to && position < end && (window == 0 || position + window >= end)
}

/// The score that a product of a query and a key gives.
#[cube]
fn scored(product: f32, scale: f32, cap: f32, #[comptime] weighed: Weighed) -> f32 {
    let mut score = product * scale;
    if comptime!(weighed.capped) {
        score = bounded(score, cap);
    }
    score
}

/// The column that a unit reads at `step` of its part of a row. Each row starts at another column,
/// so that units read from different banks.
#[cube]
pub fn column(row: usize, part: usize, step: usize, #[comptime] each: usize) -> usize {
    part * each + (step + row) % each
}

/// Scales a strip's scores and finds the largest one that each part of a row attends.
#[cube]
#[allow(clippy::too_many_arguments)]
pub fn largest_scores<E: Float>(
    strips: &mut Strips<E>,
    strip: usize,
    first_position: u32,
    to: u32,
    scale: f32,
    cap: f32,
    window: u32,
    #[comptime] tiles: AttentionTiles,
    #[comptime] weighed: Weighed,
) {
    let each = comptime!(tiles.scored / PARTS);
    let stride = comptime!(tiles.scored + SCORE_PADDING);
    for i in range_stepped(
        UNIT_POS_PLANE as usize,
        comptime!(tiles.m * PARTS),
        PLANE_DIM as usize,
    ) {
        let row = strip * tiles.m + i / PARTS;
        let part = i % PARTS;
        let end = strips.ends[row];
        let mut largest = f32::new(NONE);
        for step in 0..each {
            let column = column(row, part, step, each);
            let product = strips.scores[row * stride + column];
            let score = scored(product, scale, cap, weighed);
            let seen = sees(first_position + column as u32, end, to, window);
            largest = cubecl::prelude::max(largest, select(seen, score, f32::new(NONE)));
        }
        strips.largest[row * PARTS + part] = largest;
    }
}

/// Turns a strip's scores into weights, and updates the rows' maxima and sums.
#[cube]
#[allow(clippy::too_many_arguments)]
pub fn weigh<E: Float>(
    strips: &mut Strips<E>,
    strip: usize,
    flag: usize,
    first_position: u32,
    to: u32,
    scale: f32,
    cap: f32,
    window: u32,
    #[comptime] tiles: AttentionTiles,
    #[comptime] weighed: Weighed,
) {
    let each = comptime!(tiles.scored / PARTS);
    let stride = comptime!(tiles.scored + SCORE_PADDING);
    for i in range_stepped(
        UNIT_POS_PLANE as usize,
        comptime!(tiles.m * PARTS),
        PLANE_DIM as usize,
    ) {
        let row = strip * tiles.m + i / PARTS;
        let part = i % PARTS;
        let own = row * PARTS + part;
        let end = strips.ends[row];
        let old = strips.maxima[own];
        let largest =
            cubecl::prelude::max(strips.largest[row * PARTS], strips.largest[row * PARTS + 1]);
        let mut max = old;
        let mut correction = 1.0f32;
        if largest > old + GROWTH {
            max = largest;
            correction = f32::exp(old - largest);
            // Before the first attended position there is nothing to rescale.
            if old > f32::new(ALMOST_NONE) {
                strips.grown[flag] = 1u32;
            }
        }
        let mut sum = strips.sums[own] * correction;
        for step in 0..each {
            let column = column(row, part, step, each);
            let product = strips.scores[row * stride + column];
            let score = scored(product, scale, cap, weighed);
            let seen = sees(first_position + column as u32, end, to, window);
            let weight = E::cast_from(select(seen, f32::exp(score - max), 0.0f32));
            strips.weights[row * comptime!(tiles.scored + PADDING) + column] = weight;
            // Sum the rounded weights, because these are multiplied with the values.
            sum += f32::cast_from(weight);
        }
        strips.sums[own] = sum;
        strips.maxima[own] = max;
        if part == 0 {
            strips.corrections[row] = correction;
        }
    }
}

/// Stores a strip's matrix in place of its scores.
#[cube]
pub fn store<E: Float>(
    strips: &mut Strips<E>,
    matrix: &cmma::Matrix<f32>,
    strip: usize,
    #[comptime] tiles: AttentionTiles,
) {
    let stride = comptime!(tiles.scored + SCORE_PADDING);
    let at = strip * comptime!(tiles.m * stride);
    cmma::store::<f32, f32>(
        &mut strips
            .scores
            .slice_mut(at, at + comptime!((tiles.m - 1) * stride + tiles.n)),
        matrix,
        comptime!(stride as u32),
        cmma::MatrixLayout::RowMajor,
    );
}

/// Multiplies each row of the sums so far with its factor. All units that the barriers wait for
/// have to call this.
#[cube]
pub fn correct<E: Float>(
    strips: &mut Strips<E>,
    mixed: &Sequence<cmma::Matrix<f32>>,
    strip: usize,
    busy: bool,
    #[comptime] columns: usize,
    #[comptime] tiles: AttentionTiles,
) {
    let stride = comptime!(tiles.scored + SCORE_PADDING);
    #[unroll]
    for column in 0..columns {
        if busy {
            store::<E>(strips, mixed.index(column), strip, tiles);
        }
        strip_barrier(tiles.subgroup_barrier);
        if busy {
            for i in range_stepped(
                UNIT_POS_PLANE as usize,
                comptime!(tiles.m * tiles.n),
                PLANE_DIM as usize,
            ) {
                let row = strip * tiles.m + i / tiles.n;
                let at = row * stride + i % tiles.n;
                strips.scores[at] = strips.scores[at] * strips.corrections[row];
            }
        }
        strip_barrier(tiles.subgroup_barrier);
        if busy {
            let at = strip * comptime!(tiles.m * stride);
            cmma::load_with_layout::<f32, f32>(
                mixed.index(column),
                &strips
                    .scores
                    .slice(at, at + comptime!((tiles.m - 1) * stride + tiles.n)),
                comptime!(stride as u32),
                cmma::MatrixLayout::RowMajor,
            );
        }
        strip_barrier(tiles.subgroup_barrier);
    }
}

/// Adds the weighted values of the positions from `first_column` of the tile on to the sums.
#[cube]
#[allow(clippy::too_many_arguments)]
pub fn mix<E: Float, N: Size>(
    strips: &Strips<E>,
    values: &SharedMemory<Vector<E, N>>,
    mixed: &Sequence<cmma::Matrix<f32>>,
    strip: usize,
    first_column: usize,
    #[comptime] stride: usize,
    #[comptime] columns: usize,
    #[comptime] tiles: AttentionTiles,
) {
    let vector = N::value();
    let width = comptime!(tiles.scored + PADDING);
    #[unroll]
    for step in 0..comptime!(tiles.scored / tiles.k) {
        let at = strip * comptime!(tiles.m * width) + comptime!(step * tiles.k);
        let weights = cmma::Matrix::<E>::from_slice(
            cmma::MatrixIdent::A,
            tiles.m,
            tiles.n,
            tiles.k,
            cmma::MatrixLayout::RowMajor,
            &strips
                .weights
                .slice(at, at + comptime!((tiles.m - 1) * width + tiles.k)),
            comptime!(width as u32),
        );
        #[unroll]
        for column in 0..columns {
            let at = (first_column + comptime!(step * tiles.k)) * stride
                + comptime!(column * tiles.n / vector);
            let value = cmma::Matrix::<Vector<E, N>>::from_slice(
                cmma::MatrixIdent::B,
                tiles.m,
                tiles.n,
                tiles.k,
                cmma::MatrixLayout::RowMajor,
                &values.slice(
                    at,
                    at + comptime!((tiles.k - 1) * stride + tiles.n / vector),
                ),
                comptime!((stride * vector) as u32),
            );
            let sum = mixed.index(column);
            cmma::execute::<E, Vector<E, N>, f32, f32>(&weights, &value, sum, sum);
        }
    }
}
