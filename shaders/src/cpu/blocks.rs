//! Matrices of weights that are packed once, when the model is loaded, so that products read them
//! from front to back. 16 rows are a group, one row to a lane, and each 64 bytes hold a few
//! elements of every row of the group.
//!
//! bf16 is packed for CPUs that multiply bf16 ([`super::bf16`]). The rest of this text is about
//! GGML's blocks of small integers ([`format`]), whose products are computed in integers.
//!
//! Elements are stored as unsigned integers, with an offset added; what this adds to a sum is
//! computed from the activations alone and subtracted. **Activations are rounded** to 8 bits with
//! one scale for every 32 of them ([`activations`]), as llama.cpp does for `Q8_0` and `Q4_0`
//! (except that a scale is f32 here); for larger blocks llama.cpp has one scale for every 256. The
//! products of the elements that share a scale are then summed exactly, and these sums are scaled
//! and added in f32 in the order of the columns; where 16 elements have a scale, the sums of a block's
//! halves are added before they are multiplied by the activations' scale. A result therefore has the
//! same bits alone and in any batch, and with every instruction set.

mod activations;
mod format;
pub(super) mod lanes;
mod product;
mod rows;
mod stored;
#[cfg(test)]
mod tests;
pub(super) mod units;

use std::borrow::Cow;
use std::ops::Range;

use cubecl::bytes::Bytes;
use rayon::prelude::*;

pub use activations::Activations;
pub use format::{BlockFormat, Layout, Scales};
pub use stored::PartScales;

use super::arena::LineBytes;
use super::output::{Addend, Output};

/// Elements of a block of the smaller formats, and activations with one scale.
pub const BLOCK: usize = 32;
/// Rows of a group, which are packed together.
pub const GROUP_ROWS: usize = 16;
/// The same, for the files of this folder.
const ROWS: usize = GROUP_ROWS;
/// The most groups of a task.
const TASK_GROUPS: usize = 8;
/// Bytes that are read at once: four bytes of each row of a group.
pub const LINE: usize = 64;
/// Activations are padded to a multiple of this, which divides the columns of every unit.
pub const UNIT: usize = 2 * BLOCK;
/// The most matrices that are stacked: those of queries, keys and values.
const MOST_PARTS: usize = 3;
/// Bytes of the header, a line of u64: the number of columns, the number of parts, and for each
/// part its rows and its format.
const WORD: usize = size_of::<u64>();
const _: () = assert!((2 + 2 * MOST_PARTS) * WORD <= LINE);

/// A matrix in blocks, `[rows, columns]`, packed for the kernels. It consists of parts one below
/// another, each of which has its own format. Rows are padded with zeros to whole units.
pub struct BlockMatrix {
    bytes: LineBytes,
}

impl BlockMatrix {
    /// The size of a matrix in bytes. `parts` are the format and the number of rows of each part.
    pub fn bytes(parts: &[(BlockFormat, usize)], columns: usize) -> usize {
        let parts = parts.iter();
        LINE + parts
            .map(|(format, rows)| rows.div_ceil(ROWS) * group_bytes(*format, columns))
            .sum::<usize>()
    }

    /// A matrix of zeros. Neighbours in `parts` with the same format become one part.
    ///
    /// # Panics
    /// There are no parts or more than three, or a format has blocks of 256 and they do not divide
    /// the columns.
    pub fn zeros(parts: &[(BlockFormat, usize)], columns: usize) -> Self {
        let mut merged: Vec<(BlockFormat, usize)> = Vec::new();
        for (format, rows) in parts {
            assert!(format.fits(columns), "{columns} columns in {format:?}");
            match merged.last_mut() {
                Some((last, before)) if last == format => *before += rows,
                _ => merged.push((*format, *rows)),
            }
        }
        assert!(
            (1..=MOST_PARTS).contains(&merged.len()),
            "{} parts of a packed matrix",
            merged.len()
        );
        let mut bytes = LineBytes::for_weights(Self::bytes(&merged, columns));
        let parts = merged
            .iter()
            .flat_map(|(format, rows)| [*rows, *format as usize]);
        let header = [columns, merged.len()].into_iter().chain(parts);
        for (word, value) in bytes.chunks_exact_mut(WORD).zip(header) {
            word.copy_from_slice(&(value as u64).to_le_bytes());
        }
        Self { bytes }
    }

