//! The softmax of each chunk of positions, and the merge of the chunks.

use std::arch::x86_64::*;
use std::ops::Range;

use rayon::prelude::*;

use super::vectors::power;
use super::{CHUNK, DEPTH, SIDE, visible};
use crate::HeadLayout;
use crate::cpu::aligned::Aligned;
use crate::cpu::attention::SlotTable;
use crate::cpu::output::Output;

/// The most bytes of partial results.
const MOST_PARTIAL_BYTES: usize = 8 << 20;

/// The state of the online softmax of some queries. A `tile` has 16 queries.
#[derive(Default)]
pub struct State {
    /// `[tile][head_dim / 16]` tiles of queries by elements: the weighted values.
    pub mixed: Aligned<f32>,
    /// `[tile][16]`: the largest score, in powers of two, and the sum of the weights.
    pub largest: Aligned<f32>,
    pub sums: Aligned<f32>,
}

impl State {
    /// Resets the state to that of no positions.
    pub fn clear(&mut self, tiles: usize, dim: usize) {
        self.mixed.resize(tiles * SIDE * dim);
        self.mixed.fill(0.0);
        self.largest.resize(tiles * SIDE);
        self.largest.fill(f32::NEG_INFINITY);
        self.sums.resize(tiles * SIDE);
        self.sums.fill(0.0);
    }

    /// Where the 16 elements of a query in a tile of elements begin.
    fn at(&self, query: usize, tile: usize, dim: usize) -> usize {
        (query / SIDE * (dim / SIDE) + tile) * SIDE * SIDE + query % SIDE * SIDE
    }

    /// Multiplies the weighted values of a query by a factor.
    ///
    /// # Safety
    /// The CPU must have the vector instructions.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub unsafe fn scale(&mut self, query: usize, dim: usize, by: f32) {
        for tile in 0..dim / SIDE {
            let at = self.at(query, tile, dim);
            let row = self.mixed[at..at + SIDE].as_mut_ptr();
            // SAFETY: the slice has 16 elements and begins at a cache line, because rows of tiles
            // do.
            unsafe { _mm512_store_ps(row, _mm512_mul_ps(_mm512_load_ps(row), _mm512_set1_ps(by))) };
        }
    }

    /// Merges the state of the next chunk into this one.
    ///
    /// # Safety
    /// The CPU must have the vector instructions, and both states must have `queries` queries of
    /// `dim` elements.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn add(&mut self, next: &Self, queries: usize, dim: usize) {
        for query in 0..queries {
            let [old, new] = [&*self, next].map(|s| _mm512_set1_ps(s.largest[query]));
            let (largest, by) = factors(old, new);
            let sums = [&*self, next].map(|s| _mm512_set1_ps(s.sums[query]));
            self.largest[query] = _mm512_cvtss_f32(largest);
            self.sums[query] = _mm512_cvtss_f32(weighted_sum(sums, by));
            for tile in 0..dim / SIDE {
                let at = self.at(query, tile, dim);
                // SAFETY: both states have the query, and 16 elements of it begin at `at`, at a
                // cache line.
                unsafe {
                    let mixed =
                        [&self.mixed, &next.mixed].map(|m| _mm512_load_ps(m[at..].as_ptr()));
                    _mm512_store_ps(self.mixed[at..].as_mut_ptr(), weighted_sum(mixed, by));
                }
            }
        }
    }

    /// Writes the weighted values of a query, divided by the sum of its weights, to `out`.
    ///
    /// # Safety
    /// The CPU must have the vector instructions, and `out` must have room for `dim` elements.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn finish(&self, query: usize, dim: usize, out: *mut f32) {
        let inverse = 1.0 / self.sums[query];
        let mixed = |tile: usize| self.mixed[self.at(query, tile, dim)..].as_ptr();
        for depth in 0..dim / DEPTH {
            // SAFETY: rows of tiles have 16 elements and begin at cache lines, and the caller
            // guarantees that `out` has room for `dim` elements.
            unsafe {
                let [a, b] = [0, 1].map(|half| _mm512_load_ps(mixed(2 * depth + half)));
                write(a, b, inverse, out.add(depth * DEPTH));
            }
        }
    }
}

