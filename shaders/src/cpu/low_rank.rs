//! Low-rank changes of a matrix on the CPU.
//!
//! The rows of one adapter are computed together, so that its numbers are read once for them. Each
//! element is summed by itself in an order that depends on the sizes of the adapter alone, so that
//! a row has the same bits in any batch.

use std::ops::Range;

use rayon::prelude::*;

use super::output::Output;
use super::simd::{Level, Simd, Stored, Task};
use crate::low_rank::AdapterGroup;

/// From so many multiplications on, the work is shared among threads: fewer take no longer than it
/// takes to wake the threads.
const SHARED_FROM: usize = 1 << 16;
/// Rows of activations in a piece of work.
const ROWS: usize = 16;
/// Rows of `a` in a piece of work, and those that are multiplied together.
const RANKS: usize = 32;
const TOGETHER: usize = 8;
/// Columns of `b` in a piece of work.
const COLUMNS: usize = 512;

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

/// A part of the work: some rows of one adapter, and some rows of `a` or columns of `b` in a slice.
struct Piece<'a> {
    slot: usize,
    rows: &'a [u32],
    slice: usize,
    /// Within all slices.
    within: Range<usize>,
}

/// `x` `[rows, in]` times the transpose of `a` `[slots * slices * rank, in]`: `[rows, slices *
/// rank]`. Zeros for rows without an adapter, and beyond an adapter's rank.
pub fn shrink<E: Stored>(
    x: &[f32],
    a: &[E],
    input: usize,
    sizes: Sizes<'_>,
    groups: &[AdapterGroup],
) -> Vec<f32> {
    let (inner, rows) = (sizes.inner(), x.len() / input);
    let mut h = vec![0.0; rows * inner];
    let out = Output::of(&mut h, inner);
    let pieces = pieces(sizes, groups, RANKS, |slot, slice| {
        let first = slice * sizes.rank;
        first..first + sizes.rank_of(slot, slice)
    });
    let work = pieces.iter().map(|p| p.rows.len() * p.within.len() * input);
    each(work.sum(), &pieces, |piece| {
        let first = piece.slot * inner;
        // SAFETY: `Level::best` returns a level that this CPU has. No two pieces have a row and an
        // element of `h` in common.
        unsafe {
            Level::best().run(Shrink {
                x,
                a: &a[(first + piece.within.start) * input..(first + piece.within.end) * input],
                input,
                rows: piece.rows,
                first: piece.within.start,
                out,
            });
        }
    });
    h
}

/// Adds `h` `[rows, slices * rank]` times `b` `[slots * rank, out]`, and the bias `[slots, out]` of
/// the slots that `biased` names, to `y` `[rows, out]`.
pub fn expand<E: Stored>(
    y: &mut [f32],
    h: &[f32],
    [b, bias]: [&[E]; 2],
    biased: &[bool],
    sizes: Sizes<'_>,
    groups: &[AdapterGroup],
) {
    let (inner, output) = (sizes.inner(), sizes.output());
    assert_eq!(h.len() / inner, y.len() / output, "expand: rows of y");
    let y = Output::of(y, output);
    let first_of = |slice: usize| sizes.slices[..slice].iter().sum::<usize>();
    let pieces = pieces(sizes, groups, COLUMNS, |slot, slice| {
        let first = first_of(slice);
        match sizes.rank_of(slot, slice) {
            0 => first..first,
            _ => first..first + sizes.slices[slice],
        }
    });
    let work = pieces.iter().map(|piece| {
        piece.rows.len() * piece.within.len() * sizes.rank_of(piece.slot, piece.slice)
    });
    each(work.sum(), &pieces, |piece| {
        let rank = sizes.rank_of(piece.slot, piece.slice);
        // SAFETY: `Level::best` returns a level that this CPU has. No two pieces have a row and a
        // column in common.
        unsafe {
            Level::best().run(Expand {
                h,
                inner,
                from: piece.slice * sizes.rank,
                b: &b[piece.slot * sizes.rank * output..][..rank * output],
                bias: biased[piece.slot].then(|| &bias[piece.slot * output..][..output]),
                output,
                rows: piece.rows,
                columns: piece.within.clone(),
                y,
            });
        }
    });
}

/// Cuts the work of all groups; `within` gives the elements of a slot's slice.
fn pieces<'a>(
    sizes: Sizes<'_>,
    groups: &'a [AdapterGroup],
    most: usize,
    within: impl Fn(usize, usize) -> Range<usize>,
) -> Vec<Piece<'a>> {
    let mut pieces = Vec::new();
    for group in groups {
        for slice in 0..sizes.slices.len() {
            let all = within(group.slot, slice);
            for from in all.clone().step_by(most) {
                let to = (from + most).min(all.end);
                pieces.extend(group.rows.chunks(ROWS).map(|rows| Piece {
                    slot: group.slot,
                    rows,
                    slice,
                    within: from..to,
                }));
            }
        }
    }
    pieces
}

/// Runs `run` on each piece, which together take `work` multiplications.
fn each<'a>(work: usize, pieces: &[Piece<'a>], run: impl Fn(&Piece<'a>) + Send + Sync) {
    match work < SHARED_FROM || pieces.len() < 2 {
        true => pieces.iter().for_each(run),
        false => pieces.par_iter().for_each(run),
    }
}

