//! Attention over slot indices, with online softmax. A task is some KV heads of a few tokens that follow
//! each other: for each tile of slots, it computes one head after another, so that memory is read in the
//! order in which it lies there, and each head for all tokens, so that it is read once. How many heads
//! and tokens a task has changes no sum.

mod products;
#[cfg(test)]
mod tests;

use std::ops::Range;

use rayon::prelude::*;

use super::pools::Pooled;
use super::simd::{Simd, Task, dispatch, exp, tanh};
use crate::HeadLayout;
use products::{MAX_HEADS, Rows, SLOTS, mix};

/// Positions that are scored before their values are added up.
const TILE: usize = 64;
/// Tasks per thread that keep all threads busy almost to the end, whatever their number.
const MANY_PER_THREAD: usize = 8;
/// The most tokens of a task. They share the reads of keys and values.
const MOST_TOKENS: usize = 8;

/// The difference to the largest score below which a weight is zero.
const LEAST_DIFFERENCE: f32 = -60.0;

/// The slots of the tokens of a batch, as [`RaggedIndex`](crate::RaggedIndex) describes them.
pub struct SlotTable<'a> {
    pub positions: &'a [i32],
    pub start: &'a [i32],
    pub slots: &'a [i32],
    /// How many of the last positions a token attends.
    pub window: usize,
}

impl SlotTable<'_> {
    /// The slots that a token attends, in order of position.
    fn visible(&self, token: usize) -> &[i32] {
        let end = self.positions[token] as usize + 1;
        let start = end.saturating_sub(self.window);
        let table = &self.slots[self.start[token] as usize..];
        &table[start..end]
    }

    /// Cuts the tokens into runs of at most `most`, which follow each other in a sequence and attend
    /// from the same position on: what a token attends begins with what the one before it attends.
    fn runs(&self, most: usize) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for (token, (position, start)) in self.positions.iter().zip(self.start).enumerate() {
            let follows = |run: &&mut Range<usize>| {
                run.len() < most
                    && *position == self.positions[token - 1] + 1
                    && *start == self.start[token - 1]
                    && (*position as usize) < self.window
            };
            match runs.last_mut().filter(follows) {
                Some(run) => run.end += 1,
                None => runs.push(token..token + 1),
            }
        }
        runs
    }

    /// The largest number of positions that a token attends, and the sum over all tokens.
    fn lengths(&self) -> (usize, usize) {
        let positions = self.positions.iter();
        let lengths = positions.map(|position| (*position as usize + 1).min(self.window));
        lengths.fold((0, 0), |(longest, total), length| {
            (longest.max(length), total + length)
        })
    }

    /// The number of positions that are read, and the number that are attended: summed over the
    /// last token of each sequence, and over all tokens.
    pub fn extent(&self) -> (usize, usize) {
        let tokens = self.positions.len();
        (0..tokens).fold((0, 0), |(read, seen), token| {
            let visible = self.visible(token).len();
            let last = token + 1 == tokens || self.start[token + 1] != self.start[token];
            (read + if last { visible } else { 0 }, seen + visible)
        })
    }
}

/// How scores become weights; see [`AttentionOptions`](crate::AttentionOptions).
pub struct Weighing<'a> {
    pub scale: f32,
    pub cap: Option<f32>,
    /// `[heads]`
    pub sinks: Option<&'a [f32]>,
}

impl Weighing<'_> {
    /// True if scores are only scaled.
    pub fn is_plain(&self) -> bool {
        self.cap.is_none() && self.sinks.is_none()
    }
}

/// `q` and `out` are `[tokens, heads, head_dim]`, the pools `[slots, kv_heads, E::SCALE + head_dim]`.
pub fn paged<E: Pooled>(
    q: &[f32],
    k_pool: &[E],
    v_pool: &[E],
    layout: HeadLayout,
    weighing: &Weighing<'_>,
    table: &SlotTable<'_>,
    out: &mut [f32],
) {
    let (tokens, group) = (table.positions.len(), layout.heads / layout.kv_heads);
    let threads = rayon::current_num_threads();
    let together = together(table.lengths(), tokens, layout.kv_heads, threads);
    let width = together * group * layout.head_dim;
    let mut places = q.chunks_exact(width).zip(out.chunks_exact_mut(width));
    let mut tasks = Vec::new();
    for run in table.runs((tokens / (MANY_PER_THREAD * threads)).clamp(1, MOST_TOKENS)) {
        let mut heads: Vec<Vec<Query<'_>>> = Vec::new();
        heads.resize_with(layout.kv_heads / together, || Vec::with_capacity(run.len()));
        for token in run {
            for (heads, (q, out)) in heads.iter_mut().zip(places.by_ref()) {
                heads.push(Query {
                    q,
                    slots: table.visible(token),
                    out,
                });
            }
        }
        let of_run = heads.into_iter().enumerate();
        tasks.extend(of_run.map(|(index, queries)| (index * together, queries)));
    }
    tasks.into_par_iter().for_each(|(first, queries)| {
        dispatch(Heads {
            queries,
            k_pool,
            v_pool,
            layout,
            weighing,
            first,
        });
    });
}

