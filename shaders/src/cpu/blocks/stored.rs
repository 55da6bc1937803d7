//! Blocks as they lie in GGUF files (`ggml/src/ggml-common.h`).
//!
//! The arithmetic of [`BlockFormat::decode`] is that of ggml's `dequantize_row_*`
//! (`ggml/src/ggml-quants.c`), so that every value has the same bits.

use half::{bf16, f16};

use super::format::{BlockFormat, Layout, Scales};

/// The most elements of a block, and the most of its parts.
const MOST: usize = 256;
const MOST_PARTS: usize = 16;

/// A block of a file, taken apart.
pub struct Block {
    /// The elements in their order: with the format's offset added, or indices of its table.
    pub elements: [u8; MOST],
    pub scales: PartScales,
}

/// The scales of a block.
pub struct PartScales {
    /// The f16 of the block, or the bf16 of its power of two.
    pub scale: [u8; 2],
    /// The f16 of the minimums. Where a format subtracts minimums, its sign is changed.
    pub minimum: [u8; 2],
    /// The integers of the parts.
    pub parts: [u8; MOST_PARTS],
    /// The integers of the minimums of the parts.
    pub minimums: [u8; MOST_PARTS],
}

impl PartScales {
    pub const ZERO: Self = Self {
        scale: [0; 2],
        minimum: [0; 2],
        parts: [0; MOST_PARTS],
        minimums: [0; MOST_PARTS],
    };

    /// The scale and the minimum of a part.
    pub fn of(&self, kind: Scales, part: usize) -> (f32, f32) {
        let scale = f16::from_le_bytes(self.scale).to_f32();
        let minimum = f16::from_le_bytes(self.minimum).to_f32();
        let (byte, least) = (self.parts[part], self.minimums[part]);
        match kind {
            Scales::None => (1.0, 0.0),
            Scales::Half => (scale, 0.0),
            Scales::HalfAndMinimum => (scale, minimum),
            Scales::Power => (bf16::from_le_bytes(self.scale).to_f32(), 0.0),
            Scales::Signed => (scale * f32::from(byte as i8), 0.0),
            Scales::Pairs => (scale * f32::from(byte), minimum * f32::from(least)),
            Scales::Nibbles => {
                let (byte, least) = (byte & 0xf, byte >> 4);
                (scale * f32::from(byte), minimum * f32::from(least))
            }
        }
    }
}

impl Layout {
    /// The values of `elements`, which are a part.
    pub fn values(&self, elements: &[u8], (scale, minimum): (f32, f32), out: &mut [f32]) {
        let value = |element: u8| {
            let element = self
                .table
                .map_or(element, |table| table[usize::from(element)]);
            f32::from(i16::from(element) - i16::from(self.offset)) * scale
        };
        let pairs = elements.iter().zip(out);
        // Adding a minimum of zero would change the sign of a zero.
        if self.scales.minimums() {
            pairs.for_each(|(element, out)| *out = value(*element) + minimum);
        } else {
            pairs.for_each(|(element, out)| *out = value(*element));
        }
    }
}

impl BlockFormat {
    /// Decodes whole blocks of small integers, as many as both slices have room for.
    pub fn decode(self, blocks: &[u8], values: &mut [f32]) {
        let layout = self.layout();
        let mut block = Block::zero();
        let pairs = blocks
            .chunks_exact(self.bytes())
            .zip(values.chunks_exact_mut(self.elements()));
        for (bytes, out) in pairs {
            block.read(self, bytes);
            let parts = block.elements.chunks_exact(layout.part);
            let parts = parts.zip(out.chunks_exact_mut(layout.part));
            for (part, (elements, out)) in parts.enumerate() {
                layout.values(elements, block.scales.of(layout.scales, part), out);
            }
        }
    }
}

impl Block {
    pub fn zero() -> Self {
        Self {
            elements: [0; MOST],
            scales: PartScales::ZERO,
        }
    }

    /// Takes a block of small integers apart. `bytes` are those of one block.
    pub fn read(&mut self, format: BlockFormat, bytes: &[u8]) {
        let to = &mut self.elements;
        match format {
            BlockFormat::Q4_0 => nibbles(&bytes[2..18], to),
            BlockFormat::Q4_1 => nibbles(&bytes[4..20], to),
            BlockFormat::Q5_0 => {
                nibbles(&bytes[6..22], to);
                fifth_bits(&bytes[2..6], to);
            }
            BlockFormat::Q5_1 => {
                nibbles(&bytes[8..24], to);
                fifth_bits(&bytes[4..8], to);
            }
            BlockFormat::Q8_0 => {
                for (to, byte) in to.iter_mut().zip(&bytes[2..34]) {
                    // From signed to unsigned, with 128 added.
                    *to = byte ^ 0x80;
                }
            }
            BlockFormat::Q2_K => groups_of_two_bits(&bytes[16..80], to),
            BlockFormat::Q3_K => {
                groups_of_two_bits(&bytes[32..96], to);
                bits_of_groups(&bytes[..32], 2, to);
            }
            BlockFormat::Q4_K => groups_of_nibbles(&bytes[16..144], to),
            BlockFormat::Q5_K => {
                groups_of_nibbles(&bytes[48..176], to);
                bits_of_groups(&bytes[16..48], 4, to);
            }
            BlockFormat::Q6_K => six_bits(&bytes[..128], &bytes[128..192], to),
            BlockFormat::IQ4_NL => nibbles(&bytes[2..18], to),
            BlockFormat::IQ4_XS => {
                for (bytes, to) in bytes[8..136].chunks_exact(16).zip(to.chunks_exact_mut(32)) {
                    nibbles(bytes, to);
                }
            }
            BlockFormat::MXFP4 => nibbles(&bytes[1..17], to),
            BlockFormat::Bf16 => unreachable!("bf16 is not in blocks of small integers"),
        }
        let scales = &mut self.scales;
        let pair = |at: usize| [bytes[at], bytes[at + 1]];
        match format {
            BlockFormat::Q4_1 | BlockFormat::Q5_1 => scales.minimum = pair(2),
            BlockFormat::Q2_K => {
                scales.minimum = negative(pair(82));
                scales.parts.copy_from_slice(&bytes[..16]);
            }
            BlockFormat::Q3_K => scales.six_bits(&bytes[96..108]),
            BlockFormat::Q4_K | BlockFormat::Q5_K => {
                scales.minimum = negative(pair(2));
                scales.six_bit_pairs(&bytes[4..16]);
            }
            BlockFormat::Q6_K => scales.parts.copy_from_slice(&bytes[192..208]),
            BlockFormat::IQ4_XS => scales.four_and_two_bits(&bytes[4..8], pair(2)),
            _ => {}
        }
        scales.scale = match format {
            BlockFormat::Q2_K => pair(80),
            BlockFormat::Q3_K => pair(108),
            BlockFormat::Q6_K => pair(208),
            BlockFormat::MXFP4 => power(bytes[0]),
            _ => pair(0),
        };
    }
}

