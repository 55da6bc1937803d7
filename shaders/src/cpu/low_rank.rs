//! Low-rank changes of a matrix on the CPU.
//!
//! The rows of one adapter are computed together, so that its numbers are read and widened once for
//! several of them. Each element is summed by itself in an order that depends on the sizes of the
//! adapter alone, so that a row has the same bits in any batch.

mod expand;
mod shrink;

pub use expand::{Changes, expand, packed};
pub use shrink::shrink;

use rayon::prelude::*;

/// From so many multiplications on, the work is shared among threads: fewer take no longer than it
/// takes to share them.
const SHARED_FROM: usize = 1 << 16;
/// Rows of activations that are multiplied together: the numbers of an adapter are widened once for
/// them.
const TOGETHER: usize = 4;

/// The sizes of a [`LowRankStack`](crate::LowRankStack).
#[derive(Clone, Copy)]
pub struct Sizes<'a> {
    /// `[slots * slices]`
    pub ranks: &'a [u32],
    pub slices: &'a [usize],
    pub rank: usize,
}

impl Sizes<'_> {
    fn rank_of(&self, slot: usize, slice: usize) -> usize {
        self.ranks[slot * self.slices.len() + slice] as usize
    }

    pub fn inner(&self) -> usize {
        self.slices.len() * self.rank
    }

    fn output(&self) -> usize {
        self.slices.iter().sum()
    }
}

/// Runs `run` on each piece, which together take `work` multiplications.
fn each<P: Sync>(work: usize, pieces: &[P], run: impl Fn(&P) + Send + Sync) {
    match work < SHARED_FROM || pieces.len() < 2 {
        true => pieces.iter().for_each(run),
        false => pieces.par_iter().for_each(run),
    }
}
