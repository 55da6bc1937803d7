//! `y = x W^T + b` with `W` in the `[out, in]` layout of Hugging Face checkpoints.
//!
//! Both matrices are contiguous along the summed dimension, so the inner loop is a block of dot
//! products held in registers. Tasks share out the rows of `W`: with a single token, each thread
//! streams its part of the weights once, and decoding is bound by nothing else.

#[cfg(test)]
mod tests;

use std::ops::Range;

use rayon::prelude::*;

use super::aligned::Aligned;
use super::output::{Addend, Output, with_addend};
use super::simd::{Level, Simd, Stored, Task};

/// From this many tokens on, it pays to widen a block of weights once and to copy the activations
/// to addresses that are aligned to cache lines.
const WIDEN_FROM_TOKENS: usize = 48;
/// How far ahead weights are prefetched, in elements of a row. The hardware prefetcher follows long
/// rows by itself, but not four short rows side by side.
const FETCH_AHEAD: usize = 2048;
/// Bytes of a cache line.
const CACHE_LINE: usize = 64;
/// Tokens whose activations should stay in the second-level cache.
const TOKEN_BLOCK: usize = 64;
/// Bytes of activations that fit the first-level cache beside a few rows of weights.
const NEAR_BYTES: usize = 28 << 10;
/// Rows of `W` in a task: enough to make up for the overhead of a task.
const MIN_ROWS_PER_TASK: usize = 16;
const MAX_ROWS_PER_TASK: usize = 64;

/// A product of some tokens with a matrix. All of `y` `[tokens, output]` is written.
pub struct Job<'a, E> {
    /// `[tokens, input]`
    pub x: &'a [f32],
    /// `[output, input]`
    pub weight: &'a [E],
    /// `[output]`
    pub bias: Option<&'a [f32]>,
    /// What is added to the product.
    pub addend: Option<&'a dyn Addend>,
    pub y: Output,
}

/// Computes all `jobs`, whose matrices have `input` columns. The threads share the rows of all
/// matrices.
pub fn linear<E: Stored>(jobs: &[Job<'_, E>], input: usize) {
    on_vectors(Level::best(), jobs, input);
}

/// [`linear`] with the given vectors, which the CPU must have.
fn on_vectors<E: Stored>(level: Level, jobs: &[Job<'_, E>], input: usize) {
    let mut all = 0;
    let copies = jobs.iter().map(|job| {
        let (tokens, output) = (job.x.len() / input, job.weight.len() / input);
        let shape = (job.y.tokens, job.y.width);
        assert_eq!(shape, (tokens, output), "linear: shape of y");
        all += output;
        (tokens >= WIDEN_FROM_TOKENS).then(|| copy(job.x))
    });
    let copies: Vec<Option<Aligned<f32>>> = copies.collect();
    let share = all.div_ceil(4 * rayon::current_num_threads());
    // Whole tiles, and whole vectors of an addend.
    let whole = match jobs.iter().any(|job| job.addend.is_some()) {
        true => MIN_ROWS_PER_TASK,
        false => 4,
    };
    let rows = share
        .next_multiple_of(whole)
        .clamp(MIN_ROWS_PER_TASK, MAX_ROWS_PER_TASK);
    let of_job = |(index, job): (usize, &Job<'_, E>)| {
        let starts = (0..job.y.width).step_by(rows);
        starts.map(move |from| (index, from))
    };
    let tasks: Vec<(usize, usize)> = jobs.iter().enumerate().flat_map(of_job).collect();
    tasks
        .into_par_iter()
        .for_each_init(Aligned::default, |scratch, (index, from)| {
            let Job {
                x,
                weight,
                bias,
                addend,
                y,
            } = jobs[index];
            let columns = from..(from + rows).min(y.width);
            let block = Block {
                x: copies[index].as_deref().unwrap_or(x),
                weight,
                bias,
                y,
                input,
                tokens: y.tokens,
                from: columns.start,
                to: columns.end,
                scratch,
            };
            // SAFETY: the caller passes a level that this CPU has. These columns are this task's.
            unsafe {
                with_addend(addend, y, columns, || level.run(block));
            }
        });
}

/// Copies `x` to memory that begins at a cache line.
fn copy(x: &[f32]) -> Aligned<f32> {
    const PIECE: usize = 1 << 14;
    let mut aligned = Aligned::zeroed(x.len());
    let pieces = aligned.par_chunks_mut(PIECE).zip(x.par_chunks(PIECE));
    pieces.for_each(|(to, from)| to.copy_from_slice(from));
    aligned
}

/// The product of all tokens with the rows `from..to` of the weights.
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
        // SAFETY: the caller guarantees the features of `S`; `rows` has `to - from` rows of `input`
        // weights.
        unsafe {
            if self.tokens >= WIDEN_FROM_TOKENS {
                let mut scratch = std::mem::take(self.scratch);
                scratch.resize(rows.len());
                widen::<S, E>(rows, &mut scratch);
                if S::LANES == 16 {
                    // 24 sums, and the operands, fit into the 32 registers of AVX-512.
                    self.multiply::<S, f32, 6, 4>(&scratch, false);
                } else {
                    self.multiply::<S, f32, 3, 4>(&scratch, false);
                }
                *self.scratch = scratch;
            } else if E::IS_F32 || self.tokens <= 4 {
                self.multiply::<S, E, 4, 4>(rows, true);
            } else {
                // Widening is most of the work here, so it is done once for eight tokens.
                self.multiply::<S, E, 8, 2>(rows, true);
            }
        }
    }
}

