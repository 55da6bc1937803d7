//! `y = x W^T + b` with `W` in Hugging Face's `[out, in]` layout.
//!
//! Both operands are contiguous along the summed dimension, so the inner loop is
//! a block of dot products held in registers. Work is split over rows of `W`: at
//! batch 1 each thread streams its share of the weights once, which is all that
//! decoding is bound by.

#[cfg(test)]
mod tests;

use std::ops::Range;

use rayon::prelude::*;

use super::aligned::Aligned;
use super::output::Output;
use super::simd::{Level, Simd, Stored, Task};

/// From this many tokens on, widening a block of weights once, and having whole cache lines of all,
/// pays for itself.
const WIDEN_FROM_TOKENS: usize = 48;
/// How far ahead of their use weights are fetched, at most, in elements of a row. The hardware
/// follows long rows by itself, but not four short ones side by side.
const FETCH_AHEAD: usize = 2048;
/// Bytes that come from memory together.
const CACHE_LINE: usize = 64;
/// Tokens whose activations are kept in the second-level cache at a time.
const TOKEN_BLOCK: usize = 64;
/// Bytes of activations that stay in the first-level cache beside a few rows of weights.
const NEAR_BYTES: usize = 28 << 10;
/// Rows of `W` in a task: large enough to hide the cost of handing it out.
const MIN_ROWS_PER_TASK: usize = 16;
const MAX_ROWS_PER_TASK: usize = 64;

/// `x` `[tokens, input]`, `weight` `[output, input]`, `y` `[tokens, output]`, of which all is
/// written.
pub fn linear<E: Stored>(x: &[f32], weight: &[E], bias: Option<&[f32]>, y: Output, input: usize) {
    on_vectors(Level::best(), x, weight, bias, y, input);
}

/// [`linear`] on vectors of one kind, which the CPU must have.
fn on_vectors<E: Stored>(
    level: Level,
    x: &[f32],
    weight: &[E],
    bias: Option<&[f32]>,
    y: Output,
    input: usize,
) {
    let output = weight.len() / input;
    let tokens = x.len() / input;
    assert_eq!((y.tokens, y.width), (tokens, output), "linear: y");
    let aligned;
    let x = if tokens >= WIDEN_FROM_TOKENS {
        aligned = copy(x);
        &aligned[..]
    } else {
        x
    };
    let share = output.div_ceil(4 * rayon::current_num_threads());
    let rows = share
        .next_multiple_of(4)
        .clamp(MIN_ROWS_PER_TASK, MAX_ROWS_PER_TASK);
    (0..output.div_ceil(rows))
        .into_par_iter()
        .for_each_init(Aligned::default, |scratch, task| {
            let from = task * rows;
            let to = (from + rows).min(output);
            let block = Block {
                x,
                weight,
                bias,
                y,
                input,
                tokens,
                from,
                to,
                scratch,
            };
            // SAFETY: the caller's level is one that this CPU has.
            unsafe { level.run(block) };
        });
}

/// `x` from the beginning of a cache line on.
fn copy(x: &[f32]) -> Aligned<f32> {
    const PIECE: usize = 1 << 14;
    let mut aligned = Aligned::zeroed(x.len());
    let pieces = aligned.par_chunks_mut(PIECE).zip(x.par_chunks(PIECE));
    pieces.for_each(|(to, from)| to.copy_from_slice(from));
    aligned
}

/// The product of all tokens with rows `from..to` of the weights.
struct Block<'a, E> {
    x: &'a [f32],
    weight: &'a [E],
    bias: Option<&'a [f32]>,
    y: Output,
    input: usize,
    tokens: usize,
    from: usize,
    to: usize,
    scratch: &'a mut Aligned<f32>,
}

impl<E: Stored> Task for Block<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let rows = &self.weight[self.from * self.input..self.to * self.input];
        unsafe {
            if self.tokens >= WIDEN_FROM_TOKENS {
                let mut scratch = std::mem::take(self.scratch);
                scratch.resize(rows.len());
                widen::<S, E>(rows, &mut scratch);
                if S::LANES == 16 {
                    // There are registers for 24 sums.
                    self.multiply::<S, f32, 6, 4>(&scratch, false);
                } else {
                    self.multiply::<S, f32, 3, 4>(&scratch, false);
                }
                *self.scratch = scratch;
            } else if E::IS_F32 || self.tokens <= 4 {
                self.multiply::<S, E, 4, 4>(rows, true);
            } else {
                // Widening is most of the work here: do it once for eight tokens.
                self.multiply::<S, E, 8, 2>(rows, true);
            }
        }
    }
}