    /// Sets the rows `rows`, which lie in one part, in parallel. `row` returns the blocks of a row,
    /// by its index from 0 to the length of `rows`: those of a file in their order, or for
    /// [`BlockFormat::Bf16`] one element for each column.
    ///
    /// # Errors
    /// The index of a row for which `row` returned nothing.
    ///
    /// # Panics
    /// The rows do not exist or lie in several parts, or a row has another length.
    pub fn set_rows<'b>(
        &mut self,
        rows: Range<usize>,
        row: impl Fn(usize) -> Option<Cow<'b, [u8]>> + Sync,
    ) -> Result<(), usize> {
        let mut at = LINE;
        let found = View::parts(&self.bytes).find_map(|view| {
            let from = at;
            at += view.units.len();
            let within = view.first <= rows.start && rows.end <= view.first + view.rows;
            within.then_some((from..at, view.format, view.columns, view.first))
        });
        let (range, format, columns, first) =
            found.unwrap_or_else(|| panic!("rows {rows:?} are not in one part"));
        let (per_block, block_bytes) = format.layout().stored;
        let expected = columns.div_ceil(per_block) * block_bytes;
        // Counted from the first row of the part.
        let within = rows.start - first..rows.end - first;
        let groups = self.bytes[range].par_chunks_exact_mut(group_bytes(format, columns));
        groups.enumerate().try_for_each(|(index, group)| {
            let mut blocks = [const { None }; ROWS];
            let here = index * ROWS..(index + 1) * ROWS;
            for at in here.start.max(within.start)..here.end.min(within.end) {
                let row = row(at - within.start).ok_or(at - within.start)?;
                assert_eq!(row.len(), expected, "bytes of a row of {columns} columns");
                blocks[at % ROWS] = Some(row);
            }
            rows::write(format, group, &blocks);
            Ok(())
        })
    }

    /// The matrix as bytes, for [`View::parts`].
    pub fn into_bytes(self) -> Bytes {
        self.bytes.into_bytes()
    }
}

/// Bytes of 16 rows.
fn group_bytes(format: BlockFormat, columns: usize) -> usize {
    let layout = format.layout();
    columns.div_ceil(layout.unit()) * layout.unit_bytes()
}

/// The number of groups per task, so that all `threads` get the same number of tasks.
pub fn groups_per_task(groups: usize, threads: usize) -> usize {
    let tasks = groups.div_ceil(TASK_GROUPS).next_multiple_of(threads);
    groups.div_ceil(tasks.max(1)).max(1)
}

/// The groups of all `parts`, each of which has the number of its product, in tasks of consecutive
/// groups of one part.
pub fn tasks<'a>(parts: &[(usize, View<'a>)]) -> Vec<(usize, View<'a>, Range<usize>)> {
    let groups = |view: &View| view.rows.div_ceil(ROWS);
    let all = parts.iter().map(|(_, view)| groups(view)).sum();
    let per_task = groups_per_task(all, rayon::current_num_threads());
    let of_part = |(number, view): &(usize, View<'a>)| {
        let (number, view, groups) = (*number, *view, groups(view));
        let starts = (0..groups).step_by(per_task);
        starts.map(move |first| (number, view, first..(first + per_task).min(groups)))
    };
    parts.iter().flat_map(of_part).collect()
}

/// A product of some tokens with a matrix. All of `y` `[tokens, rows]` is written.
pub struct Job<'a> {
    /// `[tokens, columns]`
    pub x: &'a [f32],
    /// All parts of the matrix `[rows, columns]`.
    pub parts: Vec<View<'a>>,
    /// `[rows]`
    pub bias: Option<&'a [f32]>,
    /// The numbers that are added to the product, such as the changes of adapters.
    pub addend: Option<&'a dyn Addend>,
    pub y: Output,
}