/// The larger of two maxima, and the factors for weights that are relative to each. If one of them
/// is minus infinity because no position was attended, the other state does not change.
#[target_feature(enable = "avx512f")]
#[inline]
fn factors(old: __m512, new: __m512) -> (__m512, [__m512; 2]) {
    let largest = _mm512_max_ps(old, new);
    let one = _mm512_set1_ps(1.0);
    let by = |own: __m512| {
        let smaller = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(own, largest);
        _mm512_mask_blend_ps(smaller, one, power(_mm512_sub_ps(own, largest)))
    };
    (largest, [by(old), by(new)])
}

/// `old * by_old + new * by_new`
#[target_feature(enable = "avx512f")]
#[inline]
fn weighted_sum([old, new]: [__m512; 2], [by_old, by_new]: [__m512; 2]) -> __m512 {
    _mm512_fmadd_ps(new, by_new, _mm512_mul_ps(old, by_old))
}

/// Writes 16 elements each of two tiles, times `by`, in the original order of the elements:
/// `pack_values` has distributed them in groups of four.
///
/// # Safety
/// `out` must have room for 32 elements.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn write(a: __m512, b: __m512, by: f32, out: *mut f32) {
    let low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    let high = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    // Adding zero makes the sign of zeros independent of whether anything was added with a weight
    // of zero.
    let (by, zero) = (_mm512_set1_ps(by), _mm512_setzero_ps());
    let (a, b) = (_mm512_fmadd_ps(a, by, zero), _mm512_fmadd_ps(b, by, zero));
    // SAFETY: the caller guarantees room for 32 elements; the stores need no alignment.
    unsafe {
        _mm512_storeu_ps(out, _mm512_permutex2var_ps(a, low, b));
        _mm512_storeu_ps(out.add(SIDE), _mm512_permutex2var_ps(a, high, b));
    }
}

/// Elements of a partial result: the weighted values, the largest score and the sum of the weights.
fn partial_width(layout: HeadLayout) -> usize {
    layout.head_dim + 2
}

/// Writes the partial result of a query to its place in `out`.
///
/// # Safety
/// The CPU must have the vector instructions. `head` of `row` must exist, and it must be this
/// task's.
#[target_feature(enable = "avx512f")]
pub unsafe fn store_partial(
    state: &State,
    query: usize,
    layout: HeadLayout,
    out: Output,
    row: usize,
    head: usize,
) {
    let dim = layout.head_dim;
    // SAFETY: a partial result has `dim + 2` elements, and the caller guarantees that they are this
    // task's. Rows of tiles have 16 elements and begin at cache lines.
    unsafe {
        let to = out.at(row, head * partial_width(layout));
        for tile in 0..dim / SIDE {
            let mixed = state.mixed[state.at(query, tile, dim)..].as_ptr();
            _mm512_storeu_ps(to.add(tile * SIDE), _mm512_load_ps(mixed));
        }
        to.add(dim).write(state.largest[query]);
        to.add(dim + 1).write(state.sums[query]);
    }
}

/// A task: the tokens of a block, a chunk, and the first row of the partial results.
struct Piece {
    tokens: Range<usize>,
    chunk: usize,
    row: usize,
}

/// Blocks whose chunks are computed as separate tasks.
pub struct Partial {
    layout: HeadLayout,
    pieces: Vec<Piece>,
    /// The pieces of each block.
    blocks: Vec<Range<usize>>,
    rows: usize,
}

impl Partial {
    pub fn of(layout: HeadLayout, table: &SlotTable<'_>, blocks: &[Range<usize>]) -> Self {
        let mut partial = Self {
            layout,
            pieces: Vec::new(),
            blocks: Vec::with_capacity(blocks.len()),
            rows: 0,
        };
        for tokens in blocks {
            let first = visible(table, tokens.start).start / CHUNK;
            let end = visible(table, tokens.end - 1).end.div_ceil(CHUNK);
            let pieces = partial.pieces.len();
            for chunk in first..end {
                partial.pieces.push(Piece {
                    tokens: tokens.clone(),
                    chunk,
                    row: partial.rows,
                });
                partial.rows += tokens.len();
            }
            partial.blocks.push(pieces..partial.pieces.len());
        }
        partial
    }

