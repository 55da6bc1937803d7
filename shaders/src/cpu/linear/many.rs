//! Products of many tokens: the weights of a task are widened once, to a buffer that stays in a
//! cache, and the tiles have as many sums as 32 registers hold.

use std::ops::Range;

use rayon::prelude::*;

use super::Block;
use crate::cpu::aligned::Aligned;
use crate::cpu::simd::{Simd, Stored, Task};

/// Tokens and rows of a tile. 24 sums, and the operands, fit into the registers.
const TOKENS: usize = 6;
const ROWS: usize = 4;
/// Bytes of activations that fit the first-level cache beside a few rows of weights.
const NEAR_BYTES: usize = 28 << 10;

/// A block whose activations are in the order of the caller.
pub struct Widened<'a, E> {
    pub block: Block<'a, E>,
    pub scratch: &'a mut Aligned<f32>,
}

/// Copies `x` to memory that begins at a cache line.
pub fn copy(x: &[f32]) -> Aligned<f32> {
    const PIECE: usize = 1 << 14;
    let mut aligned = Aligned::zeroed(x.len());
    let pieces = aligned.par_chunks_mut(PIECE).zip(x.par_chunks(PIECE));
    pieces.for_each(|(to, from)| to.copy_from_slice(from));
    aligned
}

impl<E: Stored> Task for Widened<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { block, scratch } = self;
        scratch.resize(block.weights.len());
        // SAFETY: the caller guarantees the features of `S`; `scratch` has the rows of the block.
        unsafe {
            widen::<S, E>(block.weights, scratch);
            block.multiply::<S>(scratch);
        }
    }
}

impl<E: Stored> Block<'_, E> {
    /// Computes the block with its widened weights.
    ///
    /// # Safety
    /// The CPU must have `S`'s features, and `rows` must hold the weights of the block.
    #[inline(always)]
    unsafe fn multiply<S: Simd>(&self, rows: &[f32]) {
        let whole = self.rows / ROWS * ROWS;
        // The weights are read again for each block of tokens, whose activations should stay in
        // the nearest cache.
        let block = (NEAR_BYTES / (4 * self.input) / TOKENS).max(1) * TOKENS;
        for token in (0..self.y.tokens).step_by(block) {
            let tokens = token..(token + block).min(self.y.tokens);
            // SAFETY: the caller guarantees the features of `S`; `weights` begins with the `ROWS`
            // rows of the tile.
            unsafe {
                for row in (0..whole).step_by(ROWS) {
                    let weights = &rows[row * self.input..];
                    self.tokens_by::<S, ROWS>(tokens.clone(), row, weights);
                }
                for row in whole..self.rows {
                    let weights = &rows[row * self.input..];
                    self.tokens_by::<S, 1>(tokens.clone(), row, weights);
                }
            }
        }
    }

    /// Computes `ROWS` rows for `tokens`, in tiles of [`TOKENS`] tokens and fewer at the end.
    ///
    /// # Safety
    /// The CPU must have `S`'s features, and `weights` must begin with the rows of the tile.
    #[inline(always)]
    unsafe fn tokens_by<S: Simd, const ROWS: usize>(
        &self,
        tokens: Range<usize>,
        row: usize,
        weights: &[f32],
    ) {
        let mut token = tokens.start;
        while token < tokens.end {
            let here = match tokens.end - token {
                left if left >= TOKENS => TOKENS,
                left => left.min(4),
            };
            // SAFETY: the caller's guarantees are those of `tile_of`; `here` tokens from `token` on
            // exist.
            unsafe {
                match here {
                    1 => self.tile_of::<S, 1, ROWS>(token, row, weights),
                    2 => self.tile_of::<S, 2, ROWS>(token, row, weights),
                    3 => self.tile_of::<S, 3, ROWS>(token, row, weights),
                    4 => self.tile_of::<S, 4, ROWS>(token, row, weights),
                    _ => self.tile_of::<S, TOKENS, ROWS>(token, row, weights),
                }
            }
            token += here;
        }
    }

    /// Computes `COUNT` x `ROWS` dot products, with the sums in registers.
    ///
    /// # Safety
    /// The CPU must have `S`'s features. The tile must lie within `y`, and its elements must be
    /// this task's.
    #[inline(always)]
    unsafe fn tile_of<S: Simd, const COUNT: usize, const ROWS: usize>(
        &self,
        token: usize,
        row: usize,
        weights: &[f32],
    ) {
        let width = self.input;
        let x = &self.x[token * width..(token + COUNT) * width];
        let weights = &weights[..ROWS * width];
        let whole = width / S::LANES * S::LANES;
        // SAFETY: the caller guarantees the features of `S`. `x` has `COUNT` rows and `weights` has
        // `ROWS` rows of `width` elements (the slices above check it), `k + LANES` is at most
        // `width`, and the elements of `y` are this task's.
        unsafe {
            let mut sums = [[S::zero(); ROWS]; COUNT];
            for k in (0..whole).step_by(S::LANES) {
                let mut w = [S::zero(); ROWS];
                for (r, w) in w.iter_mut().enumerate() {
                    *w = S::load_f32(weights.as_ptr().add(r * width + k));
                }
                for (t, sums) in sums.iter_mut().enumerate() {
                    let x = S::load_f32(x.as_ptr().add(t * width + k));
                    for (sum, w) in sums.iter_mut().zip(w) {
                        *sum = sum.add_mul(x, w);
                    }
                }
            }
            for (t, sums) in sums.iter().enumerate() {
                for (r, sum) in sums.iter().enumerate() {
                    let mut value = sum.sum();
                    for k in whole..width {
                        value += x[t * width + k] * weights[r * width + k];
                    }
                    self.write(token + t, row + r, value);
                }
            }
        }
    }
}

/// Widens `from` to f32.
///
/// # Safety
/// The CPU must have `S`'s features.
#[inline(always)]
unsafe fn widen<S: Simd, E: Stored>(from: &[E], to: &mut [f32]) {
    let length = from.len().min(to.len());
    let whole = length / S::LANES * S::LANES;
    for i in (0..whole).step_by(S::LANES) {
        // SAFETY: the caller guarantees the features of `S`; `i + LANES` is at most the length of
        // both slices.
        unsafe { E::load::<S>(from.as_ptr().add(i)).store(to.as_mut_ptr().add(i)) };
    }
    for i in whole..length {
        to[i] = from[i].widen();
    }
}
