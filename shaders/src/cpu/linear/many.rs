//! Products of many tokens: it pays to widen a block of weights once. They are copied to panels, as
//! activations are, so that both are read from front to back.
//!
//! Rows are cut into chunks that fit the nearest cache, and sums are kept in memory from one chunk
//! to the next, so that they are added up in the order of the columns, as those of few tokens are.

use std::ops::Range;

use super::panels::{ROWS, place, tokens};
use super::{Block, MAX_ROWS_PER_TASK};
use crate::cpu::aligned::Aligned;
use crate::cpu::caches;
use crate::cpu::simd::{Simd, Stored, Task};

/// Floats of a cache line.
const CACHE_LINE: usize = 16;
/// Tokens whose sums are kept in memory: they stay in the second-level cache, beside a chunk of the
/// weights.
const FAR_TOKENS: usize = 128;

/// A block whose activations are in panels.
pub struct Widened<'a, E> {
    pub block: Block<'a, E>,
    pub scratch: &'a mut Scratch,
}

/// The memory of a thread.
#[derive(Default)]
pub struct Scratch {
    /// A chunk of the weights, `[tiles, steps, ROWS, lanes]`.
    weights: Aligned<f32>,
    /// `[groups of tokens, tiles, tokens of a group, ROWS, lanes]`
    sums: Aligned<f32>,
}

impl<E: Stored> Task for Widened<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller guarantees the features of `S`.
        unsafe {
            match S::LANES {
                16 => self.run::<S, { tokens(16) }>(),
                _ => self.run::<S, { tokens(8) }>(),
            }
        }
    }
}

impl<E: Stored> Widened<'_, E> {
    /// Computes the block. `TOKENS` is the number of tokens of a group.
    ///
    /// # Safety
    /// The CPU must have `S`'s features.
    #[inline(always)]
    unsafe fn run<S: Simd, const TOKENS: usize>(self) {
        let Self { block, scratch } = self;
        let Scratch { weights, sums } = scratch;
        // A step is a vector of each token and row. Rows and chunks are cut to pairs of steps.
        let steps = block.input / (2 * S::LANES) * 2;
        let tiles = block.rows.div_ceil(ROWS);
        // The activations and the weights of a tile take five eighths of the first-level cache. The
        // rest is for the next activations, which arrive while these are multiplied.
        let step = size_of::<f32>() * (TOKENS + ROWS) * S::LANES;
        let near = caches::first_level() * 5 / 8 / step / 2 * 2;
        let tile = TOKENS * ROWS * S::LANES;
        let group = TOKENS * block.input.next_multiple_of(S::LANES);
        let far = FAR_TOKENS / TOKENS;
        for (part, x) in block.x.chunks(far * group).enumerate() {
            sums.resize(x.len() / group * tiles * tile);
            // Rows shorter than a pair of vectors have no chunk that would set the sums.
            if steps == 0 {
                sums.fill(0.0);
            }
            for from in (0..steps).step_by(near) {
                let chunk = from..(from + near).min(steps);
                let panel = chunk.len() * ROWS * S::LANES;
                weights.resize(tiles * panel);
                // SAFETY: the caller guarantees the features of `S`. Each panel of `weights` has a
                // step for each of the chunk's, which lie within a row.
                unsafe { block.widen::<S>(&chunk, weights) };
                let within = chunk.start * TOKENS * S::LANES..chunk.end * TOKENS * S::LANES;
                let sums = sums.chunks_exact_mut(tiles * tile);
                // Each tile prefetches its part of the next group's activations.
                let ahead = (within.len() / tiles).div_ceil(CACHE_LINE);
                for (x, sums) in x.chunks_exact(group).zip(sums) {
                    let x = &x[within.clone()];
                    let next = x.as_ptr().wrapping_add(group);
                    let tiles = weights.chunks_exact(panel).zip(sums.chunks_exact_mut(tile));
                    for (index, (weights, sums)) in tiles.enumerate() {
                        let ahead = Ahead {
                            next: next.wrapping_add(index * ahead * CACHE_LINE),
                            lines: ahead,
                        };
                        // SAFETY: the caller guarantees the features of `S`.
                        unsafe { add::<S, TOKENS>(x, weights, sums, from == 0, ahead) };
                    }
                }
            }
            let sums = sums.chunks_exact(tiles * tile);
            for (index, (x, sums)) in x.chunks_exact(group).zip(sums).enumerate() {
                // All columns of the task are written together. If each tile wrote its three, each would wait for
                // their cache line.
                let mut columns = [[0.0; MAX_ROWS_PER_TASK]; TOKENS];
                for (index, sums) in sums.chunks_exact(tile).enumerate() {
                    // SAFETY: the caller guarantees the features of `S`.
                    unsafe { block.finish::<S, TOKENS>(index * ROWS, x, sums, &mut columns) };
                }
                let token = part * FAR_TOKENS + index * TOKENS;
                for (token, columns) in (token..block.y.tokens).zip(&mut columns) {
                    // SAFETY: the token exists, and the columns of the block are this task's, as its
                    // documentation demands.
                    unsafe { block.write_row(token, &mut columns[..block.rows]) };
                }
            }
        }
    }
}

