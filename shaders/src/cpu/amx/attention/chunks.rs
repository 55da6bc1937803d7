//! The softmax of each chunk of positions, and how they are merged.

use std::arch::x86_64::*;
use std::ops::Range;

use rayon::prelude::*;

use super::vectors::power;
use super::{CHUNK, DEPTH, SIDE, visible};
use crate::HeadLayout;
use crate::cpu::aligned::Aligned;
use crate::cpu::attention::SlotTable;
use crate::cpu::output::Output;

/// What is to be merged takes at most so many bytes.
const MOST_PARTIAL_BYTES: usize = 8 << 20;

/// What queries have mixed; `tile` is 16 of them.
#[derive(Default)]
pub struct State {
    /// `[tile][head_dim / 16]` tiles of queries by elements.
    pub mixed: Aligned<f32>,
    /// `[tile][16]`: the largest score, in powers of two, and the sum of the weights.
    pub largest: Aligned<f32>,
    pub sums: Aligned<f32>,
}

impl State {
    /// Of nothing.
    pub fn clear(&mut self, tiles: usize, dim: usize) {
        self.mixed.resize(tiles * SIDE * dim);
        self.mixed.fill(0.0);
        self.largest.resize(tiles * SIDE);
        self.largest.fill(f32::NEG_INFINITY);
        self.sums.resize(tiles * SIDE);
        self.sums.fill(0.0);
    }

    /// Where the 16 elements are that a query has mixed of a tile.
    fn at(&self, query: usize, tile: usize, dim: usize) -> usize {
        (query / SIDE * (dim / SIDE) + tile) * SIDE * SIDE + query % SIDE * SIDE
    }

    /// Multiplies what a query has mixed.
    ///
    /// # Safety
    /// The CPU must have the vectors.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub unsafe fn scale(&mut self, query: usize, dim: usize, by: f32) {
        for tile in 0..dim / SIDE {
            let at = self.at(query, tile, dim);
            let row = self.mixed[at..at + SIDE].as_mut_ptr();
            // SAFETY: a row of a tile.
            unsafe { _mm512_store_ps(row, _mm512_mul_ps(_mm512_load_ps(row), _mm512_set1_ps(by))) };
        }
    }

    /// Adds the next chunk's.
    ///
    /// # Safety
    /// The CPU must have the vectors, and both states as many queries of `dim` elements.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn add(&mut self, next: &Self, queries: usize, dim: usize) {
        for query in 0..queries {
            let [old, new] = [&*self, next].map(|s| _mm512_set1_ps(s.largest[query]));
            let (largest, by) = factors(old, new);
            let sums = [&*self, next].map(|s| _mm512_set1_ps(s.sums[query]));
            self.largest[query] = _mm512_cvtss_f32(largest);
            self.sums[query] = _mm512_cvtss_f32(weighed(sums, by));
            for tile in 0..dim / SIDE {
                let at = self.at(query, tile, dim);
                // SAFETY: rows of tiles.
                unsafe {
                    let mixed =
                        [&self.mixed, &next.mixed].map(|m| _mm512_load_ps(m[at..].as_ptr()));
                    _mm512_store_ps(self.mixed[at..].as_mut_ptr(), weighed(mixed, by));
                }
            }
        }
    }

    /// Writes what a query has mixed, by the sum of its weights, to `out`.
    ///
    /// # Safety
    /// The CPU must have the vectors, and `out` room for a head.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn finish(&self, query: usize, dim: usize, out: *mut f32) {
        let inverse = 1.0 / self.sums[query];
        let mixed = |tile: usize| self.mixed[self.at(query, tile, dim)..].as_ptr();
        for depth in 0..dim / DEPTH {
            // SAFETY: rows of tiles, and a head of `out`.
            unsafe {
                let [a, b] = [0, 1].map(|half| _mm512_load_ps(mixed(2 * depth + half)));
                write(a, b, inverse, out.add(depth * DEPTH));
            }
        }
    }
}

/// The larger of two maxima, and what weights measured by each are multiplied by. Nothing has been
/// seen where there is none, which changes nothing.
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

#[target_feature(enable = "avx512f")]
#[inline]
fn weighed([old, new]: [__m512; 2], [by_old, by_new]: [__m512; 2]) -> __m512 {
    _mm512_fmadd_ps(new, by_new, _mm512_mul_ps(old, by_old))
}

