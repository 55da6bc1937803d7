//! `y = x W^T + b` with `W` in Hugging Face's `[out, in]` layout.
//!
//! Both operands are contiguous along the summed dimension, so the inner loop is
//! a block of dot products held in registers. Work is split over rows of `W`: at
//! batch 1 each thread streams its share of the weights once, which is all that
//! decoding is bound by.

use rayon::prelude::*;

use super::simd::{Simd, Stored, Task, dispatch};

/// From this many tokens on, widening a block of weights once pays for itself.
const WIDEN_FROM_TOKENS: usize = 8;
/// Tokens whose activations are kept in the second-level cache at a time.
const TOKEN_BLOCK: usize = 64;
/// Rows of `W` in a task: large enough to hide the cost of handing it out.
const MIN_ROWS_PER_TASK: usize = 16;
const MAX_ROWS_PER_TASK: usize = 64;

/// `x` `[tokens, input]`, `weight` `[output, input]`, `y` `[tokens, output]`.
pub fn linear<E: Stored>(
    x: &[f32],
    weight: &[E],
    bias: Option<&[f32]>,
    y: &mut [f32],
    input: usize,
) {
    let output = weight.len() / input;
    let tokens = x.len() / input;
    assert_eq!(y.len(), tokens * output, "linear: length of y");
    let share = output.div_ceil(4 * rayon::current_num_threads());
    let rows = share
        .next_multiple_of(4)
        .clamp(MIN_ROWS_PER_TASK, MAX_ROWS_PER_TASK);
    let y = Columns {
        at: y.as_mut_ptr(),
        width: output,
    };
    (0..output.div_ceil(rows))
        .into_par_iter()
        .for_each_init(Vec::new, |scratch, task| {
            let from = task * rows;
            let to = (from + rows).min(output);
            dispatch(Block {
                x,
                weight,
                bias,
                y,
                input,
                tokens,
                from,
                to,
                scratch,
            });
        });
}

/// The output matrix, written by many tasks, each to its own columns.
#[derive(Clone, Copy)]
struct Columns {
    at: *mut f32,
    width: usize,
}

// SAFETY: tasks write disjoint columns, and the slice outlives the parallel loop.
unsafe impl Send for Columns {}
unsafe impl Sync for Columns {}

/// The product of all tokens with rows `from..to` of the weights.
struct Block<'a, E> {
    x: &'a [f32],
    weight: &'a [E],
    bias: Option<&'a [f32]>,
    y: Columns,
    input: usize,
    tokens: usize,
    from: usize,
    to: usize,
    scratch: &'a mut Vec<f32>,
}

impl<E: Stored> Task for Block<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let rows = &self.weight[self.from * self.input..self.to * self.input];
        unsafe {
            if E::IS_F32 || self.tokens < WIDEN_FROM_TOKENS {
                self.multiply::<S, E>(rows);
            } else {
                let mut scratch = std::mem::take(self.scratch);
                scratch.clear();
                scratch.resize(rows.len(), 0.0);
                widen::<S, E>(rows, &mut scratch);
                self.multiply::<S, f32>(&scratch);
                *self.scratch = scratch;
            }
        }
    }
}

impl<E: Stored> Block<'_, E> {
    /// # Safety
    /// The CPU must have `S`'s features.
    #[inline(always)]
    unsafe fn multiply<S: Simd, W: Stored>(&self, rows: &[W]) {
        for token in (0..self.tokens).step_by(TOKEN_BLOCK) {
            let last = (token + TOKEN_BLOCK).min(self.tokens);
            let mut row = 0;
            let count = self.to - self.from;
            while row < count {
                let here = (count - row).min(4);
                let weights = &rows[row * self.input..(row + here) * self.input];
                unsafe {
                    match here {
                        4 => self.tokens_by::<S, W, 4>(token, last, row, weights),
                        3 => self.tokens_by::<S, W, 3>(token, last, row, weights),
                        2 => self.tokens_by::<S, W, 2>(token, last, row, weights),
                        _ => self.tokens_by::<S, W, 1>(token, last, row, weights),
                    }
                }
                row += here;
            }
        }
    }

    /// # Safety
    /// The CPU must have `S`'s features.
    #[inline(always)]
    unsafe fn tokens_by<S: Simd, W: Stored, const ROWS: usize>(
        &self,
        from: usize,
        to: usize,
        row: usize,
        weights: &[W],
    ) {
        let mut token = from;
        while token < to {
            unsafe {
                match to - token {
                    1 => self.tile::<S, W, 1, ROWS>(token, row, weights),
                    2 => self.tile::<S, W, 2, ROWS>(token, row, weights),
                    3 => self.tile::<S, W, 3, ROWS>(token, row, weights),
                    _ => self.tile::<S, W, 4, ROWS>(token, row, weights),
                }
            }
            token += (to - token).min(4);
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
    ) {
        let width = self.input;
        let x = &self.x[token * width..(token + TOKENS) * width];
        let weights = &weights[..ROWS * width];
        let whole = width / S::LANES * S::LANES;
        unsafe {
            let mut sums = [[S::zero(); ROWS]; TOKENS];
            for k in (0..whole).step_by(S::LANES) {
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
                for (r, sum) in sums.iter().enumerate() {
                    let mut value = sum.sum();
                    for k in whole..width {
                        value += x[t * width + k] * weights[r * width + k].widen();
                    }
                    let column = self.from + row + r;
                    if let Some(bias) = self.bias {
                        value += bias[column];
                    }
                    self.y
                        .at
                        .add((token + t) * self.y.width + column)
                        .write(value);
                }
            }
        }
    }
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