struct Shrink<'a, E> {
    x: &'a [f32],
    /// The rows of the piece.
    a: &'a [E],
    input: usize,
    rows: &'a [u32],
    /// The element of `out` that the first row of `a` gives.
    first: usize,
    out: Output,
}

impl<E: Stored> Task for Shrink<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let count = self.a.len() / self.input;
        let whole = count / TOGETHER * TOGETHER;
        // SAFETY: the caller guarantees the features of `S`, and that the elements are this task's.
        unsafe {
            for at in (0..whole).step_by(TOGETHER) {
                self.rows_by::<S, TOGETHER>(at);
            }
            for at in whole..count {
                self.rows_by::<S, 1>(at);
            }
        }
    }
}

impl<E: Stored> Shrink<'_, E> {
    /// # Safety
    /// The CPU must have `S`'s features; the elements must be this task's.
    #[inline(always)]
    unsafe fn rows_by<S: Simd, const N: usize>(&self, at: usize) {
        let input = self.input;
        let a = &self.a[at * input..(at + N) * input];
        let whole = input / S::LANES * S::LANES;
        for row in self.rows {
            let row = *row as usize;
            let x = &self.x[row * input..][..input];
            // SAFETY: the caller guarantees the features of `S` and the elements of `out`; `k +
            // LANES` is at most the length of `x` and of each row of `a`.
            unsafe {
                let mut sums = [S::zero(); N];
                for k in (0..whole).step_by(S::LANES) {
                    let x = S::load_f32(x.as_ptr().add(k));
                    for (n, sum) in sums.iter_mut().enumerate() {
                        *sum = sum.add_mul(x, E::load::<S>(a.as_ptr().add(n * input + k)));
                    }
                }
                for (n, sum) in sums.into_iter().enumerate() {
                    let mut sum = sum.sum();
                    for k in whole..input {
                        sum += x[k] * a[n * input + k].widen();
                    }
                    self.out.at(row, self.first + at + n).write(sum);
                }
            }
        }
    }
}

struct Expand<'a, E> {
    h: &'a [f32],
    /// Columns of `h`, and the first that belongs to the slice.
    inner: usize,
    from: usize,
    /// `[rank, output]`, with the rank of the slice.
    b: &'a [E],
    bias: Option<&'a [E]>,
    output: usize,
    rows: &'a [u32],
    columns: Range<usize>,
    y: Output,
}

impl<E: Stored> Task for Expand<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        /// Vectors of columns whose sums are in registers together.
        const VECTORS: usize = 4;
        let rank = self.b.len() / self.output;
        let width = self.columns.len();
        let wide = width / (VECTORS * S::LANES) * (VECTORS * S::LANES);
        let whole = width / S::LANES * S::LANES;
        for row in self.rows {
            let row = *row as usize;
            let h = &self.h[row * self.inner + self.from..][..rank];
            // SAFETY: the caller guarantees the features of `S` and that the elements of `y` are
            // this task's; the columns of each vector are within `columns`.
            unsafe {
                for at in (0..wide).step_by(VECTORS * S::LANES) {
                    self.vectors::<S, VECTORS>(row, h, self.columns.start + at);
                }
                for at in (wide..whole).step_by(S::LANES) {
                    self.vectors::<S, 1>(row, h, self.columns.start + at);
                }
                for column in self.columns.start + whole..self.columns.end {
                    let y = self.y.at(row, column);
                    let mut sum = y.read();
                    if let Some(bias) = self.bias {
                        sum += bias[column].widen();
                    }
                    for (j, h) in h.iter().enumerate() {
                        sum += h * self.b[j * self.output + column].widen();
                    }
                    y.write(sum);
                }
            }
        }
    }
}

impl<E: Stored> Expand<'_, E> {
    /// # Safety
    /// The CPU must have `S`'s features; the `N` vectors of columns from `column` on must be this
    /// task's.
    #[inline(always)]
    unsafe fn vectors<S: Simd, const N: usize>(&self, row: usize, h: &[f32], column: usize) {
        // SAFETY: the caller guarantees the features and the columns, which `y`, `b` and `bias`
        // have.
        unsafe {
            let y = self.y.at(row, column);
            let mut sums = [S::zero(); N];
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum = S::load_f32(y.add(n * S::LANES));
            }
            if let Some(bias) = self.bias {
                let one = S::splat(1.0);
                for (n, sum) in sums.iter_mut().enumerate() {
                    let bias = E::load::<S>(bias.as_ptr().add(column + n * S::LANES));
                    *sum = sum.add_mul(one, bias);
                }
            }
            for (j, h) in h.iter().enumerate() {
                let h = S::splat(*h);
                let b = self.b.as_ptr().add(j * self.output + column);
                for (n, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.add_mul(h, E::load::<S>(b.add(n * S::LANES)));
                }
            }
            for (n, sum) in sums.into_iter().enumerate() {
                sum.store(y.add(n * S::LANES));
            }
        }
    }
}
