//! Scores become weights, tile by tile: online softmax (Milakov and Gimelshein, arXiv 1805.02867).

use super::rows::Rows;
use super::{Query, TILE};
use crate::cpu::pools::Pooled;
use crate::cpu::simd::{Simd, exp, tanh};

/// Lanes of maximums and sums. The number is the same for all vectors, and so is the order of a sum.
const LANES: usize = 16;

/// The difference to the largest score below which a weight is zero.
const LEAST_DIFFERENCE: f32 = -60.0;

/// The scores of a query with the keys of a tile, and then its weights.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct Scores(pub [f32; TILE]);

/// The scales of the keys and of the values of a tile, which only pools of integers have.
pub struct Scales {
    pub keys: [f32; TILE],
    pub values: [f32; TILE],
}

impl Scales {
    /// The scales of the rows that begin at `starts`, if the pools have any.
    #[inline(always)]
    pub fn of<E: Pooled>(rows: &Rows<'_, E>, starts: &[usize]) -> Option<Self> {
        if E::SCALE == 0 {
            return None;
        }
        let mut scales = Self {
            keys: [0.0; TILE],
            values: [0.0; TILE],
        };
        rows.scales(rows.k_pool, starts, &mut scales.keys);
        rows.scales(rows.v_pool, starts, &mut scales.values);
        Some(scales)
    }
}

/// Turns the scores of the tile that begins at position `from` into weights, and scales the outputs and
/// sums that queries have of the tiles before. Each query must attend at least one position of the tile.
/// `cap` bounds scores, as [`AttentionOptions`](crate::AttentionOptions) describes.
#[inline(always)]
pub fn weigh<S: Simd>(
    queries: &mut [Query<'_>],
    scores: &mut [Scores],
    from: usize,
    cap: Option<f32>,
    scales: Option<&Scales>,
) {
    for (queries, scores) in queries.chunks_mut(LANES).zip(scores.chunks_mut(LANES)) {
        let mut corrections = [0.0; LANES];
        let each = queries.iter_mut().zip(&mut *scores);
        for ((query, scores), correction) in each.zip(&mut corrections) {
            let attended = query.attended(from);
            let scores = &mut scores.0[..attended.next_multiple_of(LANES)];
            if let Some(Scales { keys, .. }) = scales {
                multiply(scores, keys);
            }
            if let Some(cap) = cap {
                for score in &mut *scores {
                    *score = cap * tanh::<S>(*score / cap);
                }
            }
            // These get the weight zero, so that whole vectors can be calculated.
            scores[attended..].fill(f32::NEG_INFINITY);
            let max = largest(scores.as_chunks().0, query.max);
            *correction = query.max - max;
            query.max = max;
        }
        for correction in &mut corrections {
            *correction = weight::<S>(*correction);
        }
        for ((query, scores), correction) in queries.iter_mut().zip(scores).zip(corrections) {
            let attended = query.attended(from);
            let weights = &mut scores.0[..attended.next_multiple_of(LANES)];
            let sum = weights_and_sum::<S>(weights.as_chunks_mut().0, query.max);
            query.sum = query.sum * correction + sum;
            if correction != 1.0 {
                for out in &mut *query.out {
                    *out *= correction;
                }
            }
            if let Some(Scales { values, .. }) = scales {
                multiply(weights, values);
            }
        }
    }
}

/// Multiplies each number by the factor in the same place.
#[inline(always)]
fn multiply(numbers: &mut [f32], factors: &[f32; TILE]) {
    for (number, factor) in numbers.iter_mut().zip(factors) {
        *number *= factor;
    }
}

/// The largest of `start` and the scores. NaN is not larger than anything.
#[inline(always)]
fn largest(scores: &[[f32; LANES]], start: f32) -> f32 {
    let mut lanes = [start; LANES];
    for scores in scores {
        for (lane, score) in lanes.iter_mut().zip(scores) {
            *lane = larger(*lane, *score);
        }
    }
    combined(lanes, larger)
}

/// `b` if it is larger than `a`, and `a` otherwise.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// Turns scores into weights, given the largest score, and returns their sum.
#[inline(always)]
fn weights_and_sum<S: Simd>(scores: &mut [[f32; LANES]], max: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    for scores in scores {
        for (lane, score) in lanes.iter_mut().zip(scores) {
            *score = weight::<S>(*score - max);
            *lane += *score;
        }
    }
    combined(lanes, |a, b| a + b)
}

/// Combines the lanes: the first half with the last one, and so on.
#[inline(always)]
fn combined(mut lanes: [f32; LANES], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = combine(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// The weight of a score, given its difference to the largest one, which is at most zero. Weights below e^-60
/// are zero: they do not change the sum of the weights, which is at least 1, but the products of the smallest
/// with values would be subnormal numbers, with which Intel's CPUs calculate many times slower.
#[inline(always)]
pub fn weight<S: Simd>(difference: f32) -> f32 {
    match difference < LEAST_DIFFERENCE {
        true => 0.0,
        false => exp::<S>(difference),
    }
}