    /// True if there are blocks with several chunks, and the partial results are not too large.
    pub fn is_worth_it(&self) -> bool {
        let elements = self.rows * self.layout.heads * partial_width(self.layout);
        self.pieces.len() > self.blocks.len() && elements * size_of::<f32>() <= MOST_PARTIAL_BYTES
    }

    /// Runs `attend` with the tokens, the chunk and the KV head of every task, each with rows of
    /// its own for partial results, and merges these into `out`.
    pub fn merged(&self, out: Output, attend: impl Fn(Range<usize>, usize, usize, Output) + Sync) {
        let kv_heads = self.layout.kv_heads;
        let fill = |rows: Output| {
            (0..self.pieces.len() * kv_heads)
                .into_par_iter()
                .for_each(|task| {
                    let piece = &self.pieces[task / kv_heads];
                    let rows = rows.from(piece.row);
                    attend(piece.tokens.clone(), piece.chunk, task % kv_heads, rows);
                });
        };
        let width = self.layout.heads * partial_width(self.layout);
        // SAFETY: there is a task for every KV head of every row, and `attend` writes all of the KV
        // head's partial results.
        let parts = unsafe { Output::filled(self.rows, width, fill) };
        let merge = |task: usize| {
            let (pieces, kv_head) = (&self.blocks[task / kv_heads], task % kv_heads);
            // SAFETY: the caller has checked that the tiles are available, and with them the
            // vectors; every task writes heads of its own.
            unsafe { self.merge(&self.pieces[pieces.clone()], kv_head, &parts, out) };
        };
        (0..self.blocks.len() * kv_heads)
            .into_par_iter()
            .for_each(merge);
    }

    /// Merges the heads of one KV head, for the tokens of a block.
    ///
    /// # Safety
    /// The CPU must have the vector instructions, and the heads must be this task's.
    #[target_feature(enable = "avx512f")]
    unsafe fn merge(&self, pieces: &[Piece], kv_head: usize, parts: &[f32], out: Output) {
        let (dim, group) = (
            self.layout.head_dim,
            self.layout.heads / self.layout.kv_heads,
        );
        for query in 0..pieces[0].tokens.len() * group {
            let (token, head) = (query / group, kv_head * group + query % group);
            let at = |piece: &Piece| {
                let at = (piece.row + token) * self.layout.heads + head;
                &parts[at * partial_width(self.layout)..][..partial_width(self.layout)]
            };
            let (first, others) = (at(&pieces[0]), &pieces[1..]);
            let mut largest = _mm512_set1_ps(first[dim]);
            let mut sums = _mm512_set1_ps(first[dim + 1]);
            let mut factor = Vec::with_capacity(others.len());
            for piece in others {
                let new = at(piece);
                let by;
                (largest, by) = factors(largest, _mm512_set1_ps(new[dim]));
                sums = weighted_sum([sums, _mm512_set1_ps(new[dim + 1])], by);
                factor.push(by);
            }
            let inverse = 1.0 / _mm512_cvtss_f32(sums);
            for depth in 0..dim / DEPTH {
                // SAFETY: a partial result begins with `dim` elements, and the caller guarantees
                // that `dim` elements of the head in `out` are this task's.
                unsafe {
                    let load = |part: &[f32], half: usize| {
                        _mm512_loadu_ps(part[depth * DEPTH + half * SIDE..].as_ptr())
                    };
                    let mut mixed = [load(first, 0), load(first, 1)];
                    for (piece, by) in others.iter().zip(&factor) {
                        let new = at(piece);
                        mixed = [
                            weighted_sum([mixed[0], load(new, 0)], *by),
                            weighted_sum([mixed[1], load(new, 1)], *by),
                        ];
                    }
                    let to = out.at(pieces[0].tokens.start + token, head * dim + depth * DEPTH);
                    write(mixed[0], mixed[1], inverse, to);
                }
            }
        }
    }
}