/// The number of KV heads of a task: as many as leave the same number of tasks to each thread, or so
/// many that it does not matter, and no task with more than a thread's share of the work. `total` is
/// the sum of the numbers of positions that the tokens attend, and `longest` the largest.
fn together(
    (longest, total): (usize, usize),
    tokens: usize,
    kv_heads: usize,
    threads: usize,
) -> usize {
    let fits = |heads: &usize| {
        let tasks = tokens * kv_heads / heads;
        kv_heads.is_multiple_of(*heads)
            && longest * heads * threads <= total * kv_heads
            && (tasks.is_multiple_of(threads) || tasks >= MANY_PER_THREAD * threads)
    };
    (1..=kv_heads).rev().find(fits).unwrap_or(1)
}

/// The query heads of a token that share some KV heads.
struct Query<'a> {
    q: &'a [f32],
    slots: &'a [i32],
    out: &'a mut [f32],
}

/// Some KV heads of the tokens of a run, and the query heads that share them.
struct Heads<'a, E> {
    queries: Vec<Query<'a>>,
    k_pool: &'a [E],
    v_pool: &'a [E],
    layout: HeadLayout,
    weighing: &'a Weighing<'a>,
    /// The first KV head.
    first: usize,
}

impl<E: Pooled> Task for Heads<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (dim, stride) = (self.layout.head_dim, E::SCALE + self.layout.head_dim);
        let group = self.layout.heads / self.layout.kv_heads;
        let longest = self.queries.last().map_or(&[][..], |last| last.slots);
        let tokens = self.queries.len();
        let mut parts = Vec::new();
        for query in self.queries {
            query.out.fill(0.0);
            let kv_heads = query.q.chunks_exact(group * dim);
            let outs = query.out.chunks_exact_mut(group * dim);
            for (kv_head, (q, out)) in (self.first..).zip(kv_heads.zip(outs)) {
                // Keys and values are read and widened once for up to [`MAX_HEADS`] heads.
                let few = q.chunks(MAX_HEADS * dim);
                for (from, (q, out)) in few.zip(out.chunks_mut(MAX_HEADS * dim)).enumerate() {
                    let rows = Rows {
                        k_pool: self.k_pool,
                        v_pool: self.v_pool,
                        width: self.layout.kv_heads * stride,
                        at: kv_head * stride + E::SCALE,
                        dim,
                    };
                    let first = kv_head * group + from * MAX_HEADS;
                    parts.push(Part::new(q, rows, query.slots, self.weighing, first, out));
                }
            }
        }
        // The tokens of a head follow each other, so that its rows stay in the nearest cache.
        let of_token = parts.len() / tokens;
        for from in (0..longest.len()).step_by(TILE) {
            let tile =
                |slots: &[i32], from: usize| from.min(slots.len())..(from + TILE).min(slots.len());
            for head in 0..of_token {
                // The next rows are prefetched.
                let mut ahead = match head + 1 < of_token {
                    true => (parts[head + 1].rows, &longest[tile(longest, from)]),
                    false => (parts[0].rows, &longest[tile(longest, from + TILE)]),
                };
                for part in parts[head..].iter_mut().step_by(of_token) {
                    let slots = &part.slots[tile(part.slots, from)];
                    if slots.is_empty() {
                        continue;
                    }
                    // SAFETY: the caller guarantees the features of `S`, and a part has that many
                    // heads.
                    unsafe {
                        match part.q.len() / dim {
                            1 => part.attend::<S, 1>(slots, ahead),
                            2 => part.attend::<S, 2>(slots, ahead),
                            3 => part.attend::<S, 3>(slots, ahead),
                            _ => part.attend::<S, MAX_HEADS>(slots, ahead),
                        }
                    }
                    ahead.1 = &[];
                }
            }
        }
        for part in parts {
            for (out, sum) in part.out.chunks_exact_mut(dim).zip(part.sum) {
                let inverse = 1.0 / sum;
                out.iter_mut().for_each(|out| *out *= inverse);
            }
        }
    }
}

/// Up to [`MAX_HEADS`] query heads of one KV head, and their online softmax (Milakov and Gimelshein,
/// arXiv 1805.02867) over the tiles so far.
struct Part<'a, E> {
    q: &'a [f32],
    rows: Rows<'a, E>,
    /// The slots that the token attends, in order of position.
    slots: &'a [i32],
    weighing: &'a Weighing<'a>,
    /// The largest score and the sum of the weights of each head.
    max: [f32; MAX_HEADS],
    sum: [f32; MAX_HEADS],
    /// The weighted values.
    out: &'a mut [f32],
}