impl<E: Stored> Block<'_, E> {
    /// Widens the vectors `steps` of all rows, which are whole pairs. The rows that the last tile
    /// lacks are copies of the last row.
    ///
    /// # Safety
    /// The CPU must have `S`'s features. The steps must lie within a row, and `to` must have room
    /// for them.
    #[inline(always)]
    unsafe fn widen<S: Simd>(&self, steps: &Range<usize>, to: &mut [f32]) {
        let panels = to.chunks_exact_mut(steps.len() * ROWS * S::LANES);
        for (tile, panel) in panels.enumerate() {
            for r in 0..ROWS {
                let row = (tile * ROWS + r).min(self.rows - 1);
                let row = &self.weights[row * self.input..][..self.input];
                let row = &row[steps.start * S::LANES..steps.end * S::LANES];
                let places = panel.chunks_exact_mut(2 * ROWS * S::LANES);
                for (from, places) in row.chunks_exact(2 * S::LANES).zip(places) {
                    for (half, step) in places.chunks_exact_mut(ROWS * S::LANES).enumerate() {
                        let to = &mut step[r * S::LANES..][..S::LANES];
                        // SAFETY: the caller guarantees the features of `S`; `from` has two
                        // vectors, and `to` has one.
                        unsafe { E::load_half::<S>(from.as_ptr(), half).store(to.as_mut_ptr()) };
                    }
                }
            }
        }
    }

    /// Sets `columns[t][row..row + ROWS]` to the products of the tokens of the panel `x` with the rows of a tile:
    /// the lanes of `sums`, added up, and the elements that are left of each row. Columns behind the block's
    /// last row mean nothing.
    ///
    /// # Safety
    /// The CPU must have `S`'s features.
    #[inline(always)]
    unsafe fn finish<S: Simd, const TOKENS: usize>(
        &self,
        row: usize,
        x: &[f32],
        sums: &[f32],
        columns: &mut [[f32; MAX_ROWS_PER_TASK]; TOKENS],
    ) {
        const { assert!((TOKENS * ROWS).is_multiple_of(4) && MAX_ROWS_PER_TASK.is_multiple_of(ROWS)) };
        let whole = self.input / (2 * S::LANES) * 2 * S::LANES;
        let sums = &sums[..TOKENS * ROWS * S::LANES];
        let mut values = [[0.0; 4]; 8];
        for (i, values) in values.iter_mut().enumerate().take(TOKENS * ROWS / 4) {
            let sums = &sums[i * 4 * S::LANES..][..4 * S::LANES];
            // SAFETY: the caller guarantees the features of `S`; the slice has four vectors.
            *values = unsafe {
                let mut four = [S::zero(); 4];
                for (vector, sums) in four.iter_mut().zip(sums.chunks_exact(S::LANES)) {
                    *vector = S::load_f32(sums.as_ptr());
                }
                S::sums(four)
            };
        }
        let (values, _) = values.as_flattened().as_chunks::<ROWS>();
        for (columns, values) in columns.iter_mut().zip(values) {
            columns[row..row + ROWS].copy_from_slice(values);
        }
        // Each row may have elements behind its last whole pair of vectors. They are added one by one.
        for row in row..self.rows.min(row + ROWS) {
            for (t, columns) in columns.iter_mut().enumerate() {
                for k in whole..self.input {
                    let x = x[place(TOKENS, S::LANES, t, k)];
                    columns[row] += x * self.weights[row * self.input + k].widen();
                }
            }
        }
    }

    /// Adds the bias to `columns`, and writes them as the columns of this block for a token.
    ///
    /// # Safety
    /// The token must exist, `columns` must have `self.rows` elements, and no other task may access the elements
    /// of `y` that are written.
    #[inline(always)]
    unsafe fn write_row(&self, token: usize, columns: &mut [f32]) {
        if let Some(bias) = self.bias {
            for (column, bias) in columns.iter_mut().zip(&bias[self.from..][..self.rows]) {
                *column += bias;
            }
        }
        // SAFETY: the caller guarantees the elements of `y`, and nothing else refers to `columns`.
        unsafe {
            let to = self.y.at(token, self.from);
            to.copy_from_nonoverlapping(columns.as_ptr(), columns.len());
        }
    }
}

