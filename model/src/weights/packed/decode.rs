//! The numbers of a packed matrix, as floats and as blocks.

use half::f16;
use hearth_shaders::{BLOCK, BlockFormat};
use rayon::prelude::*;

use super::layout::Values;
use super::{Files, NoSuchGroup, PackedMatrix};
use crate::dtype::Dtype;
use crate::weights::format::Format;
use crate::weights::stored::StoredTensor;

/// Rows that are decoded at once: a multiple of 8, because a word of some layouts has eight of them.
const ROWS: usize = 64;

/// The bytes of a matrix's tensors.
pub(super) struct Decoder<'a> {
    matrix: &'a PackedMatrix,
    values: &'a [u8],
    zeros: Option<&'a [u8]>,
    scales: Vec<f32>,
    /// The group of each column.
    groups: Vec<u32>,
    /// True if each group has consecutive columns.
    in_order: bool,
}

impl<'a> Decoder<'a> {
    /// # Errors
    /// The order of the columns names a group that does not exist.
    pub fn new<P>(matrix: &'a PackedMatrix, files: &'a Files<P>) -> Result<Self, NoSuchGroup> {
        let bytes = |tensor: &StoredTensor| tensor.bytes_in(files);
        let (scale, tensor) = &matrix.scale;
        let mut scales = vec![0.0; tensor.shape.iter().product()];
        if let Format::Float(dtype) = tensor.format {
            dtype.decode(bytes(tensor), &mut scales);
        }
        let regular = (0..matrix.columns).map(|column| (column / scale.columns_per) as u32);
        let regular: Vec<u32> = regular.collect();
        let groups = match &matrix.order {
            None => regular.clone(),
            Some(order) => {
                let words = bytes(order).chunks_exact(4);
                let group = |word: &[u8]| word.try_into().map(u32::from_le_bytes).unwrap_or(0);
                words.map(group).collect()
            }
        };
        if let Some(column) = groups
            .iter()
            .position(|&group| group as usize >= scale.groups)
        {
            return Err(NoSuchGroup {
                column,
                group: groups[column],
                groups: scale.groups,
            });
        }
        Ok(Self {
            matrix,
            values: bytes(&matrix.values.1),
            zeros: matrix.zeros.as_ref().map(|(_, tensor)| bytes(tensor)),
            scales,
            in_order: groups == regular,
            groups,
        })
    }

    /// The smallest format of blocks that holds exactly the same numbers.
    pub fn exact_blocks(&self) -> Option<BlockFormat> {
        let PackedMatrix {
            columns,
            values,
            scale,
            ..
        } = self.matrix;
        let fits = columns.is_multiple_of(BLOCK)
            && (scale.0.groups == 1 || scale.0.columns_per.is_multiple_of(BLOCK))
            && self.in_order
            && values.0 != Values::Float8
            && self.scales.iter().all(|&scale| is_f16(scale));
        if !fits {
            return None;
        }
        let symmetric = self.is_symmetric();
        match (values.0.bits(), symmetric) {
            (4, true) => Some(BlockFormat::Q4_0),
            // The difference of two integers of 4 bits has 5.
            (4, false) => Some(BlockFormat::Q5_0),
            (8, true) => Some(BlockFormat::Q8_0),
            _ => None,
        }
    }

    fn is_symmetric(&self) -> bool {
        let (rows, groups) = (self.matrix.rows, self.matrix.scale.0.groups);
        let middle = self.matrix.values.0.middle();
        self.zeros.is_none()
            || (0..rows).all(|row| (0..groups).all(|group| self.zero(row, group) == middle))
    }

    fn zero(&self, row: usize, group: usize) -> i32 {
        let PackedMatrix {
            rows,
            values,
            scale,
            ..
        } = self.matrix;
        match (&self.matrix.zeros, self.zeros) {
            (Some((zeros, _)), Some(bytes)) => zeros.at(bytes, [*rows, scale.0.groups], row, group),
            _ => values.0.middle(),
        }
    }

    fn scale(&self, row: usize, group: usize) -> f32 {
        self.scales[self.matrix.scale.0.index(row, group)]
    }

    /// All numbers as bytes of f32.
    pub fn floats(&self) -> Vec<u8> {
        let columns = self.matrix.columns;
        let row_bytes = columns * Dtype::F32.size();
        self.rows(row_bytes, |row, integers, out| {
            let out = out.as_chunks_mut::<4>().0.iter_mut();
            let mut known: Option<(usize, i32, f32)> = None;
            for (column, out) in out.enumerate() {
                let group = self.groups[column] as usize;
                let (_, zero, scale) = match known {
                    Some(known @ (of, ..)) if of == group => known,
                    _ => (group, self.zero(row, group), self.scale(row, group)),
                };
                known = Some((group, zero, scale));
                let value = match self.matrix.values.0 {
                    Values::Float8 => float8(self.values[row * columns + column]),
                    _ => (i32::from(integers[column]) - zero) as f32,
                };
                *out = (value * scale).to_le_bytes();
            }
        })
    }

