//! A matrix in one format of blocks as 32-bit words.
//!
//! The scales come first, row by row. A format with one level of scales has an f16 (for `MXFP4` a
//! bf16) for each 32 elements, two to a word; with minimums, each word is a scale and its minimum.
//! A format with two levels has a record for each 256 elements: a word with the f16 of the scale
//! and of the minimum, then the integers of the parts, one byte each, and after them those of the
//! minimums (`Q2_K` has both in one byte).
//!
//! Two planes follow, the low bits of all elements and then their high bits, row by row, in their
//! order from the low bits of a word up. Elements are indices of a table, or have the format's
//! offset added, so that they are not negative.

use rayon::prelude::*;

use crate::cpu::{Layout, PartScales, Scales, View};
use crate::{BLOCK, BlockFormat};

/// Each region begins at a multiple of so many words, so that elements can be read in vectors.
pub const ALIGNMENT: usize = 4;
/// Elements of a record of formats with two levels of scales.
pub const RECORD: usize = 256;

/// Where the words of a matrix are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// Words of a row in each of the three regions: the scales, the low and the high bits.
    pub row: [usize; 3],
    /// The first word of each region, counted from the first word of the matrix.
    pub begin: [usize; 3],
    /// Words of the matrix.
    pub words: usize,
}

impl Places {
    pub fn of(format: BlockFormat, rows: usize, columns: usize) -> Self {
        let layout = format.layout();
        let blocks = columns.div_ceil(BLOCK);
        let scales = match layout.scales {
            Scales::None => 0,
            Scales::Half | Scales::Power => blocks.div_ceil(2),
            Scales::HalfAndMinimum => blocks,
            Scales::Signed | Scales::Pairs | Scales::Nibbles => {
                columns.div_ceil(RECORD) * words_of_record(format)
            }
        };
        let row = [scales, blocks * layout.planes[0], blocks * layout.planes[1]];
        let mut begin = [0; 3];
        let mut words = 0;
        for (begin, row) in begin.iter_mut().zip(row) {
            *begin = words;
            words = (words + rows * row).next_multiple_of(ALIGNMENT);
        }
        Self { row, begin, words }
    }
}

/// Words of the record that scales 256 elements.
pub const fn words_of_record(format: BlockFormat) -> usize {
    let layout = format.layout();
    let parts = RECORD / layout.part;
    match layout.scales {
        Scales::Pairs => 1 + 2 * parts / 4,
        _ => 1 + parts / 4,
    }
}

/// Rearranges a part of a matrix as it is packed for the CPU to the words of the device.
pub fn write(view: View<'_>, words: &mut [u32]) {
    let layout = view.format.layout();
    let places = Places::of(view.format, view.rows, view.columns);
    let [scales, low, high] = places.row;
    let (all_scales, rest) = words.split_at_mut(places.begin[1]);
    let (all_low, all_high) = rest.split_at_mut(places.begin[2] - places.begin[1]);
    all_scales
        .par_chunks_mut(scales)
        .zip(all_low.par_chunks_mut(low))
        .enumerate()
        .take(view.rows)
        .for_each(|(row, (scales, words))| {
            write_scales(&layout, view, row, scales);
            write_plane(&layout, view, row, 0, words);
        });
    if high > 0 {
        let rows = all_high.par_chunks_mut(high).enumerate().take(view.rows);
        rows.for_each(|(row, words)| write_plane(&layout, view, row, 1, words));
    }
}

fn write_scales(layout: &Layout, view: View<'_>, row: usize, words: &mut [u32]) {
    let half = |bytes: [u8; 2]| u32::from(u16::from_le_bytes(bytes));
    let pair = |scales: &PartScales| half(scales.scale) | half(scales.minimum) << 16;
    let blocks = view.columns.div_ceil(BLOCK);
    match layout.scales {
        Scales::None => {}
        Scales::Half | Scales::Power => {
            for block in 0..blocks {
                let scale = half(view.scales(row, block).scale);
                words[block / 2] |= scale << (block % 2 * 16);
            }
        }
        Scales::HalfAndMinimum => {
            for (block, word) in words.iter_mut().enumerate().take(blocks) {
                *word = pair(&view.scales(row, block));
            }
        }
        Scales::Signed | Scales::Pairs | Scales::Nibbles => {
            let parts = RECORD / layout.part;
            let record = words_of_record(view.format);
            for (index, words) in words.chunks_exact_mut(record).enumerate() {
                let (head, bytes) = words.split_at_mut(1);
                for part in 0..parts {
                    let scales = view.scales(row, index * parts + part);
                    head[0] = pair(&scales);
                    let mut put = |at: usize, byte: u8| {
                        bytes[at / 4] |= u32::from(byte) << (at % 4 * 8);
                    };
                    put(part, scales.parts[0]);
                    if layout.scales == Scales::Pairs {
                        put(parts + part, scales.minimums[0]);
                    }
                }
            }
        }
    }
}

/// Writes the bits of the elements of a row that are in `plane`.
fn write_plane(layout: &Layout, view: View<'_>, row: usize, plane: usize, words: &mut [u32]) {
    let bits = layout.planes[plane];
    let from = plane * layout.planes[0];
    let mask = ((1u16 << bits) - 1) as u8;
    for (block, words) in words.chunks_exact_mut(bits).enumerate() {
        let elements = view.elements(row, block);
        let per_word = elements.chunks_exact(u32::BITS as usize / bits);
        for (word, elements) in words.iter_mut().zip(per_word) {
            for (place, element) in elements.iter().enumerate() {
                *word |= u32::from(element >> from & mask) << (place * bits);
            }
        }
    }
}
