//! The second of the two products: `h` times `b`, added to the product with the matrix itself.

use std::ops::Range;

use super::{Sizes, TOGETHER, each};
use crate::cpu::output::{Addend, Output};
use crate::cpu::simd::{Level, Simd, Stored, Task};
use crate::low_rank::AdapterGroup;

/// Columns of `b` in a piece of work.
const COLUMNS: usize = 512;
/// Columns of a tile of `b`. The rows of a tile lie one after another, so that a task which needs
/// few columns reads memory from front to back.
const TILE: usize = 64;

/// The second product of a [`LowRankStack`](crate::LowRankStack), with the scales and the biases.
#[derive(Clone, Copy)]
pub struct Changes<'a, E> {
    /// `[rows, slices * rank]`
    pub h: &'a [f32],
    /// `[slots * rank, out]`, each slot [`packed`].
    pub b: &'a [E],
    /// `[slots, out]`
    pub bias: &'a [E],
    /// `[slots, out]`
    pub scale: &'a [f32],
    /// `[slots]`
    pub biased: &'a [bool],
    /// `[slots]`
    pub scaled: &'a [bool],
    pub sizes: Sizes<'a>,
    pub groups: &'a [AdapterGroup],
}

/// The numbers of `b` `[rank, output]` of a slot in the order of [`Changes`]: tile by tile.
pub fn packed(b: &[f32], output: usize) -> Vec<f32> {
    let mut packed = Vec::with_capacity(b.len());
    for from in (0..output).step_by(TILE) {
        let columns = from..(from + TILE).min(output);
        let rows = b.chunks_exact(output);
        packed.extend(rows.flat_map(|row| &row[columns.clone()]));
    }
    packed
}

/// Adds `changes` to `y` `[rows, out]`.
pub fn expand<E: Stored>(y: &mut [f32], changes: &Changes<'_, E>) {
    let (inner, output) = (changes.sizes.inner(), changes.sizes.output());
    assert_eq!(
        changes.h.len() / inner,
        y.len() / output,
        "expand: rows of y"
    );
    let y = Output::of(y, output);
    // A piece has the columns of one adapter, whose numbers are then read from front to back.
    let columns = (0..output).step_by(COLUMNS);
    let columns = columns.map(|from| from..(from + COLUMNS).min(output));
    let pieces: Vec<_> = columns
        .flat_map(|columns| {
            changes
                .groups
                .iter()
                .map(move |group| (group, columns.clone()))
        })
        .collect();
    let rows = changes.groups.iter().map(|group| group.rows.len());
    let work = rows.sum::<usize>() * changes.sizes.rank * output;
    each(work, &pieces, |(group, columns)| {
        let changes = Changes {
            groups: std::slice::from_ref(*group),
            ..*changes
        };
        // SAFETY: `y` is borrowed, and no two pieces have a row and a column in common.
        unsafe { changes.add(y, columns.clone()) };
    });
}

impl<'a, E: Stored> Changes<'a, E> {
    /// The parts of `columns` that an adapter changes: its rows, the slice, and its columns.
    fn parts(
        &self,
        columns: Range<usize>,
    ) -> impl Iterator<Item = (&'a AdapterGroup, usize, Range<usize>)> {
        let sizes = self.sizes;
        let mut from = 0;
        let slices = sizes
            .slices
            .iter()
            .enumerate()
            .filter_map(move |(slice, width)| {
                let all = from..from + width;
                from = all.end;
                let within = all.start.max(columns.start)..all.end.min(columns.end);
                (!within.is_empty()).then_some((slice, within))
            });
        let groups = self.groups;
        slices.flat_map(move |(slice, within)| {
            let changed = move |group: &&AdapterGroup| sizes.rank_of(group.slot, slice) > 0;
            let groups = groups.iter().filter(changed);
            groups.map(move |group| (group, slice, within.clone()))
        })
    }
}

impl<E: Stored> Addend for Changes<'_, E> {
    unsafe fn add(&self, y: Output, columns: Range<usize>) {
        let all = Add {
            changes: self,
            y,
            columns,
        };
        // SAFETY: `Level::best` returns a level that this CPU has. The caller guarantees that the
        // columns are this task's.
        unsafe { Level::best().run(all) };
    }
}

