//! Products of queries with keys, and of weights with values.

use super::Query;
use super::panel::Panel;
use super::softmax::Scores;
use crate::cpu::pools::Pooled;
use crate::cpu::simd::Simd;

/// The most queries whose sums are in registers at once, with [`wide`] vectors each.
const QUERIES: usize = 6;

/// The vectors of each of `count` queries whose sums are in registers at once. AVX-512 has twice as many
/// registers as the others. With few queries, more vectors are needed: one multiplication would wait for
/// the one before.
const fn wide(lanes: usize, count: usize) -> usize {
    if lanes == 16 || count <= 2 { 4 } else { 2 }
}

/// The number of queries of the next block, where `left` are left, at least one: blocks have about
/// the same number.
fn block(left: usize) -> usize {
    left.div_ceil(left.div_ceil(QUERIES))
}

/// Sets the scores of each query to its dot products with the first `count` keys of the panel, times
/// `scale`. Those behind mean nothing. A dot product adds the elements in their order.
///
/// # Safety
/// The CPU must have `S`'s features, the panel must have `count` keys, at most a tile, and queries must have
/// as many elements as these.
#[inline(always)]
pub unsafe fn score<S: Simd>(
    mut queries: &[Query<'_>],
    panel: &Panel,
    count: usize,
    scale: f32,
    mut scores: &mut [Scores],
) {
    while !queries.is_empty() {
        let (now, later) = queries.split_at(block(queries.len()));
        let (to, rest) = scores.split_at_mut(now.len());
        // SAFETY: the caller's guarantees are the same.
        unsafe {
            match now.len() {
                1 => score_block::<S, 1>(now, panel, count, scale, to),
                2 => score_block::<S, 2>(now, panel, count, scale, to),
                3 => score_block::<S, 3>(now, panel, count, scale, to),
                4 => score_block::<S, 4>(now, panel, count, scale, to),
                5 => score_block::<S, 5>(now, panel, count, scale, to),
                _ => score_block::<S, QUERIES>(now, panel, count, scale, to),
            }
        }
        (queries, scores) = (later, rest);
    }
}

/// [`score`] for a block of `COUNT` queries.
///
/// # Safety
/// As for [`score`].
#[inline(always)]
unsafe fn score_block<S: Simd, const COUNT: usize>(
    queries: &[Query<'_>],
    panel: &Panel,
    count: usize,
    scale: f32,
    scores: &mut [Scores],
) {
    let q: [&[f32]; COUNT] = std::array::from_fn(|i| queries[i].q);
    let (mut from, vectors) = (0, count.div_ceil(S::LANES));
    while from < vectors {
        // SAFETY: the caller guarantees the features of `S`, and so many vectors are left.
        unsafe {
            match (vectors - from).min(wide(S::LANES, COUNT)) {
                1 => {
                    score_vectors::<S, COUNT, 1>(q, panel, from * S::LANES, scale, scores);
                    from += 1;
                }
                2 | 3 => {
                    score_vectors::<S, COUNT, 2>(q, panel, from * S::LANES, scale, scores);
                    from += 2;
                }
                _ => {
                    score_vectors::<S, COUNT, 4>(q, panel, from * S::LANES, scale, scores);
                    from += 4;
                }
            }
        }
    }
}

/// [`score`] for `COUNT` queries and the `WIDE` vectors of keys from key `from` of the panel on.
///
/// # Safety
/// As for [`score`], and the vectors must be within the panel.
#[inline(always)]
unsafe fn score_vectors<S: Simd, const COUNT: usize, const WIDE: usize>(
    q: [&[f32]; COUNT],
    panel: &Panel,
    from: usize,
    scale: f32,
    scores: &mut [Scores],
) {
    // SAFETY: the caller guarantees the features of `S` and that the vectors are within the panel. A
    // query has as many elements as the panel has columns.
    unsafe {
        let mut sums = [[S::zero(); WIDE]; COUNT];
        for (element, column) in panel.columns().enumerate() {
            let mut keys = [S::zero(); WIDE];
            for (i, keys) in keys.iter_mut().enumerate() {
                *keys = S::load_f32(column.as_ptr().add(from + i * S::LANES));
            }
            for (sums, q) in sums.iter_mut().zip(q) {
                let element = S::splat(*q.get_unchecked(element));
                for (sum, keys) in sums.iter_mut().zip(keys) {
                    *sum = sum.add_mul(element, keys);
                }
            }
        }
        let scale = S::splat(scale);
        for (sums, scores) in sums.iter().zip(scores) {
            let scores = &mut scores.0[from..][..WIDE * S::LANES];
            for (i, sum) in sums.iter().enumerate() {
                sum.mul(scale).store(scores.as_mut_ptr().add(i * S::LANES));
            }
        }
    }
}

/// Adds values, as many as each query attends, to its output, times its weights, in their order. They
/// are those of the positions from `from` on, and begin at `starts` in the pool.
///
/// # Safety
/// The CPU must have `S`'s features, and the values must be within the pool and have as many elements as
/// each output.
#[inline(always)]
pub unsafe fn mix<S: Simd, E: Pooled>(
    mut queries: &mut [Query<'_>],
    mut weights: &[Scores],
    values: (&[E], &[usize]),
    from: usize,
) {
    while let Some(first) = queries.first() {
        // Queries of a block attend the same positions.
        let count = first.attended(from);
        let same = queries.partition_point(|query| query.attended(from) == count);
        let (now, later) = queries.split_at_mut(block(same));
        let (factors, rest) = weights.split_at(now.len());
        let values = (values.0, &values.1[..count]);
        // SAFETY: the caller guarantees the features of `S` and the values.
        unsafe {
            match now.len() {
                1 => mix_block::<S, E, 1>(now, factors, values),
                2 => mix_block::<S, E, 2>(now, factors, values),
                3 => mix_block::<S, E, 3>(now, factors, values),
                4 => mix_block::<S, E, 4>(now, factors, values),
                5 => mix_block::<S, E, 5>(now, factors, values),
                _ => mix_block::<S, E, QUERIES>(now, factors, values),
            }
        }
        (queries, weights) = (later, rest);
    }
}

/// [`mix`] for a block of `COUNT` queries.
///
/// # Safety
/// As for [`mix`].
#[inline(always)]
unsafe fn mix_block<S: Simd, E: Pooled, const COUNT: usize>(
    queries: &mut [Query<'_>],
    weights: &[Scores],
    (pool, starts): (&[E], &[usize]),
) {
    let dim = queries[0].out.len();
    let (whole, mut from) = (dim / S::LANES * S::LANES, 0);
    while from < whole {
        let vectors = ((whole - from) / S::LANES).min(wide(S::LANES, COUNT));
        // SAFETY: the caller guarantees the features of `S` and the values; so many vectors from `from`
        // on fit into `whole`.
        unsafe {
            match vectors {
                1 => mix_vectors::<S, E, COUNT, 1>(queries, weights, (pool, starts), from),
                2 => mix_vectors::<S, E, COUNT, 2>(queries, weights, (pool, starts), from),
                3 => mix_vectors::<S, E, COUNT, 3>(queries, weights, (pool, starts), from),
                _ => mix_vectors::<S, E, COUNT, 4>(queries, weights, (pool, starts), from),
            }
        }
        from += vectors * S::LANES;
    }
    for (query, weights) in queries.iter_mut().zip(weights) {
        for i in whole..dim {
            for (weight, start) in weights.0.iter().zip(starts) {
                query.out[i] += weight * pool[start + i].widen();
            }
        }
    }
}

/// [`mix`] for `COUNT` queries and `WIDE` vectors of the head, from element `from` on.
///
/// # Safety
/// As for [`mix`], and the vectors must lie within the head.
#[inline(always)]
unsafe fn mix_vectors<S: Simd, E: Pooled, const COUNT: usize, const WIDE: usize>(
    queries: &mut [Query<'_>],
    weights: &[Scores],
    (pool, starts): (&[E], &[usize]),
    from: usize,
) {
    // SAFETY: the caller guarantees the features of `S`, the values, and that `WIDE` vectors from `from`
    // on lie within a head, which is what each value and each output is.
    unsafe {
        let mut sums = [[S::zero(); WIDE]; COUNT];
        for (sums, query) in sums.iter_mut().zip(&*queries) {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = S::load_f32(query.out.as_ptr().add(from + i * S::LANES));
            }
        }
        let weights: [&Scores; COUNT] = std::array::from_fn(|i| &weights[i]);
        for (at, start) in starts.iter().enumerate() {
            let value = pool.as_ptr().add(*start);
            let mut vectors = [S::zero(); WIDE];
            for (i, vector) in vectors.iter_mut().enumerate() {
                *vector = E::load::<S>(value.add(from + i * S::LANES));
            }
            for (sums, weights) in sums.iter_mut().zip(weights) {
                let weight = S::splat(*weights.0.get_unchecked(at));
                for (sum, vector) in sums.iter_mut().zip(vectors) {
                    *sum = sum.add_mul(weight, vector);
                }
            }
        }
        for (sums, query) in sums.iter().zip(queries) {
            for (i, sum) in sums.iter().enumerate() {
                sum.store(query.out.as_mut_ptr().add(from + i * S::LANES));
            }
        }
    }
}