/// Activations that are prefetched while others are multiplied.
struct Ahead {
    next: *const f32,
    lines: usize,
}

/// Adds the products of the panels `x` and `weights`, which have the same number of steps, to
/// `kept`: `TOKENS` x [`ROWS`] vectors. If `first`, they are set, and what they had means nothing.
/// Each step prefetches one line, because many at once would wait for each other: first those `ahead`, and then,
/// if steps are left, those of the next tile's sums, which follow `kept`.
///
/// # Safety
/// The CPU must have `S`'s features.
#[inline(always)]
unsafe fn add<S: Simd, const TOKENS: usize>(
    x: &[f32],
    weights: &[f32],
    kept: &mut [f32],
    first: bool,
    ahead: Ahead,
) {
    let steps = weights.len() / (ROWS * S::LANES);
    let x = &x[..steps * TOKENS * S::LANES];
    let kept = &mut kept[..TOKENS * ROWS * S::LANES];
    // SAFETY: the caller guarantees the features of `S`, and a prefetch accepts any address. A step reads
    // `TOKENS` vectors of `x` and `ROWS` vectors of `weights`, and `kept` has `TOKENS * ROWS` vectors: the
    // slices above check it.
    unsafe {
        let (mut x, mut weights) = (x.as_ptr(), weights.as_ptr());
        let kept = kept.as_mut_ptr();
        let mut sums = [[S::zero(); ROWS]; TOKENS];
        if !first {
            for (t, sums) in sums.iter_mut().enumerate() {
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = S::load_f32(kept.add((t * ROWS + r) * S::LANES));
                }
            }
        }
        // A task of few tiles may have more lines than steps.
        let fetching = ahead.lines.min(steps);
        for line in fetching..ahead.lines {
            S::prefetch(ahead.next.wrapping_add(line * CACHE_LINE));
        }
        for line in 0..fetching {
            S::prefetch(ahead.next.wrapping_add(line * CACHE_LINE));
            add_step::<S, TOKENS>(&mut sums, &mut x, &mut weights);
        }
        let next = kept.wrapping_add(TOKENS * ROWS * S::LANES);
        let lines = (TOKENS * ROWS * S::LANES / CACHE_LINE).min(steps - fetching);
        for line in 0..lines {
            S::prefetch(next.wrapping_add(line * CACHE_LINE));
            add_step::<S, TOKENS>(&mut sums, &mut x, &mut weights);
        }
        for _ in fetching + lines..steps {
            add_step::<S, TOKENS>(&mut sums, &mut x, &mut weights);
        }
        for (t, sums) in sums.iter().enumerate() {
            for (r, sum) in sums.iter().enumerate() {
                sum.store(kept.add((t * ROWS + r) * S::LANES));
            }
        }
    }
}

/// Adds the products of one step of the panels `x` and `weights`, and moves these to the next one.
///
/// # Safety
/// The CPU must have `S`'s features, and the panels must have the step.
#[inline(always)]
unsafe fn add_step<S: Simd, const TOKENS: usize>(
    sums: &mut [[S; ROWS]; TOKENS],
    x: &mut *const f32,
    weights: &mut *const f32,
) {
    // SAFETY: the caller's guarantees.
    unsafe {
        let mut w = [S::zero(); ROWS];
        for (r, w) in w.iter_mut().enumerate() {
            *w = S::load_f32(weights.add(r * S::LANES));
        }
        for (t, sums) in sums.iter_mut().enumerate() {
            let x = S::load_f32(x.add(t * S::LANES));
            for (sum, w) in sums.iter_mut().zip(w) {
                *sum = sum.add_mul(x, w);
            }
        }
        *x = x.add(TOKENS * S::LANES);
        *weights = weights.add(ROWS * S::LANES);
    }
}