/// The changes of some columns by all adapters.
struct Add<'a, E> {
    changes: &'a Changes<'a, E>,
    y: Output,
    columns: Range<usize>,
}

impl<E: Stored> Task for Add<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self {
            changes,
            y,
            columns,
        } = self;
        let (rank, output) = (changes.sizes.rank, changes.sizes.output());
        for (group, slice, columns) in changes.parts(columns) {
            let slot = group.slot;
            let of_slot = slot * output..(slot + 1) * output;
            let expand = Expand {
                h: changes.h,
                inner: changes.sizes.inner(),
                from: slice * rank,
                rank: changes.sizes.rank_of(slot, slice),
                b: &changes.b[slot * rank * output..][..rank * output],
                bias: changes.biased[slot].then(|| &changes.bias[of_slot.clone()]),
                scale: changes.scaled[slot].then(|| &changes.scale[of_slot.clone()]),
                output,
                rows: &group.rows,
                y,
            };
            // SAFETY: the caller guarantees the features of `S` and that the columns are this
            // task's; no row is in two groups.
            unsafe { expand.columns::<S>(columns) };
        }
    }
}

/// The changes by one adapter.
struct Expand<'a, E> {
    h: &'a [f32],
    /// Columns of `h`, and the first that belongs to the slice.
    inner: usize,
    from: usize,
    /// The rank of the slice.
    rank: usize,
    /// The numbers of the slot.
    b: &'a [E],
    bias: Option<&'a [E]>,
    scale: Option<&'a [f32]>,
    output: usize,
    rows: &'a [u32],
    y: Output,
}

/// Some columns of a tile of `b`.
struct Columns<'a, E> {
    /// The numbers of the first of the columns, and the distance to the next row.
    b: &'a [E],
    stride: usize,
    /// The first of the columns in `y`.
    first: usize,
}