impl<E: Stored> Block<'_, E> {
    /// Computes the block in tiles of at most `TOKENS` x `ROWS`. `fetch` means that the weights
    /// come from memory, not from a cache.
    ///
    /// # Safety
    /// The CPU must have `S`'s features, and `rows` must hold the weights of rows `from..to`.
    #[inline(always)]
    unsafe fn multiply<S: Simd, W: Stored, const TOKENS: usize, const ROWS: usize>(
        &self,
        rows: &[W],
        fetch: bool,
    ) {
        let count = self.to - self.from;
        let whole = count / ROWS * ROWS;
        // Weights from memory are read once for many tokens. Weights from a cache are read again,
        // and the activations should stay in the nearest cache.
        let block = match fetch {
            true => TOKEN_BLOCK,
            false => (NEAR_BYTES / (4 * self.input) / TOKENS).max(1) * TOKENS,
        };
        for token in (0..self.tokens).step_by(block) {
            let tokens = token..(token + block).min(self.tokens);
            // The first pass over the weights brings them into a cache for the others.
            let fetch = fetch && token == 0;
            // SAFETY: the caller guarantees the features of `S`; `weights` begins with the `ROWS`
            // rows of the tile.
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

    /// Computes `ROWS` rows for `tokens`, in tiles of `TOKENS` tokens and fewer at the end.
    ///
    /// # Safety
    /// The CPU must have `S`'s features, and `weights` must begin with the rows of the tile.
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
            // SAFETY: the caller's guarantees are those of `tile`; `here` tokens from `token` on
            // exist.
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

    /// Computes `TOKENS` x `ROWS` dot products, with the sums in registers.
    ///
    /// # Safety
    /// The CPU must have `S`'s features. The tile must lie within `y`, and its elements must be
    /// this task's.
    #[inline(always)]
    unsafe fn tile<S: Simd, W: Stored, const TOKENS: usize, const ROWS: usize>(
        &self,
        token: usize,
        row: usize,
        weights: &[W],
        fetch: bool,
    ) {
        let width = self.input;
        // Fetch the next tile if rows are short: it is four rows on.
        let ahead = if width <= FETCH_AHEAD {
            4 * width
        } else {
            FETCH_AHEAD
        };
        let x = &self.x[token * width..(token + TOKENS) * width];
        let weights = &weights[..ROWS * width];
        let whole = width / S::LANES * S::LANES;
        // SAFETY: the caller guarantees the features of `S`. `x` has `TOKENS` rows and `weights`
        // has `ROWS` rows of `width` elements (the slices above check it), `k + LANES` is at most
        // `width`, and the elements of `y` are this task's.
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

/// The sum of the lanes of each vector, computed four at a time where possible.
///
/// # Safety
/// The CPU must have `S`'s features.
#[inline(always)]
pub unsafe fn totals<S: Simd, const N: usize>(vectors: &[S; N]) -> [f32; N] {
    let mut totals = [0.0; N];
    let fours = N / 4 * 4;
    for at in (0..fours).step_by(4) {
        // SAFETY: the caller guarantees the features of `S`.
        let four = unsafe { S::sums(std::array::from_fn(|i| vectors[at + i])) };
        totals[at..at + 4].copy_from_slice(&four);
    }
    for at in fours..N {
        // SAFETY: the caller guarantees the features of `S`.
        totals[at] = unsafe { vectors[at].sum() };
    }
    totals
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
