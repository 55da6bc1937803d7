//! Rows of a packed group: writing them from the blocks of a file, and reading one back.

use std::borrow::Cow;

use half::bf16;

use super::format::{BlockFormat, Layout, Scales};
use super::stored::{Block, PartScales};
use super::{BLOCK, LINE, ROWS};

/// Bytes of a row in each line.
const FOUR: usize = 4;
/// Lines of bf16 that are written together: they take a cache line of each row.
const NEAR_LINES: usize = 16;
/// Words of four elements in a block of 32.
const WORDS: usize = BLOCK / FOUR;

/// Writes rows of `group` from their blocks in a file. Lanes without a row stay as they are.
///
/// A block of every row is written before the next one, so that the lines that rows share stay in the
/// nearest cache.
pub fn write(format: BlockFormat, group: &mut [u8], rows: &[Option<Cow<'_, [u8]>>; ROWS]) {
    let rows = rows.iter().enumerate();
    let rows = rows.filter_map(|(lane, row)| Some((lane, row.as_deref()?)));
    if format == BlockFormat::Bf16 {
        // Each line has four bytes of a row, and the last one may have two.
        for (index, lines) in group.chunks_mut(NEAR_LINES * LINE).enumerate() {
            let lines = lines.as_chunks_mut::<LINE>().0;
            for (lane, row) in rows.clone() {
                let left = row.get(index * NEAR_LINES * FOUR..).unwrap_or_default();
                let (fours, rest) = left[..left.len().min(NEAR_LINES * FOUR)].as_chunks::<FOUR>();
                for (line, four) in lines.iter_mut().zip(fours) {
                    line[FOUR * lane..][..FOUR].copy_from_slice(four);
                }
                if let Some(line) = lines.get_mut(fours.len()) {
                    line[FOUR * lane..][..rest.len()].copy_from_slice(rest);
                }
            }
        }
        return;
    }
    let layout = format.layout();
    let (per_block, size) = layout.stored;
    let per_unit = layout.unit() / per_block;
    let blocks = rows.clone().next().map_or(0, |(_, row)| row.len() / size);
    let mut block = Block::zero();
    for index in 0..blocks {
        let unit = &mut group[index / per_unit * layout.unit_bytes()..][..layout.unit_bytes()];
        let (scales, lines) = unit.split_at_mut(layout.scale_bytes());
        let first = index % per_unit;
        let lines = &mut lines[first * layout.block_bytes()..];
        for (lane, row) in rows.clone() {
            block.read(format, &row[index * size..][..size]);
            layout.write_scales(scales, first, lane, &block.scales);
            let elements = block.elements[..per_block].as_chunks::<BLOCK>().0;
            let lines = lines.chunks_exact_mut(layout.block_bytes());
            for (elements, lines) in elements.iter().zip(lines) {
                let fours = elements.as_chunks::<FOUR>().0;
                let words: [u32; WORDS] = std::array::from_fn(|i| u32::from_le_bytes(fours[i]));
                let (low, high) = lines.split_at_mut(layout.planes[0] * LINE);
                write_bits(&words, layout.planes[0], 0, low, lane);
                write_bits(&words, layout.planes[1], layout.planes[0], high, lane);
            }
        }
    }
}

/// Writes `bits` bits of each element, from the bit `from` on. `words` have four elements each.
fn write_bits(words: &[u32; WORDS], bits: usize, from: usize, lines: &mut [u8], lane: usize) {
    match bits {
        0 => {}
        1 => write_plane::<1>(words, from, lines, lane),
        2 => write_plane::<2>(words, from, lines, lane),
        4 => write_plane::<4>(words, from, lines, lane),
        8 => write_plane::<8>(words, from, lines, lane),
        _ => unreachable!("a plane of {bits} bits"),
    }
}

/// Writes a plane of `BITS` bits. A byte has elements that are `4 * BITS` apart, so that a line has
/// four consecutive elements of each row at each place of its bytes.
fn write_plane<const BITS: usize>(
    words: &[u32; WORDS],
    from: usize,
    lines: &mut [u8],
    lane: usize,
) {
    let mask = u32::from_ne_bytes([((1u16 << BITS) - 1) as u8; FOUR]);
    for (first, line) in lines
        .as_chunks_mut::<LINE>()
        .0
        .iter_mut()
        .enumerate()
        .take(BITS)
    {
        let mut word = 0;
        for place in 0..WORDS / BITS {
            word |= (words[first + place * BITS] >> from & mask) << (place * BITS);
        }
        line[FOUR * lane..][..FOUR].copy_from_slice(&word.to_le_bytes());
    }
}

impl Layout {
    /// Where the scales of the row at `lane` are in those of a unit: the f16 of the scale and of
    /// the minimum of the block `block`, and the integers of the part `part` of the unit.
    fn places(&self, block: usize, part: usize, lane: usize) -> [usize; 4] {
        let two = size_of::<u16>();
        let half = two * (block * ROWS + lane);
        match self.scales {
            Scales::None | Scales::Half | Scales::Power => [half, 0, 0, 0],
            Scales::HalfAndMinimum => [half, LINE + half, 0, 0],
            Scales::Signed => [two * lane, 0, LINE + part * ROWS + lane, 0],
            Scales::Nibbles => {
                let minimum = LINE / 2 + two * lane;
                [two * lane, minimum, LINE + part * ROWS + lane, 0]
            }
            Scales::Pairs => {
                let pair = LINE + 2 * part * ROWS + lane;
                [two * lane, LINE / 2 + two * lane, pair, pair + ROWS]
            }
        }
    }

    /// Writes the scales of the blocks of a file, the first of which is `block` in its unit.
    fn write_scales(&self, to: &mut [u8], block: usize, lane: usize, scales: &PartScales) {
        let [half, minimum, ..] = self.places(block, 0, lane);
        to[half..][..2].copy_from_slice(&scales.scale);
        if self.scales.minimums() {
            to[minimum..][..2].copy_from_slice(&scales.minimum);
        }
        if self.scales.two_levels() {
            for part in 0..self.unit() / self.part {
                let [.., byte, least] = self.places(block, part, lane);
                to[byte] = scales.parts[part];
                if self.scales == Scales::Pairs {
                    to[least] = scales.minimums[part];
                }
            }
        }
    }

    /// Reads the scales of the part `part` of a unit.
    fn read_scales(&self, from: &[u8], part: usize, lane: usize) -> PartScales {
        let block = part * self.part / BLOCK;
        let [half, minimum, byte, least] = self.places(block, part, lane);
        let two = |at: usize| [from[at], from[at + 1]];
        let mut scales = PartScales::ZERO;
        scales.scale = two(half);
        scales.minimum = two(minimum);
        scales.parts[0] = from[byte];
        scales.minimums[0] = from[least];
        scales
    }
}

/// A block of 32 columns of the row at `lane`: its elements as [`Block`] has them.
pub fn elements(layout: &Layout, group: &[u8], lane: usize, block: usize) -> [u8; BLOCK] {
    let (unit, within) = unit_of(layout, group, block);
    let lines = &unit[layout.scale_bytes() + within * layout.block_bytes()..];
    let plane = |lines: &[u8], bits: usize, i: usize| {
        let (byte, place) = (i % (FOUR * bits), i / (FOUR * bits));
        let byte = lines[byte / FOUR * LINE + FOUR * lane + byte % FOUR];
        byte >> (place * bits) & ((1u16 << bits) - 1) as u8
    };
    let [low, high] = layout.planes;
    std::array::from_fn(|i| match high {
        0 => plane(lines, low, i),
        _ => plane(lines, low, i) | plane(&lines[low * LINE..], high, i) << low,
    })
}

/// The scales of a part of the row at `lane`.
pub fn scales(layout: &Layout, group: &[u8], lane: usize, part: usize) -> PartScales {
    let (unit, within) = unit_of(layout, group, part * layout.part / BLOCK);
    let first = within * BLOCK / layout.part;
    let in_block = part % (BLOCK / layout.part);
    layout.read_scales(unit, first + in_block, lane)
}

/// The unit of a block of 32 columns, and the block's place in it.
fn unit_of<'a>(layout: &Layout, group: &'a [u8], block: usize) -> (&'a [u8], usize) {
    let per_unit = layout.unit() / BLOCK;
    let unit = &group[block / per_unit * layout.unit_bytes()..][..layout.unit_bytes()];
    (unit, block % per_unit)
}

/// The values of the row at `lane`. `out` has an element for each column.
pub fn read(format: BlockFormat, group: &[u8], lane: usize, out: &mut [f32]) {
    let layout = format.layout();
    if format == BlockFormat::Bf16 {
        let lines = group.chunks_exact(LINE);
        for (line, out) in lines.zip(out.chunks_mut(2)) {
            let pairs = line[FOUR * lane..][..FOUR].as_chunks::<2>().0.iter();
            for (out, pair) in out.iter_mut().zip(pairs) {
                *out = bf16::from_le_bytes(*pair).to_f32();
            }
        }
        return;
    }
    for (block, out) in out.chunks_mut(BLOCK).enumerate() {
        let elements = elements(&layout, group, lane, block);
        let (unit, within) = unit_of(&layout, group, block);
        let first = within * BLOCK / layout.part;
        let parts = elements
            .chunks(layout.part)
            .zip(out.chunks_mut(layout.part));
        for (part, (elements, out)) in parts.enumerate() {
            let scales = layout.read_scales(unit, first + part, lane);
            layout.values(elements, scales.of(layout.scales, 0), out);
        }
    }
}
