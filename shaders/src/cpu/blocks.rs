//! Matrices of weights that are packed once, when the model is loaded, so that products read them
//! from front to back. 16 rows are a group, one row to a lane, and each 64 bytes hold a few
//! elements of every row of the group.
//!
//! bf16 is packed for the CPU's matrix tiles ([`super::amx`]), where there are any. The rest of
//! this text is about GGML's blocks of 32 elements with one scale (`Q8_0`, `Q4_0`), whose products
//! are computed in integers.
//!
//! Elements are stored as unsigned integers, with 128 or 8 added; what this adds to a sum is
//! computed from the activations alone and subtracted. **Activations are rounded** to 8 bits with
//! one scale for every 32 of them ([`activations`]), as llama.cpp does for these types, except that
//! a scale is f32 here. The 32 products of a block are then summed exactly, and the sums of the
//! blocks are added in f32 in their order. A result therefore has the same bits alone and in any
//! batch, and with every instruction set.

mod activations;
mod lanes;
mod product;
#[cfg(test)]
mod tests;

use cubecl::bytes::Bytes;
use half::{bf16, f16};

pub use activations::Activations;

use super::arena::LineBytes;
use super::output::Output;

/// Elements of a block.
pub const BLOCK: usize = 32;
/// Rows of a group.
const ROWS: usize = 16;
/// The most groups of a task.
const TASK_GROUPS: usize = 8;
/// Bytes that are read at once: four bytes of each row of a group.
pub const LINE: usize = 64;
/// Columns of a unit. A unit is two blocks of each row of a group, so that their scales fill a
/// line: first the line of scales, if the format has scales, then the elements of the first blocks,
/// then those of the second blocks.
pub const UNIT: usize = 2 * BLOCK;

/// How the elements of a block of 32 are stored, under GGML's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockFormat {
    /// An f16 scale and 32 signed bytes.
    Q8_0,
    /// An f16 scale and 32 numbers from -8 to 7 in 16 bytes, with 8 added. The first half of the
    /// block is in the low bits of the bytes.
    Q4_0,
    /// 32 bf16, little-endian, for CPUs with matrix tiles.
    Bf16,
}

impl BlockFormat {
    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        self.scale() + self.quants()
    }

    /// Bytes of the scale of a block.
    fn scale(self) -> usize {
        match self {
            BlockFormat::Q8_0 | BlockFormat::Q4_0 => size_of::<f16>(),
            BlockFormat::Bf16 => 0,
        }
    }

    /// Bytes of the elements of a block.
    pub fn quants(self) -> usize {
        match self {
            BlockFormat::Q8_0 => BLOCK,
            BlockFormat::Q4_0 => BLOCK / 2,
            BlockFormat::Bf16 => BLOCK * size_of::<bf16>(),
        }
    }

    /// The number that is added to elements so that they are not negative.
    fn offset(self) -> i32 {
        match self {
            BlockFormat::Q8_0 => 128,
            BlockFormat::Q4_0 => 8,
            BlockFormat::Bf16 => 0,
        }
    }

    /// Bytes of a unit.
    pub fn unit_bytes(self) -> usize {
        2 * ROWS * self.bytes()
    }
}

/// A matrix in blocks, `[rows, columns]`, packed for the kernels. The last block of a row is padded
/// with zeros.
pub struct BlockMatrix {
    bytes: LineBytes,
}

/// Bytes at the start of a matrix: the number of rows, the number of columns, and the format. The
/// units begin at the next line.
const HEADER: usize = 3 * size_of::<u64>();

impl BlockMatrix {
    /// The size of a matrix in bytes.
    pub fn bytes(format: BlockFormat, rows: usize, columns: usize) -> usize {
        let units = rows.div_ceil(ROWS) * columns.div_ceil(UNIT);
        LINE + units * format.unit_bytes()
    }

    /// A matrix of zeros.
    pub fn zeros(format: BlockFormat, rows: usize, columns: usize) -> Self {
        let mut bytes = LineBytes::for_weights(Self::bytes(format, rows, columns));
        let number = match format {
            BlockFormat::Q8_0 => 8,
            BlockFormat::Q4_0 => 4,
            BlockFormat::Bf16 => 16,
        };
        for (word, value) in [rows, columns, number].into_iter().enumerate() {
            let to = &mut bytes[word * size_of::<u64>()..][..size_of::<u64>()];
            to.copy_from_slice(&(value as u64).to_le_bytes());
        }
        Self { bytes }
    }

    /// Sets a row from GGML's `blocks`, which are `columns.div_ceil(32)` blocks in their order. For
    /// [`BlockFormat::Bf16`], `blocks` has one element for each column instead.
    ///
    /// # Panics
    /// The row does not exist, or `blocks` has another length.
    pub fn set_row(&mut self, row: usize, blocks: &[u8]) {
        let view = View::of(&self.bytes);
        let (format, columns) = (view.format, view.columns);
        let units = columns.div_ceil(UNIT);
        assert!(row < view.rows, "row {row} of {}", view.rows);
        let expected = match format {
            BlockFormat::Q8_0 | BlockFormat::Q4_0 => columns.div_ceil(BLOCK) * format.bytes(),
            BlockFormat::Bf16 => columns * size_of::<bf16>(),
        };
        assert_eq!(
            blocks.len(),
            expected,
            "bytes of a row of {columns} columns"
        );
        let (group, lane) = (row / ROWS, row % ROWS);
        let at = LINE + group * units * format.unit_bytes();
        let group = &mut self.bytes[at..][..units * format.unit_bytes()];
        for (index, block) in blocks.chunks(format.bytes()).enumerate() {
            let unit = &mut group[index / 2 * format.unit_bytes()..][..format.unit_bytes()];
            let (scales, quants) = unit.split_at_mut(2 * ROWS * format.scale());
            let half = index % 2;
            let (scale, elements) = block.split_at(format.scale());
            scales[scale.len() * (half * ROWS + lane)..][..scale.len()].copy_from_slice(scale);
            let lines = &mut quants[half * ROWS * format.quants()..];
            for (line, four) in lines.chunks_exact_mut(LINE).zip(elements.chunks(4)) {
                let to = &mut line[4 * lane..][..four.len()];
                to.copy_from_slice(four);
                if format == BlockFormat::Q8_0 {
                    // From signed to unsigned, with 128 added.
                    to.iter_mut().for_each(|byte| *byte ^= 0x80);
                }
            }
        }
    }