impl<E: Stored> Block<'_, E> {
    /// In tiles of at most `TOKENS` x `ROWS`; `fetch`: the weights come from memory, not from
    /// a cache.
    ///
    /// # Safety
    /// The CPU must have `S`'s features.
    #[inline(always)]
    unsafe fn multiply<S: Simd, W: Stored, const TOKENS: usize, const ROWS: usize>(
        &self,
        rows: &[W],
        fetch: bool,
    ) {
        let count = self.to - self.from;
        let whole = count / ROWS * ROWS;
        // Weights from memory are read once for many tokens; between caches it is the activations
        // that should stay near.
        let block = match fetch {
            true => TOKEN_BLOCK,
            false => (NEAR_BYTES / (4 * self.input) / TOKENS).max(1) * TOKENS,
        };
        for token in (0..self.tokens).step_by(block) {
            let tokens = token..(token + block).min(self.tokens);
            // The first pass over the weights brings them closer for the others.
            let fetch = fetch && token == 0;
            unsafe {
                for row in (0..whole).step_by(ROWS) {
                    let weights = &rows[row * self.input..];
                    self.tokens_by::<S, W, TOKENS, ROWS>(tokens.clone(), row, weights, fetch);
                }
                for row in whole..count {
                    let weights = &rows[row * self.input..];
                    self.tokens_by::<S, W, TOKENS, 1>(tokens.clone(), row, weights, fetch);
                }
            }
        }
    }

    /// # Safety
    /// The CPU must have `S`'s features.
    #[inline(always)]
    unsafe fn tokens_by<S: Simd, W: Stored, const TOKENS: usize, const ROWS: usize>(
        &self,
        tokens: Range<usize>,
        row: usize,
        weights: &[W],
        fetch: bool,
    ) {
        let mut token = tokens.start;
        while token < tokens.end {
            let fetch = fetch && token == tokens.start;
            let here = match tokens.end - token {
                left if left >= TOKENS => TOKENS,
                left => left.min(4),
            };
            unsafe {
                match here {
                    1 => self.tile::<S, W, 1, ROWS>(token, row, weights, fetch),
                    2 => self.tile::<S, W, 2, ROWS>(token, row, weights, fetch),
                    3 => self.tile::<S, W, 3, ROWS>(token, row, weights, fetch),
                    4 => self.tile::<S, W, 4, ROWS>(token, row, weights, fetch),
                    _ => self.tile::<S, W, TOKENS, ROWS>(token, row, weights, fetch),
                }
            }
            token += here;
        }
    }

    /// `TOKENS` x `ROWS` dot products, accumulated in registers.
    ///
    /// # Safety
    /// The CPU must have `S`'s features.
    #[inline(always)]
    unsafe fn tile<S: Simd, W: Stored, const TOKENS: usize, const ROWS: usize>(
        &self,
        token: usize,
        row: usize,
        weights: &[W],
        fetch: bool,
    ) {
        let width = self.input;
        // Four short rows on: the next tile's.
        let ahead = if width <= FETCH_AHEAD {
            4 * width
        } else {
            FETCH_AHEAD
        };
        let x = &self.x[token * width..(token + TOKENS) * width];
        let weights = &weights[..ROWS * width];
        let whole = width / S::LANES * S::LANES;
        unsafe {
            let mut sums = [[S::zero(); ROWS]; TOKENS];
            for k in (0..whole).step_by(S::LANES) {
                if fetch && (k * size_of::<W>()).is_multiple_of(CACHE_LINE) {
                    for r in 0..ROWS {
                        S::prefetch(weights.as_ptr().wrapping_add(r * width + k + ahead));
                    }
                }
                let mut w = [S::zero(); ROWS];
                for (r, w) in w.iter_mut().enumerate() {
                    *w = W::load::<S>(weights.as_ptr().add(r * width + k));
                }
                for (t, sums) in sums.iter_mut().enumerate() {
                    let x = S::load_f32(x.as_ptr().add(t * width + k));
                    for (sum, w) in sums.iter_mut().zip(w) {
                        *sum = sum.add_mul(x, w);
                    }
                }
            }
            for (t, sums) in sums.iter().enumerate() {
                for (r, mut value) in totals(sums).into_iter().enumerate() {
                    for k in whole..width {
                        value += x[t * width + k] * weights[r * width + k].widen();
                    }
                    let column = self.from + row + r;
                    if let Some(bias) = self.bias {
                        value += bias[column];
                    }
                    self.y.at(token + t, column).write(value);
                }
            }
        }
    }
}

/// The sum of each vector, four at a time where there are as many.
///
/// # Safety
/// The CPU must have `S`'s features.
#[inline(always)]
unsafe fn totals<S: Simd, const N: usize>(vectors: &[S; N]) -> [f32; N] {
    let mut totals = [0.0; N];
    let fours = N / 4 * 4;
    for at in (0..fours).step_by(4) {
        let four = unsafe { S::sums(std::array::from_fn(|i| vectors[at + i])) };
        totals[at..at + 4].copy_from_slice(&four);
    }
    for at in fours..N {
        totals[at] = unsafe { vectors[at].sum() };
    }
    totals
}

/// # Safety
/// The CPU must have `S`'s features.
#[inline(always)]
unsafe fn widen<S: Simd, E: Stored>(from: &[E], to: &mut [f32]) {
    let length = from.len().min(to.len());
    let whole = length / S::LANES * S::LANES;
    for i in (0..whole).step_by(S::LANES) {
        unsafe { E::load::<S>(from.as_ptr().add(i)).store(to.as_mut_ptr().add(i)) };
    }
    for i in whole..length {
        to[i] = from[i].widen();
    }
}