impl PartScales {
    /// Eight scales and minimums of 6 bits, in 12 bytes.
    fn six_bit_pairs(&mut self, packed: &[u8]) {
        for i in 0..4 {
            self.parts[i] = packed[i] & 63;
            self.minimums[i] = packed[i + 4] & 63;
            self.parts[i + 4] = (packed[i + 8] & 0xf) | (packed[i] >> 6 << 4);
            self.minimums[i + 4] = (packed[i + 8] >> 4) | (packed[i + 4] >> 6 << 4);
        }
    }

    /// Sixteen scales of 6 bits, with 32 added, in 12 bytes.
    fn six_bits(&mut self, packed: &[u8]) {
        for (i, part) in self.parts.iter_mut().enumerate() {
            let low = packed[i % 8] >> (i / 8 * 4) & 0xf;
            let high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
            *part = (low | high << 4).wrapping_sub(32);
        }
    }

    /// Eight scales of 6 bits, with 32 added: their low four bits, and their high two bits.
    fn four_and_two_bits(&mut self, low: &[u8], high: [u8; 2]) {
        let high = u16::from_le_bytes(high);
        for (i, part) in self.parts.iter_mut().enumerate().take(8) {
            let low = low[i / 2] >> (i % 2 * 4) & 0xf;
            let high = (high >> (2 * i) & 3) as u8;
            *part = (low | high << 4).wrapping_sub(32);
        }
    }
}

/// Half of the power of two with this exponent, as bf16, which represents each of them.
fn power(exponent: u8) -> [u8; 2] {
    let bits = match exponent {
        0 | 1 => 0x0020u16 << exponent,
        _ => u16::from(exponent - 1) << 7,
    };
    bits.to_le_bytes()
}

/// The f16 with the other sign.
fn negative([low, high]: [u8; 2]) -> [u8; 2] {
    [low, high ^ 0x80]
}

/// The first half of the elements is in the low bits of the bytes, the second half in the high
/// ones.
fn nibbles(bytes: &[u8], to: &mut [u8]) {
    let (low, high) = to.split_at_mut(bytes.len());
    for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
        *low = byte & 0xf;
        *high = byte >> 4;
    }
}

/// As [`nibbles`], for each 64 elements.
fn groups_of_nibbles(bytes: &[u8], to: &mut [u8]) {
    for (bytes, to) in bytes.chunks_exact(32).zip(to.chunks_exact_mut(64)) {
        nibbles(bytes, to);
    }
}

/// Each 128 elements are four groups of 32, with two bits each in 32 bytes.
fn groups_of_two_bits(bytes: &[u8], to: &mut [u8]) {
    for (bytes, to) in bytes.chunks_exact(32).zip(to.chunks_exact_mut(128)) {
        for (group, to) in to.chunks_exact_mut(32).enumerate() {
            for (to, byte) in to.iter_mut().zip(bytes) {
                *to = byte >> (2 * group) & 3;
            }
        }
    }
}

/// Adds a bit at `place` to each element. Bit `i` of 32 bytes belongs to the `i`-th 32 elements.
fn bits_of_groups(bytes: &[u8], place: usize, to: &mut [u8]) {
    for (group, to) in to.chunks_exact_mut(32).enumerate() {
        for (to, byte) in to.iter_mut().zip(bytes) {
            *to |= (byte >> group & 1) << place;
        }
    }
}

/// Adds the fifth bits of 32 elements, which are in their order from the lowest bit on.
fn fifth_bits(bytes: &[u8], to: &mut [u8]) {
    for (to, byte) in to.chunks_exact_mut(8).zip(bytes) {
        for (i, to) in to.iter_mut().enumerate() {
            *to |= (byte >> i & 1) << 4;
        }
    }
}

/// Each 128 elements are four groups of 32: the low four bits of 64 bytes, then their high four
/// bits; and two bits more of each group in 32 bytes.
fn six_bits(low: &[u8], high: &[u8], to: &mut [u8]) {
    let halves = low.chunks_exact(64).zip(high.chunks_exact(32));
    for ((low, high), to) in halves.zip(to.chunks_exact_mut(128)) {
        nibbles(low, to);
        for (group, to) in to.chunks_exact_mut(32).enumerate() {
            for (to, high) in to.iter_mut().zip(high) {
                *to |= (high >> (2 * group) & 3) << 4;
            }
        }
    }
}
