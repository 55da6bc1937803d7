//! Attention over slot indices, with online softmax. A task is some KV heads of a few tokens that follow
//! each other: for each tile of slots, it computes one head after another, so that memory is read in the
//! order in which it lies there, and each head for all tokens, so that it is read once. The keys of a tile
//! are transposed first ([`panel`]), so that scores are sums of whole vectors, one key in a lane.
//!
//! **Batch-invariant**: how many heads and tokens a task has changes no sum. A score adds the products of a
//! head's elements in their order, and an output the weighted values in the order of positions. The sum of
//! the weights of a tile always has sixteen lanes.

mod panel;
mod products;
mod rows;
mod softmax;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ops::Range;

use rayon::prelude::*;

use super::pools::Pooled;
use super::simd::{Level, Simd, Task};
use crate::HeadLayout;
use panel::{Panel, Values};
use rows::Rows;
use softmax::{Scales, Scores};

/// Positions that are scored before their values are added up.
const TILE: usize = 64;
/// Tasks per thread that keep all threads busy almost to the end, whatever their number.
const MANY_PER_THREAD: usize = 8;
/// A task of several tokens has at most a thread's share of the work divided by this.
const PARTS: usize = 4;
/// The most queries of a task that share a KV head, where they are of several tokens. They share the
/// reads of keys and values, and the transposition of keys.
const MOST_QUERIES: usize = 64;
/// Queries from which on it is faster to widen values once than with every few queries.
const MANY_QUERIES: usize = 16;

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

    /// The numbers of positions that the tokens of a run attend, summed: the largest sum, and that of all
    /// runs.
    fn work(&self, runs: &[Range<usize>]) -> (usize, usize) {
        let attended = |token: usize| (self.positions[token] as usize + 1).min(self.window);
        let sums = runs.iter().map(|run| run.clone().map(attended).sum());
        sums.fold((0, 0), |(largest, total), sum: usize| {
            (largest.max(sum), total + sum)
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
    // SAFETY: `Level::best` returns a level that this CPU has.
    unsafe {
        paged_at(
            Level::best(),
            q,
            [k_pool, v_pool],
            layout,
            weighing,
            table,
            out,
        )
    };
}

/// [`paged`] with the vectors of `level`.
///
/// # Safety
/// The level must come from [`Level::list`] or [`Level::best`].
unsafe fn paged_at<E: Pooled>(
    level: Level,
    q: &[f32],
    [k_pool, v_pool]: [&[E]; 2],
    layout: HeadLayout,
    weighing: &Weighing<'_>,
    table: &SlotTable<'_>,
    out: &mut [f32],
) {
    let HeadLayout {
        heads, kv_heads, ..
    } = layout;
    let (tokens, group) = (table.positions.len(), heads / kv_heads);
    let threads = rayon::current_num_threads();
    let most = tokens * kv_heads / (MANY_PER_THREAD * threads);
    let runs = table.runs(most.clamp(1, (MOST_QUERIES / group).max(1)));
    let (largest, total) = table.work(&runs);
    // The runs of a prompt have more work towards its end: the last ones should be small.
    let parts = if runs.len() < tokens { PARTS } else { 1 };
    let together = together((largest * parts, total), runs.len(), kv_heads, threads);
    let width = together * group * layout.head_dim;
    let mut places = q.chunks_exact(width).zip(out.chunks_exact_mut(width));
    let mut tasks = Vec::new();
    for run in runs {
        let mut heads: Vec<Vec<Token<'_>>> = Vec::new();
        heads.resize_with(kv_heads / together, || Vec::with_capacity(run.len()));
        for token in run {
            for (heads, (q, out)) in heads.iter_mut().zip(places.by_ref()) {
                heads.push(Token {
                    q,
                    slots: table.visible(token),
                    out,
                });
            }
        }
        let of_run = heads.into_iter().enumerate();
        tasks.extend(of_run.map(|(index, tokens)| (index * together, tokens)));
    }
    tasks.into_par_iter().for_each(|(first, tokens)| {
        let attend = |scratch: &mut Scratch| {
            let task = Heads {
                scratch,
                tokens,
                k_pool,
                v_pool,
                layout,
                weighing,
                first,
            };
            // SAFETY: this CPU has the level, as the caller guarantees.
            unsafe { level.run(task) };
        };
        SCRATCH.with_borrow_mut(attend);
    });
}

/// The number of KV heads of a task: as many as leave the same number of tasks to each thread, or so
/// many that it does not matter, and no task with more than a thread's share of the work. `largest` is
/// the work of all heads of the run that has most of it, and `total` that of all runs.
fn together(
    (largest, total): (usize, usize),
    runs: usize,
    kv_heads: usize,
    threads: usize,
) -> usize {
    let fits = |heads: &usize| {
        let tasks = runs * kv_heads / heads;
        kv_heads.is_multiple_of(*heads)
            && largest * heads * threads <= total * kv_heads
            && (tasks.is_multiple_of(threads) || tasks >= MANY_PER_THREAD * threads)
    };
    (1..=kv_heads).rev().find(fits).unwrap_or(1)
}

/// Memory that the tasks of a thread use one after the other.
#[derive(Default)]
struct Scratch {
    panel: Panel,
    values: Values,
    scores: Vec<Scores>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// The query heads of a token that share some KV heads.
struct Token<'a> {
    q: &'a [f32],
    slots: &'a [i32],
    out: &'a mut [f32],
}

/// Some KV heads of the tokens of a run, and the query heads that share them.
struct Heads<'a, 's, E> {
    scratch: &'s mut Scratch,
    tokens: Vec<Token<'a>>,
    k_pool: &'a [E],
    v_pool: &'a [E],
    layout: HeadLayout,
    weighing: &'a Weighing<'a>,
    /// The first KV head.
    first: usize,
}

/// A query head of a token, and its softmax over the tiles so far.
struct Query<'a> {
    q: &'a [f32],
    /// The number of positions that the token attends.
    visible: usize,
    /// The largest score, and the sum of the weights.
    max: f32,
    sum: f32,
    /// The weighted values.
    out: &'a mut [f32],
}

impl Query<'_> {
    /// How many positions it attends of the tile that begins at position `from`.
    #[inline(always)]
    fn attended(&self, from: usize) -> usize {
        self.visible.saturating_sub(from).min(TILE)
    }
}