/// Two tiles' rows of 16, times `by`, in the order of the elements: `pack_values` has parted them in
/// quarters.
///
/// # Safety
/// `out` must have room for 32.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn write(a: __m512, b: __m512, by: f32, out: *mut f32) {
    let low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    let high = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    // A zero has one sign, whether something without weight was added to it or not.
    let (by, zero) = (_mm512_set1_ps(by), _mm512_setzero_ps());
    let (a, b) = (_mm512_fmadd_ps(a, by, zero), _mm512_fmadd_ps(b, by, zero));
    unsafe {
        _mm512_storeu_ps(out, _mm512_permutex2var_ps(a, low, b));
        _mm512_storeu_ps(out.add(SIDE), _mm512_permutex2var_ps(a, high, b));
    }
}

/// Elements of a head's part: what it has mixed, the largest score and the sum of weights.
fn part(layout: HeadLayout) -> usize {
    layout.head_dim + 2
}

/// Puts what a query has of a chunk in its place in `out`.
///
/// # Safety
/// The CPU must have the vectors, and this head of this row be nobody else's.
#[target_feature(enable = "avx512f")]
pub unsafe fn keep(
    state: &State,
    query: usize,
    layout: HeadLayout,
    out: Output,
    row: usize,
    head: usize,
) {
    let dim = layout.head_dim;
    // SAFETY: a part has as many elements.
    unsafe {
        let to = out.at(row, head * part(layout));
        for tile in 0..dim / SIDE {
            let mixed = state.mixed[state.at(query, tile, dim)..].as_ptr();
            _mm512_storeu_ps(to.add(tile * SIDE), _mm512_load_ps(mixed));
        }
        to.add(dim).write(state.largest[query]);
        to.add(dim + 1).write(state.sums[query]);
    }
}

/// A task: tokens of a block, a chunk, and where its rows begin.
struct Piece {
    tokens: Range<usize>,
    chunk: usize,
    row: usize,
}

/// Blocks whose chunks are computed apart.
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

    /// Whether there is anything to compute apart, and what it leaves is little.
    pub fn is_worth_it(&self) -> bool {
        let elements = self.rows * self.layout.heads * part(self.layout);
        self.pieces.len() > self.blocks.len() && elements * size_of::<f32>() <= MOST_PARTIAL_BYTES
    }

    /// Runs `attend` for the tokens, the chunk and the KV head of every task, each with rows of its
    /// own, and merges what they leave there.
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
        let width = self.layout.heads * part(self.layout);
        // SAFETY: every head of every row is a task's, which fills it.
        let parts = unsafe { Output::filled(self.rows, width, fill) };
        let merge = |task: usize| {
            let (pieces, kv_head) = (&self.blocks[task / kv_heads], task % kv_heads);
            // SAFETY: the tiles are there, and so are the vectors; a task has its own heads.
            unsafe { self.merge(&self.pieces[pieces.clone()], kv_head, &parts, out) };
        };
        (0..self.blocks.len() * kv_heads)
            .into_par_iter()
            .for_each(merge);
    }

    /// The heads of one KV head, of the tokens of a block.
    ///
    /// # Safety
    /// The CPU must have the vectors, and the heads be nobody else's.
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
                &parts[at * part(self.layout)..][..part(self.layout)]
            };
            let (first, others) = (at(&pieces[0]), &pieces[1..]);
            let mut largest = _mm512_set1_ps(first[dim]);
            let mut sums = _mm512_set1_ps(first[dim + 1]);
            let mut factor = Vec::with_capacity(others.len());
            for piece in others {
                let new = at(piece);
                let by;
                (largest, by) = factors(largest, _mm512_set1_ps(new[dim]));
                sums = weighed([sums, _mm512_set1_ps(new[dim + 1])], by);
                factor.push(by);
            }
            let inverse = 1.0 / _mm512_cvtss_f32(sums);
            for depth in 0..dim / DEPTH {
                // SAFETY: a part has as many elements, and `out` the head.
                unsafe {
                    let load = |part: &[f32], half: usize| {
                        _mm512_loadu_ps(part[depth * DEPTH + half * SIDE..].as_ptr())
                    };
                    let mut mixed = [load(first, 0), load(first, 1)];
                    for (piece, by) in others.iter().zip(&factor) {
                        let new = at(piece);
                        mixed = [
                            weighed([mixed[0], load(new, 0)], *by),
                            weighed([mixed[1], load(new, 1)], *by),
                        ];
                    }
                    let to = out.at(pieces[0].tokens.start + token, head * dim + depth * DEPTH);
                    write(mixed[0], mixed[1], inverse, to);
                }
            }
        }
    }
}