impl<E: Stored> Expand<'_, E> {
    /// Computes some columns.
    ///
    /// # Safety
    /// The CPU must have `S`'s features; these columns must be this task's.
    #[inline(always)]
    unsafe fn columns<S: Simd>(&self, columns: Range<usize>) {
        let mut from = columns.start;
        while from < columns.end {
            let to = ((from / TILE + 1) * TILE).min(columns.end);
            // SAFETY: the caller guarantees the same.
            unsafe { self.within_tile::<S>(from..to) };
            from = to;
        }
    }

    /// Computes columns that are within one tile.
    ///
    /// # Safety
    /// The CPU must have `S`'s features; these columns must be this task's.
    #[inline(always)]
    unsafe fn within_tile<S: Simd>(&self, columns: Range<usize>) {
        /// Vectors of columns whose sums are in registers together.
        const VECTORS: usize = 4;
        let tile = columns.start / TILE * TILE;
        let most = self.b.len() / self.output;
        let at = |column: usize| Columns {
            b: &self.b[tile * most + column - tile..],
            stride: TILE.min(self.output - tile),
            first: column,
        };
        let wide = VECTORS * S::LANES;
        let wide_end = columns.len() / wide * wide;
        let whole_end = columns.len() / S::LANES * S::LANES;
        let first = columns.start;
        // SAFETY: the caller guarantees the same; the columns of each vector are within `columns`.
        unsafe {
            for from in (0..wide_end).step_by(wide) {
                // 16 sums, and the operands, fit into the 32 registers of AVX-512.
                match S::LANES {
                    16 => self.rows_by::<S, TOGETHER, VECTORS>(at(first + from)),
                    _ => self.rows_by::<S, 2, VECTORS>(at(first + from)),
                }
            }
            for from in (wide_end..whole_end).step_by(S::LANES) {
                self.rows_by::<S, TOGETHER, 1>(at(first + from));
            }
            for column in first + whole_end..columns.end {
                self.column::<S>(at(column));
            }
        }
    }

    /// The elements of `h` for a row.
    fn h(&self, row: u32) -> &[f32] {
        &self.h[row as usize * self.inner + self.from..][..self.rank]
    }

    /// `N` vectors of columns for all rows, `T` at a time.
    ///
    /// # Safety
    /// The CPU must have `S`'s features; these columns must be this task's.
    #[inline(always)]
    unsafe fn rows_by<S: Simd, const T: usize, const N: usize>(&self, at: Columns<'_, E>) {
        let (tiles, rest) = self.rows.as_chunks::<T>();
        // SAFETY: the caller guarantees the same.
        unsafe {
            for rows in tiles {
                self.tile::<S, T, N>(rows, &at);
            }
            for row in rest {
                self.tile::<S, 1, N>(&[*row], &at);
            }
        }
    }

    /// `N` vectors of columns for `T` rows.
    ///
    /// # Safety
    /// The CPU must have `S`'s features; these columns must be this task's.
    #[inline(always)]
    unsafe fn tile<S: Simd, const T: usize, const N: usize>(
        &self,
        rows: &[u32; T],
        at: &Columns<'_, E>,
    ) {
        let h: [&[f32]; T] = rows.map(|row| self.h(row));
        let column = at.first;
        let columns = column..column + N * S::LANES;
        let b = &at.b[..(self.rank - 1) * at.stride + N * S::LANES];
        // SAFETY: the caller guarantees the features and the columns, which `y`, `b`, `bias` and
        // `scale` have; each `h` has as many elements as the rank.
        unsafe {
            let y = rows.map(|row| self.y.at(row as usize, column));
            let mut sums = [[S::zero(); N]; T];
            for (y, sums) in y.iter().zip(&mut sums) {
                for (n, sum) in sums.iter_mut().enumerate() {
                    *sum = S::load_f32(y.add(n * S::LANES));
                }
            }
            if let Some(scale) = self.scale {
                let scale = scale[columns.clone()].as_ptr();
                for sums in &mut sums {
                    for (n, sum) in sums.iter_mut().enumerate() {
                        let scale = S::load_f32(scale.add(n * S::LANES));
                        *sum = S::zero().add_mul(*sum, scale);
                    }
                }
            }
            if let Some(bias) = self.bias {
                let (one, bias) = (S::splat(1.0), bias[columns].as_ptr());
                for sums in &mut sums {
                    for (n, sum) in sums.iter_mut().enumerate() {
                        let bias = E::load::<S>(bias.add(n * S::LANES));
                        *sum = sum.add_mul(one, bias);
                    }
                }
            }
            for j in 0..self.rank {
                let b = b.as_ptr().add(j * at.stride);
                let mut vectors = [S::zero(); N];
                for (n, vector) in vectors.iter_mut().enumerate() {
                    *vector = E::load::<S>(b.add(n * S::LANES));
                }
                for (h, sums) in h.iter().zip(&mut sums) {
                    let h = S::splat(*h.get_unchecked(j));
                    for (sum, b) in sums.iter_mut().zip(vectors) {
                        *sum = sum.add_mul(h, b);
                    }
                }
            }
            for (y, sums) in y.iter().zip(sums) {
                for (n, sum) in sums.into_iter().enumerate() {
                    sum.store(y.add(n * S::LANES));
                }
            }
        }
    }

    /// One column for all rows. It has the bits that it would have among others.
    ///
    /// # Safety
    /// The CPU must have `S`'s features; the column must be this task's.
    #[inline(always)]
    unsafe fn column<S: Simd>(&self, at: Columns<'_, E>) {
        let column = at.first;
        for row in self.rows {
            // SAFETY: the caller guarantees the features and the element; vectors have at most 16
            // lanes.
            unsafe {
                let y = self.y.at(*row as usize, column);
                let mut sum = S::splat(y.read());
                if let Some(scale) = self.scale {
                    sum = S::zero().add_mul(sum, S::splat(scale[column]));
                }
                if let Some(bias) = self.bias {
                    sum = sum.add_mul(S::splat(1.0), S::splat(bias[column].widen()));
                }
                for (j, h) in self.h(*row).iter().enumerate() {
                    let b = at.b[j * at.stride].widen();
                    sum = sum.add_mul(S::splat(*h), S::splat(b));
                }
                let mut lanes = [0.0f32; 16];
                sum.store(lanes.as_mut_ptr());
                y.write(lanes[0]);
            }
        }
    }
}