/// Computes all `jobs`, whose matrices are all in bf16 or all in blocks of integers. The threads
/// share the rows of all matrices.
pub fn linear(jobs: &[Job<'_>]) {
    let bf16 = |job: &Job<'_>| job.parts[0].format == BlockFormat::Bf16;
    if !jobs.iter().any(bf16) {
        return product::linear(jobs);
    }
    #[cfg(target_arch = "x86_64")]
    super::bf16::linear(jobs);
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("bf16 blocks on a CPU that does not multiply bf16");
}

/// Rows and columns of the matrix with these bytes.
pub fn shape(bytes: &[u8]) -> [usize; 2] {
    let parts = View::parts(bytes);
    parts.fold([0, 0], |[rows, _], view| [rows + view.rows, view.columns])
}

/// A part of a packed matrix, as [`BlockMatrix`] has packed it.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub format: BlockFormat,
    /// The rows of the matrix before this part.
    pub first: usize,
    pub rows: usize,
    pub columns: usize,
    pub(super) units: &'a [u8],
}

impl<'a> View<'a> {
    /// The parts of a matrix.
    ///
    /// # Panics
    /// `bytes` are not those of a [`BlockMatrix`].
    pub fn parts(bytes: &'a [u8]) -> impl Iterator<Item = Self> {
        let (header, mut rest) = bytes.split_at(LINE);
        let words = header.as_chunks::<WORD>().0;
        let word = |index: usize| u64::from_le_bytes(words[index]) as usize;
        let (columns, mut first) = (word(0), 0);
        (0..word(1)).map(move |part| {
            let (rows, format) = (word(2 + 2 * part), BlockFormat::ALL[word(3 + 2 * part)]);
            let length = rows.div_ceil(ROWS) * group_bytes(format, columns);
            let (units, after) = rest.split_at(length);
            let view = Self {
                format,
                first,
                rows,
                columns,
                units,
            };
            (first, rest) = (first + rows, after);
            view
        })
    }

    /// The only part of a matrix.
    ///
    /// # Panics
    /// `bytes` are not those of a [`BlockMatrix`], or it has several parts.
    pub fn of(bytes: &'a [u8]) -> Self {
        let mut parts = Self::parts(bytes);
        match (parts.next(), parts.next()) {
            (Some(view), None) => view,
            _ => panic!("a packed matrix of several formats"),
        }
    }

    /// The rows `rows`, the first of which begins a group, as a matrix of its own.
    pub fn between(self, rows: Range<usize>) -> Self {
        assert!(
            rows.start.is_multiple_of(ROWS) && rows.end <= self.rows,
            "rows {rows:?} of {} are not groups",
            self.rows
        );
        let bytes = self.group_bytes();
        let groups = rows.start / ROWS..rows.end.div_ceil(ROWS);
        Self {
            first: 0,
            rows: rows.len(),
            units: &self.units[groups.start * bytes..groups.end * bytes],
            ..self
        }
    }

    /// Bytes of a group of 16 rows.
    pub fn group_bytes(self) -> usize {
        group_bytes(self.format, self.columns)
    }

    /// The columns of the whole product that the rows of `groups` give.
    pub fn outputs(self, groups: Range<usize>) -> Range<usize> {
        let within = |group: usize| self.first + (group * ROWS).min(self.rows);
        within(groups.start)..within(groups.end)
    }

    /// The units of a group.
    pub fn group(self, group: usize) -> &'a [u8] {
        &self.units[group * self.group_bytes()..][..self.group_bytes()]
    }

    /// The elements of a block of 32 columns, with the format's offset added, or as indices of its
    /// table.
    pub fn elements(self, row: usize, block: usize) -> [u8; BLOCK] {
        let layout = self.format.layout();
        rows::elements(&layout, self.group(row / ROWS), row % ROWS, block)
    }

    /// The scales of the part with this index in its row. The integers of the part are the first in
    /// their lists.
    pub fn scales(self, row: usize, part: usize) -> PartScales {
        let layout = self.format.layout();
        rows::scales(&layout, self.group(row / ROWS), row % ROWS, part)
    }

    /// The elements of a row, dequantised. `out` has `columns` elements.
    pub fn row(self, row: usize, out: &mut [f32]) {
        rows::read(self.format, self.group(row / ROWS), row % ROWS, out);
    }
}