    /// The matrix as bytes, for [`View::of`].
    pub fn into_bytes(self) -> Bytes {
        self.bytes.into_bytes()
    }
}

/// The number of groups per task, so that all `threads` get the same number of tasks.
pub fn groups_per_task(groups: usize, threads: usize) -> usize {
    let tasks = groups.div_ceil(TASK_GROUPS).next_multiple_of(threads);
    groups.div_ceil(tasks).max(1)
}

/// `y = x W^T + b`: `x` `[tokens, columns]`, `bias` `[rows]`. All of `y` `[tokens, rows]` is
/// written.
pub fn linear(x: &[f32], weight: View<'_>, bias: Option<&[f32]>, y: Output) {
    match weight.format {
        BlockFormat::Q8_0 | BlockFormat::Q4_0 => product::linear(x, weight, bias, y),
        #[cfg(target_arch = "x86_64")]
        BlockFormat::Bf16 => super::amx::floats::linear(x, weight, bias, y),
        #[cfg(not(target_arch = "x86_64"))]
        BlockFormat::Bf16 => unreachable!("bf16 blocks on a CPU without matrix tiles"),
    }
}

/// A packed matrix, as [`BlockMatrix`] has packed it.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub format: BlockFormat,
    pub rows: usize,
    pub columns: usize,
    pub(super) units: &'a [u8],
}

impl<'a> View<'a> {
    /// Reads the header of a matrix.
    ///
    /// # Panics
    /// `bytes` are not those of a [`BlockMatrix`].
    pub fn of(bytes: &'a [u8]) -> Self {
        let words = bytes[..HEADER].as_chunks::<8>().0;
        let [rows, columns, number] =
            std::array::from_fn(|word| u64::from_le_bytes(words[word]) as usize);
        let format = match number {
            8 => BlockFormat::Q8_0,
            4 => BlockFormat::Q4_0,
            16 => BlockFormat::Bf16,
            other => panic!("packed matrix: {other} bits is not a known format"),
        };
        let length = rows.div_ceil(ROWS) * columns.div_ceil(UNIT) * format.unit_bytes();
        Self {
            format,
            rows,
            columns,
            units: &bytes[LINE..LINE + length],
        }
    }

    /// Bytes of a group of 16 rows.
    pub fn group_bytes(self) -> usize {
        self.columns.div_ceil(UNIT) * self.format.unit_bytes()
    }

    /// The scale of a block of integers, and its elements with the format's offset added.
    pub fn block(self, row: usize, index: usize) -> (f16, [u8; BLOCK]) {
        let (group, lane) = (row / ROWS, row % ROWS);
        let unit = group * self.group_bytes() + index / 2 * self.format.unit_bytes();
        let (scales, quants) =
            self.units[unit..][..self.format.unit_bytes()].split_at(2 * ROWS * self.format.scale());
        let half = index % 2;
        let lines = &quants[half * ROWS * self.format.quants()..];
        let byte = |i: usize| lines[i / 4 * LINE + 4 * lane + i % 4];
        let at = 2 * (half * ROWS + lane);
        let scale = f16::from_le_bytes([scales[at], scales[at + 1]]);
        let elements = std::array::from_fn(|i| match self.format {
            BlockFormat::Q4_0 => byte(i % 16) >> (i / 16 * 4) & 0xf,
            BlockFormat::Q8_0 | BlockFormat::Bf16 => byte(i),
        });
        (scale, elements)
    }

    /// The elements of a row, dequantised. `out` has `columns` elements.
    pub fn row(self, row: usize, out: &mut [f32]) {
        let (group, lane) = (row / ROWS, row % ROWS);
        let group = &self.units[group * self.group_bytes()..][..self.group_bytes()];
        for (index, out) in out.chunks_mut(BLOCK).enumerate() {
            let unit = &group[index / 2 * self.format.unit_bytes()..][..self.format.unit_bytes()];
            let (scales, quants) = unit.split_at(2 * ROWS * self.format.scale());
            let half = index % 2;
            let lines = &quants[half * ROWS * self.format.quants()..];
            // Byte `i` of this row's block.
            let byte = |i: usize| lines[i / 4 * LINE + 4 * lane + i % 4];
            let scale = || {
                let at = 2 * (half * ROWS + lane);
                f16::from_le_bytes([scales[at], scales[at + 1]]).to_f32()
            };
            let dequantised =
                |element: u8| (i32::from(element) - self.format.offset()) as f32 * scale();
            for (i, out) in out.iter_mut().enumerate() {
                *out = match self.format {
                    BlockFormat::Q8_0 => dequantised(byte(i)),
                    BlockFormat::Q4_0 => dequantised(byte(i % 16) >> (i / 16 * 4) & 0xf),
                    BlockFormat::Bf16 => {
                        bf16::from_le_bytes([byte(2 * i), byte(2 * i + 1)]).to_f32()
                    }
                };
            }
        }
    }
}
