//! Rows of a packed group: writing one from the blocks of a file, and reading it back.

use half::bf16;

use super::format::{BlockFormat, Layout, Scales};
use super::stored::{Block, PartScales};
use super::{BLOCK, LINE, ROWS};

/// Bytes of a row in each line.
const FOUR: usize = 4;
/// Words of four elements in a block of 32.
const WORDS: usize = BLOCK / FOUR;

/// Writes the row at `lane` of `group` from `blocks`, the row's blocks in a file.
pub fn write(format: BlockFormat, group: &mut [u8], lane: usize, blocks: &[u8]) {
    let layout = format.layout();
    if format == BlockFormat::Bf16 {
        // Each line has four bytes of a row.
        for (line, four) in group.chunks_exact_mut(LINE).zip(blocks.chunks(FOUR)) {
            line[FOUR * lane..][..four.len()].copy_from_slice(four);
        }
        return;
    }
    let mut block = Block::zero();
    let per_unit = layout.unit() / layout.stored.0;
    for (index, bytes) in blocks.chunks_exact(layout.stored.1).enumerate() {
        block.read(format, bytes);
        let unit = &mut group[index / per_unit * layout.unit_bytes()..][..layout.unit_bytes()];
        let (scales, lines) = unit.split_at_mut(layout.scale_bytes());
        let first = index % per_unit;
        layout.write_scales(scales, first, lane, &block.scales);
        let elements = block.elements[..layout.stored.0].as_chunks::<BLOCK>().0;
        let blocks = lines.chunks_exact_mut(layout.block_bytes()).skip(first);
        for (elements, lines) in elements.iter().zip(blocks) {
            let fours = elements.as_chunks::<FOUR>().0;
            let words: [u32; WORDS] = std::array::from_fn(|i| u32::from_le_bytes(fours[i]));
            let (low, high) = lines.split_at_mut(layout.planes[0] * LINE);
            write_plane(&words, layout.planes[0], 0, low, lane);
            if layout.planes[1] > 0 {
                write_plane(&words, layout.planes[1], layout.planes[0], high, lane);
            }
        }
    }
}

/// Writes `bits` bits of each element, from the bit `from` on. `words` have four elements each. A
/// byte has elements that are `4 * bits` apart, so that a line has four consecutive elements of
/// each row at each place of its bytes.
fn write_plane(words: &[u32; WORDS], bits: usize, from: usize, lines: &mut [u8], lane: usize) {
    let mask = u32::from_ne_bytes([((1u16 << bits) - 1) as u8; FOUR]);
    for (first, line) in lines.chunks_exact_mut(LINE).enumerate() {
        let places = words[first..].iter().step_by(bits).enumerate();
        let word = places.fold(0, |word, (place, four)| {
            word | (four >> from & mask) << (place * bits)
        });
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