    /// All numbers in blocks of `format`, which [`exact_blocks`](Self::exact_blocks) returned.
    pub fn blocks(&self, format: BlockFormat) -> Vec<u8> {
        let row_bytes = self.matrix.columns / BLOCK * format.bytes();
        self.rows(row_bytes, |row, integers, out| {
            let blocks = integers.as_chunks::<BLOCK>().0.iter();
            let out = out.chunks_exact_mut(format.bytes());
            for (at, (integers, out)) in blocks.zip(out).enumerate() {
                let group = self.groups[at * BLOCK] as usize;
                let zero = self.zero(row, group);
                let scale = f16::from_f32(self.scale(row, group));
                out[..2].copy_from_slice(&scale.to_le_bytes());
                let values = integers.map(|integer| i32::from(integer) - zero);
                write_block(format, &values, &mut out[2..]);
            }
        })
    }

    /// Calls `write` with each row, its integers, and its part of the result, where it has `row_bytes`.
    fn rows(&self, row_bytes: usize, write: impl Fn(usize, &[i16], &mut [u8]) + Sync) -> Vec<u8> {
        let PackedMatrix {
            rows,
            columns,
            values,
            ..
        } = self.matrix;
        let mut out = vec![0; rows * row_bytes];
        let chunks = out.par_chunks_mut((ROWS * row_bytes).max(1)).enumerate();
        chunks.for_each(|(chunk, out)| {
            let within = chunk * ROWS..(*rows).min((chunk + 1) * ROWS);
            let mut integers = vec![0; within.len() * columns];
            if values.0 != Values::Float8 {
                let shape = [*rows, *columns];
                values
                    .0
                    .read(self.values, shape, within.clone(), &mut integers);
            }
            let parts = integers.chunks_exact(*columns);
            for ((row, integers), out) in within.zip(parts).zip(out.chunks_exact_mut(row_bytes)) {
                write(row, integers, out);
            }
        });
        out
    }
}

/// Writes what follows the scale of a block.
fn write_block(format: BlockFormat, values: &[i32; BLOCK], out: &mut [u8]) {
    let (low, high) = values.split_at(BLOCK / 2);
    let pairs = low.iter().zip(high);
    match format {
        BlockFormat::Q4_0 => {
            for (out, (low, high)) in out.iter_mut().zip(pairs) {
                *out = (low + 8) as u8 | ((high + 8) as u8) << 4;
            }
        }
        BlockFormat::Q5_0 => {
            let (fifth, fours) = out.split_at_mut(4);
            let bits = values.iter().enumerate();
            let bits = bits.fold(0, |bits, (at, value)| {
                bits | (((value + 16) as u32 >> 4) & 1) << at
            });
            fifth.copy_from_slice(&bits.to_le_bytes());
            for (out, (low, high)) in fours.iter_mut().zip(pairs) {
                *out = ((low + 16) & 0xf) as u8 | (((high + 16) & 0xf) as u8) << 4;
            }
        }
        _ => {
            let bytes = out.iter_mut().zip(values);
            bytes.for_each(|(out, value)| *out = *value as u8);
        }
    }
}

/// True if an f16 holds the number.
fn is_f16(value: f32) -> bool {
    value.is_finite() && f16::from_f32(value).to_f32() == value
}

/// An E4M3 float without infinities (arXiv 2209.05433): a sign, 4 bits of exponent, 3 of mantissa.
fn float8(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 0xf), f32::from(byte & 7));
    let magnitude = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    match byte >> 7 {
        0 => magnitude,
        _ => -magnitude,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_e4m3_float_is_decoded() {
        assert_eq!(float8(0), 0.0);
        assert_eq!(float8(1), 2f32.powi(-9));
        assert_eq!(float8(0x08), 2f32.powi(-6));
        assert_eq!(float8(0x38), 1.0);
        assert_eq!(float8(0x7e), 448.0);
        assert_eq!(float8(0xfe), -448.0);
        assert!(float8(0x7f).is_nan() && float8(0xff).is_nan());
        for byte in 0..0x7e {
            assert!(float8(byte) < float8(byte + 1), "{byte}");
            assert_eq!(float8(byte | 0x80), -float8(byte));
        }
    }

    #[test]
    fn blocks_have_the_layout_that_is_decoded() {
        let mut seed = 1u32;
        let mut random = |below: i32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) as i32 % below
        };
        for (format, least, range) in [
            (BlockFormat::Q4_0, -8, 16),
            (BlockFormat::Q5_0, -16, 32),
            (BlockFormat::Q8_0, -128, 256),
        ] {
            let values: [i32; BLOCK] = std::array::from_fn(|_| least + random(range));
            let mut bytes = vec![0; format.bytes()];
            bytes[..2].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
            write_block(format, &values, &mut bytes[2..]);
            let mut decoded = [0.0; BLOCK];
            format.decode(&bytes, &mut decoded);
            assert_eq!(
                decoded,
                values.map(|value| value as f32 * 0.5),
                "{format:?}"
            );
        }
    }
}