impl<'a, E: Pooled> Part<'a, E> {
    /// `first` is the first of the query heads, and `out` has zeros.
    #[inline(always)]
    fn new(
        q: &'a [f32],
        rows: Rows<'a, E>,
        slots: &'a [i32],
        weighing: &'a Weighing<'a>,
        first: usize,
        out: &'a mut [f32],
    ) -> Self {
        let (mut max, mut sum) = ([f32::NEG_INFINITY; MAX_HEADS], [0.0; MAX_HEADS]);
        if let Some(sinks) = weighing.sinks {
            // The softmax begins with the sink, whose weight relative to itself is 1.
            for (max, sink) in max.iter_mut().zip(&sinks[first..]) {
                *max = *sink;
            }
            sum = [1.0; MAX_HEADS];
        }
        Self {
            q,
            rows,
            slots,
            weighing,
            max,
            sum,
            out,
        }
    }

    /// Adds a tile of slots to the softmax of `HEADS` heads, which must be all of them. Prefetches the
    /// rows and slots `ahead` meanwhile: all at once, they would hold up what is loaded here.
    ///
    /// # Safety
    /// The CPU must have `S`'s features.
    #[inline(always)]
    unsafe fn attend<S: Simd, const HEADS: usize>(
        &mut self,
        slots: &[i32],
        (rows_ahead, slots_ahead): (Rows<'_, E>, &[i32]),
    ) {
        let (q, rows, scale) = (self.q, &self.rows, self.weighing.scale);
        let mut weights = [[0.0f32; HEADS]; TILE];
        let mut slots_ahead = slots_ahead.chunks(SLOTS);
        let fours = slots.chunks(SLOTS).zip(weights.as_chunks_mut::<SLOTS>().0);
        for (few, scores) in fours {
            // SAFETY: the caller guarantees the features of `S`, and that `q` has so many heads.
            unsafe {
                rows_ahead.fetch::<S>(slots_ahead.next().unwrap_or_default());
                products::scores::<S, E, HEADS>(q, rows, few, scores);
            }
        }
        let within = &mut weights[..slots.len()];
        within
            .as_flattened_mut()
            .iter_mut()
            .for_each(|score| *score *= scale);
        rows.scale(rows.k_pool, slots, within);
        if let Some(cap) = self.weighing.cap {
            let scores = within.as_flattened_mut().iter_mut();
            scores.for_each(|score| *score = cap * tanh(*score / cap));
        }
        let (max, sum) = (&mut self.max[..HEADS], &mut self.sum[..HEADS]);
        let mut old_max = [0.0; HEADS];
        old_max.copy_from_slice(max);
        let new_max = by_lanes(
            within,
            old_max,
            |max, score| if score > max { score } else { max },
        );
        for weights in &mut *within {
            for (weight, max) in weights.iter_mut().zip(new_max) {
                *weight -= max;
            }
        }
        let scores = within.as_flattened_mut().iter_mut();
        scores.for_each(|score| *score = weight(*score));
        let sums = by_lanes(within, [0.0; HEADS], |sum, weight| sum + weight);
        let outs = self.out.chunks_exact_mut(rows.dim);
        for (head, out) in outs.enumerate().take(HEADS) {
            // The first correction is zero: there is nothing to rescale.
            let correction = match max[head] == f32::NEG_INFINITY {
                true => 0.0,
                false => weight(max[head] - new_max[head]),
            };
            max[head] = new_max[head];
            sum[head] = sum[head] * correction + sums[head];
            out.iter_mut().for_each(|out| *out *= correction);
        }
        rows.scale(rows.v_pool, slots, within);
        // SAFETY: the caller guarantees the features of `S`, and that `out` has so many heads.
        unsafe { mix::<S, E, HEADS>(within, rows, slots, self.out) };
    }
}

/// The weight of a score, given its difference to the largest one, which is at most zero. Weights below e^-60
/// are zero: they do not change the sum of the weights, which is at least 1, but the products of the smallest
/// with values would be subnormal numbers, with which Intel's CPUs calculate many times slower.
#[inline(always)]
fn weight(difference: f32) -> f32 {
    match difference < LEAST_DIFFERENCE {
        true => 0.0,
        false => exp(difference),
    }
}

/// Combines the values of each head in sixteen lanes, each starting with `start`, and then combines
/// the lanes. The compiler may not reorder operations on floats by itself.
#[inline(always)]
fn by_lanes<const HEADS: usize>(
    values: &[[f32; HEADS]],
    start: [f32; HEADS],
    combine: impl Fn(f32, f32) -> f32,
) -> [f32; HEADS] {
    let mut lanes = [start; 16];
    let (chunks, rest) = values.as_chunks::<16>();
    for chunk in chunks {
        // Whole arrays stay in registers.
        let mut combined = lanes;
        for (lanes, values) in combined.iter_mut().zip(chunk) {
            for (lane, value) in lanes.iter_mut().zip(values) {
                *lane = combine(*lane, *value);
            }
        }
        lanes = combined;
    }
    for (lanes, values) in lanes.iter_mut().zip(rest) {
        for (lane, value) in lanes.iter_mut().zip(values) {
            *lane = combine(*lane, *value);
        }
    }
    let [mut all, rest @ ..] = lanes;
    for lanes in rest {
        for (all, lane) in all.iter_mut().zip(lanes) {
            *all = combine(*all, lane);
        }
    }
    all
}
