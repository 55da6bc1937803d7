//! The first of the two products: activations times the transpose of `a`.

use super::{Sizes, TOGETHER, each};
use crate::cpu::output::Output;
use crate::cpu::simd::{Simd, Stored, Task, dispatch};
use crate::low_rank::AdapterGroup;

/// Rows of activations in a piece of work.
const ROWS: usize = 16;
/// Rows of `a` in a piece of work.
const RANKS: usize = 8;
/// Bytes of a cache line.
const LINE: usize = 64;

/// A part of the work: some rows of one adapter, and some rows of its `a`.
struct Piece<'a> {
    slot: usize,
    rows: &'a [u32],
    /// Elements of a row of the result.
    from: usize,
    to: usize,
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
    let pieces = pieces(sizes, groups);
    let work = pieces
        .iter()
        .map(|p| p.rows.len() * (p.to - p.from) * input);
    each(work.sum(), &pieces, |piece| {
        let first = piece.slot * inner;
        // No two pieces have a row and an element of `h` in common.
        dispatch(Shrink {
            x,
            a: &a[(first + piece.from) * input..(first + piece.to) * input],
            input,
            rows: piece.rows,
            first: piece.from,
            out,
        });
    });
    h
}

fn pieces<'a>(sizes: Sizes<'_>, groups: &'a [AdapterGroup]) -> Vec<Piece<'a>> {
    let mut pieces = Vec::new();
    for group in groups {
        for slice in 0..sizes.slices.len() {
            let first = slice * sizes.rank;
            let end = first + sizes.rank_of(group.slot, slice);
            for from in (first..end).step_by(RANKS) {
                pieces.extend(group.rows.chunks(ROWS).map(|rows| Piece {
                    slot: group.slot,
                    rows,
                    from,
                    to: (from + RANKS).min(end),
                }));
            }
        }
    }
    pieces
}

/// The product of some rows with some rows of `a`. Nothing else may access these elements of `out`.
struct Shrink<'a, E> {
    x: &'a [f32],
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
        // With a single row, more sums side by side hide the time that an addition takes.
        let eights = match self.rows.len() {
            1 => count / RANKS * RANKS,
            _ => 0,
        };
        let fours = count / 4 * 4;
        // SAFETY: the caller guarantees the features of `S`, and that the elements are this task's.
        unsafe {
            for at in (0..eights).step_by(RANKS) {
                self.rows_by::<S, 1, RANKS>(at);
            }
            for at in (eights..fours).step_by(4) {
                self.rows_by::<S, TOGETHER, 4>(at);
            }
            for at in eights.max(fours)..count {
                self.rows_by::<S, TOGETHER, 1>(at);
            }
        }
    }
}

impl<E: Stored> Shrink<'_, E> {
    /// The products of all rows with `N` rows of `a`, in tiles of `T` rows.
    ///
    /// # Safety
    /// The CPU must have `S`'s features; the elements must be this task's.
    #[inline(always)]
    unsafe fn rows_by<S: Simd, const T: usize, const N: usize>(&self, at: usize) {
        let (tiles, rest) = self.rows.as_chunks::<T>();
        // SAFETY: the caller guarantees the same.
        unsafe {
            for (index, rows) in tiles.iter().enumerate() {
                self.tile::<S, T, N>(rows, at, index == 0);
            }
            for row in rest {
                self.tile::<S, 1, N>(&[*row], at, tiles.is_empty());
            }
        }
    }

    /// The products of `T` rows with `N` rows of `a`, with the sums in registers. `fetch` means that
    /// these rows of `a` come from memory.
    ///
    /// # Safety
    /// The CPU must have `S`'s features; the elements must be this task's.
    #[inline(always)]
    unsafe fn tile<S: Simd, const T: usize, const N: usize>(
        &self,
        rows: &[u32; T],
        at: usize,
        fetch: bool,
    ) {
        let input = self.input;
        let whole = input / S::LANES * S::LANES;
        let a = &self.a[at * input..(at + N) * input];
        let x: [&[f32]; T] = rows.map(|row| &self.x[row as usize * input..][..input]);
        // SAFETY: the caller guarantees the features of `S` and the elements of `out`; `k + LANES`
        // is at most the length of each `x` and of each row of `a`.
        unsafe {
            let mut sums = [[S::zero(); N]; T];
            for k in (0..whole).step_by(S::LANES) {
                if fetch && (k * size_of::<E>()).is_multiple_of(LINE) {
                    for n in 0..N {
                        S::prefetch(a.as_ptr().wrapping_add((N + n) * input + k));
                    }
                }
                let mut w = [S::zero(); N];
                for (n, w) in w.iter_mut().enumerate() {
                    *w = E::load::<S>(a.as_ptr().add(n * input + k));
                }
                for (x, sums) in x.iter().zip(&mut sums) {
                    let x = S::load_f32(x.as_ptr().add(k));
                    for (sum, w) in sums.iter_mut().zip(w) {
                        *sum = sum.add_mul(x, w);
                    }
                }
            }
            // By value: sums with an address would be stored after each addition.
            for ((row, x), sums) in rows.iter().zip(x).zip(sums) {
                for (n, mut sum) in totals(&sums).into_iter().enumerate() {
                    for k in whole..input {
                        sum += x[k] * a[n * input + k].widen();
                    }
                    self.out.at(*row as usize, self.first + at + n).write(sum);
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
unsafe fn totals<S: Simd, const N: usize>(vectors: &[S; N]) -> [f32; N] {
    let mut totals = [0.0; N];
    let (fours, rest) = vectors.as_chunks::<4>();
    // SAFETY: the caller guarantees the features of `S`.
    unsafe {
        for (four, totals) in fours.iter().zip(totals.chunks_exact_mut(4)) {
            totals.copy_from_slice(&S::sums(*four));
        }
        for (vector, total) in rest.iter().rev().zip(totals.iter_mut().rev()) {
            *total = vector.sum();
        }
    }
    totals
}
