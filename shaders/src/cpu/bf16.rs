//! `y = x W^T + b` for packed weights in bf16, on CPUs that multiply bf16: with matrix tiles
//! ([`amx`]), or with the dot products of AVX-512 ([`dots`]).
//!
//! Activations are rounded to bf16, as GPUs and llama.cpp do for bf16 weights. Sums are f32. A CPU
//! uses the same instructions for every number of tokens and adds in the same order, so that a token
//! has the same bits alone and among five hundred others.

mod dots;
#[cfg(test)]
mod tests;

use half::bf16;
use rayon::prelude::*;

use super::aligned::Aligned;
use super::amx;
use super::blocks::{BlockFormat, Job};
use super::simd::{Simd, Stored, Task, dispatch};

/// Elements of the summed dimension that are rounded together: those of a row of a matrix tile.
pub const DEPTH: usize = 32;

/// True if this CPU multiplies bf16 and the limit allows it.
pub fn available() -> bool {
    amx::available() || dots::available()
}

/// Computes all `jobs`, whose matrices are in bf16. The instructions have to be [`available`].
///
/// # Panics
/// A shape is wrong, or a matrix has another format.
pub fn linear(jobs: &[Job<'_>]) {
    match amx::available() {
        true => jobs.iter().for_each(amx::floats::linear),
        false => dots::linear(jobs),
    }
}

/// Checks the shapes of a job, on which the kernels rely.
pub fn check(job: &Job<'_>) {
    let [weight] = job.parts[..] else {
        panic!("linear: {} parts of a bf16 matrix", job.parts.len());
    };
    assert_eq!(weight.format, BlockFormat::Bf16, "linear: format");
    let (tokens, width) = (job.y.tokens, job.y.width);
    assert_eq!(job.x.len(), tokens * weight.columns, "linear: length of x");
    assert_eq!(width, weight.rows, "linear: columns of y");
    if let Some(bias) = job.bias {
        assert_eq!(bias.len(), weight.rows, "linear: length of bias");
    }
}

/// Rounds `x` `[tokens, columns]` to bf16: for every `side` tokens, `depth` tiles of `[side,
/// DEPTH]`. Missing columns are zero, and so are tokens that the last tile lacks.
pub fn round(x: &[f32], columns: usize, depth: usize, side: usize) -> Aligned<bf16> {
    let tokens = x.len() / columns;
    let tile = side * DEPTH;
    let mut rounded = Aligned::zeroed(tokens.div_ceil(side) * depth * tile);
    let tiles = rounded
        .par_chunks_mut(depth * tile)
        .zip(x.par_chunks(side * columns));
    tiles.for_each(|(rounded, x)| {
        dispatch(Rounding {
            x,
            columns,
            side,
            rounded,
        });
    });
    rounded
}

/// Rounds the tokens of one row of tiles.
struct Rounding<'a> {
    x: &'a [f32],
    columns: usize,
    side: usize,
    rounded: &'a mut [bf16],
}

impl Task for Rounding<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (row, x) in self.x.chunks_exact(self.columns).enumerate() {
            let (whole, rest) = x.as_chunks::<DEPTH>();
            let at = |tile: usize| (tile * self.side + row) * DEPTH;
            for (tile, x) in whole.iter().enumerate() {
                let to = &mut self.rounded[at(tile)..][..DEPTH];
                for i in 0..DEPTH {
                    to[i] = bf16::narrow(x[i]);
                }
            }
            let to = rest.iter().zip(at(whole.len())..);
            for (x, to) in to {
                self.rounded[to] = bf16::narrow(*x);
            }
        }
    }
}
