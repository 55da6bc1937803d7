//! Attention over slot indices, with online softmax. A task is one token and some KV heads: for each tile
//! of slots, it computes one head after another, so that memory is read in the order in which it lies
//! there. How many heads a task has changes no sum.

mod products;

use rayon::prelude::*;

use super::pools::Pooled;
use super::simd::{Simd, Task, dispatch, exp, tanh};
use crate::HeadLayout;
use products::{MAX_HEADS, Rows, SLOTS, mix, scores};

/// Positions that are scored before their values are added up.
const TILE: usize = 64;
/// Tasks per thread that keep all threads busy almost to the end, whatever their number.
const MANY_PER_THREAD: usize = 8;

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
    let (runs, width) = (
        layout.kv_heads / together,
        together * group * layout.head_dim,
    );
    let tasks = q
        .par_chunks_exact(width)
        .zip(out.par_chunks_exact_mut(width))
        .enumerate();
    tasks.for_each(|(task, (q, out))| {
        dispatch(Heads {
            q,
            k_pool,
            v_pool,
            layout,
            weighing,
            first: task % runs * together,
            slots: table.visible(task / runs),
            out,
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

/// Some KV heads of one token, and the query heads that share them.
struct Heads<'a, E> {
    q: &'a [f32],
    k_pool: &'a [E],
    v_pool: &'a [E],
    layout: HeadLayout,
    weighing: &'a Weighing<'a>,
    /// The first KV head.
    first: usize,
    slots: &'a [i32],
    out: &'a mut [f32],
}

impl<E: Pooled> Task for Heads<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (dim, stride) = (self.layout.head_dim, E::SCALE + self.layout.head_dim);
        let group = self.layout.heads / self.layout.kv_heads;
        self.out.fill(0.0);
        let mut parts = Vec::new();
        let kv_heads = self.q.chunks_exact(group * dim);
        let outs = self.out.chunks_exact_mut(group * dim);
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
                parts.push(Part::new(q, rows, self.weighing, first, out));
            }
        }
        for (tile, slots) in self.slots.chunks(TILE).enumerate() {
            let next = &self.slots[((tile + 1) * TILE).min(self.slots.len())..];
            let next = &next[..next.len().min(TILE)];
            for index in 0..parts.len() {
                // The next rows are prefetched.
                let ahead = match parts.get(index + 1) {
                    Some(following) => (following.rows, slots),
                    None => (parts[0].rows, next),
                };
                let part = &mut parts[index];
                // SAFETY: the caller guarantees the features of `S`, and a part has that many heads.
                unsafe {
                    match part.q.len() / dim {
                        1 => part.attend::<S, 1>(slots, ahead),
                        2 => part.attend::<S, 2>(slots, ahead),
                        3 => part.attend::<S, 3>(slots, ahead),
                        _ => part.attend::<S, MAX_HEADS>(slots, ahead),
                    }
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
        let mut weights = [[0.0f32; TILE]; HEADS];
        let mut slots_ahead = slots_ahead.chunks(SLOTS);
        for (from, few) in slots.chunks(SLOTS).enumerate() {
            // SAFETY: the caller guarantees the features of `S`.
            let scores = unsafe {
                rows_ahead.fetch::<S>(slots_ahead.next().unwrap_or_default());
                scores::<S, E, HEADS>(q, rows, few)
            };
            for (weights, scores) in weights.iter_mut().zip(scores) {
                for (weight, score) in weights[from * SLOTS..].iter_mut().zip(scores) {
                    *weight = score * scale;
                }
            }
        }
        rows.scale(rows.k_pool, slots, &mut weights);
        for head in 0..HEADS {
            let (max, sum) = (&mut self.max[head], &mut self.sum[head]);
            let weights = &mut weights[head][..slots.len()];
            if let Some(cap) = self.weighing.cap {
                weights
                    .iter_mut()
                    .for_each(|weight| *weight = cap * tanh(*weight / cap));
            }
            let new_max = by_lanes(
                weights,
                *max,
                |max, score| if score > max { score } else { max },
            );
            // The first correction is zero: there is nothing to rescale, and `exp` does not take
            // infinity.
            let correction = if *max == f32::NEG_INFINITY {
                0.0
            } else {
                exp(*max - new_max)
            };
            *max = new_max;
            weights
                .iter_mut()
                .for_each(|weight| *weight = exp(*weight - new_max));
            *sum = *sum * correction + by_lanes(weights, 0.0, |sum, weight| sum + weight);
            let out = &mut self.out[head * rows.dim..][..rows.dim];
            out.iter_mut().for_each(|out| *out *= correction);
        }
        rows.scale(rows.v_pool, slots, &mut weights);
        // SAFETY: the caller guarantees the features of `S`.
        unsafe { mix::<S, E, HEADS>(&weights, rows, slots, self.out) };
    }
}

/// Combines `values` in sixteen lanes, each starting with `start`, and then combines the lanes. The
/// compiler may not reorder operations on floats by itself.
#[inline(always)]
fn by_lanes(values: &[f32], start: f32, combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [start; 16];
    let chunks = values.chunks_exact(16);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = combine(*lane, *value);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane = combine(*lane, *value);
    }
    lanes.into_iter().reduce(combine).unwrap_or(start)
}

#[cfg(test)]
mod tests {
    #[test]
    fn tasks_have_many_heads_where_that_leaves_no_thread_idle() {
        // One token of Llama-3.2-1B: half of the heads for each of two threads.
        let together = |tokens: usize, kv_heads, threads| {
            super::together((100, 100 * tokens), tokens, kv_heads, threads)
        };
        assert_eq!(together(1, 8, 2), 4);
        assert_eq!(together(3, 8, 2), 4);
        assert_eq!(together(4, 8, 2), 8);
        assert_eq!(together(512, 8, 2), 8);
        assert_eq!(together(1, 8, 16), 1);
        assert_eq!(together(4, 8, 16), 2);
        // An odd number of heads for an even number of threads.
        assert_eq!(together(1, 3, 2), 1);
        assert_eq!(together(16, 3, 2), 3);
        // One thread does not get all of the only long sequence.
        assert_eq!(super::together((8000, 8010), 2, 8, 2), 4);
        assert_eq!(super::together((32_000, 33_500), 16, 8, 16), 1);
    }
}