impl<E: Pooled> Task for Heads<'_, '_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let dim = self.layout.head_dim;
        let longest = self.tokens.last().map_or(&[][..], |last| last.slots);
        let mut heads = self.heads();
        let Scratch {
            panel,
            values,
            scores,
        } = self.scratch;
        let most = heads[0].1.len();
        panel.resize(dim);
        if most >= MANY_QUERIES {
            values.resize(dim);
        }
        scores.resize(scores.len().max(most), Scores([0.0; TILE]));
        for from in (0..longest.len()).step_by(TILE) {
            let tile =
                |from: usize| &longest[from.min(longest.len())..longest.len().min(from + TILE)];
            for head in 0..heads.len() {
                // The next rows are prefetched.
                let (rows_ahead, slots_ahead) = match heads.get(head + 1) {
                    Some((rows, _)) => (*rows, tile(from)),
                    None => (heads[0].0, tile(from + TILE)),
                };
                let (rows, queries) = &mut heads[head];
                let first = queries.partition_point(|query| query.attended(from) == 0);
                let queries = &mut queries[first..];
                let scores = &mut scores[..queries.len()];
                let mut starts = [0; TILE];
                let starts = rows.starts(tile(from), &mut starts);
                let steps = panel.steps::<S, E>(starts.len());
                let mut ahead = slots_ahead.chunks(slots_ahead.len().div_ceil(steps).max(1));
                let Weighing { scale, cap, .. } = *self.weighing;
                // SAFETY: the caller guarantees the features of `S`. The rows are within the pools, are as
                // many as a tile has at most, and like queries and outputs have `dim` elements.
                unsafe {
                    panel.fill::<S, E>(rows.k_pool, starts, (&rows_ahead, &mut ahead));
                    products::score::<S>(queries, panel, starts.len(), scale, scores);
                    let scales = Scales::of(rows, starts);
                    softmax::weigh::<S>(queries, scores, from, cap, scales.as_ref());
                    if queries.len() < MANY_QUERIES {
                        products::mix::<S, E>(queries, scores, (rows.v_pool, starts), from);
                    } else {
                        let values = values.fill::<S, E>(rows.v_pool, starts);
                        products::mix::<S, f32>(queries, scores, values, from);
                    }
                }
            }
        }
        for query in heads.into_iter().flat_map(|(_, queries)| queries) {
            let inverse = 1.0 / query.sum;
            query.out.iter_mut().for_each(|out| *out *= inverse);
        }
    }
}

impl<'a, E: Pooled> Heads<'a, '_, E> {
    /// The rows of each KV head, and the queries that share it, in the order of tokens. All outputs are
    /// set to zero.
    #[inline(always)]
    fn heads(&mut self) -> Vec<(Rows<'a, E>, Vec<Query<'a>>)> {
        let (dim, stride) = (self.layout.head_dim, E::SCALE + self.layout.head_dim);
        let group = self.layout.heads / self.layout.kv_heads;
        let count = self.tokens[0].q.len() / (group * dim);
        let mut heads: Vec<(Rows<'a, E>, Vec<Query<'a>>)> = (self.first..self.first + count)
            .map(|kv_head| {
                let rows = Rows {
                    k_pool: self.k_pool,
                    v_pool: self.v_pool,
                    width: self.layout.kv_heads * stride,
                    at: kv_head * stride + E::SCALE,
                    dim,
                };
                (rows, Vec::with_capacity(self.tokens.len() * group))
            })
            .collect();
        for token in self.tokens.drain(..) {
            token.out.fill(0.0);
            let places = token
                .q
                .chunks_exact(dim)
                .zip(token.out.chunks_exact_mut(dim));
            for (index, (q, out)) in places.enumerate() {
                // The softmax begins with the sink, if there is one, whose weight relative to itself is 1.
                let sink = self
                    .weighing
                    .sinks
                    .map(|sinks| sinks[self.first * group + index]);
                heads[index / group].1.push(Query {
                    q,
                    visible: token.slots.len(),
                    max: sink.unwrap_or(f32::NEG_INFINITY),
                    sum: sink.map_or(0.0, |_| 1.0),
                    out,
                });
            }
        }
        heads
    }
}
