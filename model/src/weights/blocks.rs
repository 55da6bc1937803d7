//! Decoding of GGML's block formats.
//!
//! The arithmetic is that of ggml's `dequantize_row_*` (`ggml/src/ggml-quants.c`) in its order,
//! so that every value has the same bits.

use half::f16;

/// A format of blocks of small integers with common scales, by GGML's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)]
pub enum BlockType {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4_K,
    Q5_K,
    Q6_K,
}

/// Elements of a block with one scale, and of a block whose scales are scaled themselves.
const SMALL: usize = 32;
const LARGE: usize = 256;

impl BlockType {
    pub const ALL: [BlockType; 8] = [
        BlockType::Q4_0,
        BlockType::Q4_1,
        BlockType::Q5_0,
        BlockType::Q5_1,
        BlockType::Q8_0,
        BlockType::Q4_K,
        BlockType::Q5_K,
        BlockType::Q6_K,
    ];

    /// Elements of a block.
    pub fn elements(self) -> usize {
        match self {
            BlockType::Q4_K | BlockType::Q5_K | BlockType::Q6_K => LARGE,
            _ => SMALL,
        }
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        match self {
            BlockType::Q4_0 => 2 + 16,
            BlockType::Q4_1 => 4 + 16,
            BlockType::Q5_0 => 2 + 4 + 16,
            BlockType::Q5_1 => 4 + 4 + 16,
            BlockType::Q8_0 => 2 + 32,
            BlockType::Q4_K => 4 + 12 + 128,
            BlockType::Q5_K => 4 + 12 + 32 + 128,
            BlockType::Q6_K => 128 + 64 + 16 + 2,
        }
    }

    /// Decodes whole blocks, as many as both slices have room for.
    pub fn decode(self, blocks: &[u8], values: &mut [f32]) {
        let pairs = blocks
            .chunks_exact(self.bytes())
            .zip(values.chunks_exact_mut(self.elements()));
        match self {
            BlockType::Q4_0 => pairs.for_each(|(block, out)| q4_0(block, out)),
            BlockType::Q4_1 => pairs.for_each(|(block, out)| q4_1(block, out)),
            BlockType::Q5_0 => pairs.for_each(|(block, out)| q5_0(block, out)),
            BlockType::Q5_1 => pairs.for_each(|(block, out)| q5_1(block, out)),
            BlockType::Q8_0 => pairs.for_each(|(block, out)| q8_0(block, out)),
            BlockType::Q4_K => pairs.for_each(|(block, out)| q4_k(block, out)),
            BlockType::Q5_K => pairs.for_each(|(block, out)| q5_k(block, out)),
            BlockType::Q6_K => pairs.for_each(|(block, out)| q6_k(block, out)),
        }
    }
}

fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// A scale, then 16 bytes of two elements each: the first half of the block is in the low four
/// bits, the second half in the high ones.
fn q4_0(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 0);
    let (low, high) = out.split_at_mut(SMALL / 2);
    for ((byte, low), high) in block[2..18].iter().zip(low).zip(high) {
        *low = f32::from((byte & 0xf) as i8 - 8) * scale;
        *high = f32::from((byte >> 4) as i8 - 8) * scale;
    }
}

/// As [`q4_0`], with a minimum after the scale.
fn q4_1(block: &[u8], out: &mut [f32]) {
    let (scale, least) = (half(block, 0), half(block, 2));
    let (low, high) = out.split_at_mut(SMALL / 2);
    for ((byte, low), high) in block[4..20].iter().zip(low).zip(high) {
        *low = f32::from(byte & 0xf) * scale + least;
        *high = f32::from(byte >> 4) * scale + least;
    }
}

/// The fifth bits of all elements, in the order of the elements.
fn fifth_bits(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn q5_0(block: &[u8], out: &mut [f32]) {
    let (scale, fifth) = (half(block, 0), fifth_bits(&block[2..6]));
    let (low, high) = out.split_at_mut(SMALL / 2);
    for (i, byte) in block[6..22].iter().enumerate() {
        let bit = |i: usize| ((fifth >> i & 1) << 4) as i8;
        low[i] = f32::from(((byte & 0xf) as i8 | bit(i)) - 16) * scale;
        high[i] = f32::from(((byte >> 4) as i8 | bit(i + 16)) - 16) * scale;
    }
}

fn q5_1(block: &[u8], out: &mut [f32]) {
    let (scale, least) = (half(block, 0), half(block, 2));
    let fifth = fifth_bits(&block[4..8]);
    let (low, high) = out.split_at_mut(SMALL / 2);
    for (i, byte) in block[8..24].iter().enumerate() {
        let bit = |i: usize| ((fifth >> i & 1) << 4) as u8;
        low[i] = f32::from((byte & 0xf) | bit(i)) * scale + least;
        high[i] = f32::from((byte >> 4) | bit(i + 16)) * scale + least;
    }
}

fn q8_0(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 0);
    for (byte, out) in block[2..34].iter().zip(out) {
        *out = f32::from(*byte as i8) * scale;
    }
}

/// The 6-bit scale and minimum of the `i`-th group of 32 elements; eight such pairs are in 12
/// bytes.
fn scale_and_minimum(packed: &[u8], i: usize) -> (f32, f32) {
    let (scale, least) = if i < 4 {
        (packed[i] & 63, packed[i + 4] & 63)
    } else {
        (
            (packed[i + 4] & 0xf) | (packed[i - 4] >> 6 << 4),
            (packed[i + 4] >> 4) | (packed[i] >> 6 << 4),
        )
    };
    (f32::from(scale), f32::from(least))
}

fn q4_k(block: &[u8], out: &mut [f32]) {
    let (scale, least) = (half(block, 0), half(block, 2));
    let (packed, quants) = (&block[4..16], &block[16..144]);
    for (i, (bytes, out)) in quants
        .chunks_exact(32)
        .zip(out.chunks_exact_mut(64))
        .enumerate()
    {
        let (low, high) = out.split_at_mut(32);
        for (part, shift, out) in [(2 * i, 0, low), (2 * i + 1, 4, high)] {
            let (s, m) = scale_and_minimum(packed, part);
            let (s, m) = (scale * s, least * m);
            for (byte, out) in bytes.iter().zip(out) {
                *out = s * f32::from(byte >> shift & 0xf) - m;
            }
        }
    }
}

fn q5_k(block: &[u8], out: &mut [f32]) {
    let (scale, least) = (half(block, 0), half(block, 2));
    let (packed, fifth, quants) = (&block[4..16], &block[16..48], &block[48..176]);
    for (i, (bytes, out)) in quants
        .chunks_exact(32)
        .zip(out.chunks_exact_mut(64))
        .enumerate()
    {
        let (low, high) = out.split_at_mut(32);
        for (part, shift, out) in [(2 * i, 0, low), (2 * i + 1, 4, high)] {
            let (s, m) = scale_and_minimum(packed, part);
            let (s, m) = (scale * s, least * m);
            for ((byte, fifth), out) in bytes.iter().zip(fifth).zip(out) {
                let value = (byte >> shift & 0xf) | (fifth >> part & 1) << 4;
                *out = s * f32::from(value) - m;
            }
        }
    }
}

fn q6_k(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 208);
    let halves = block[..128]
        .chunks_exact(64)
        .zip(block[128..192].chunks_exact(32))
        .zip(block[192..208].chunks_exact(8));
    for (((low, high), scales), out) in halves.zip(out.chunks_exact_mut(128)) {
        for (i, out) in out.iter_mut().enumerate() {
            // Four groups of 32: the low halves of 64 bytes, then their high halves.
            let (group, at) = (i / 32, i % 32);
            let four = low[i % 64] >> (4 * (group / 2)) & 0xf;
            let two = high[at] >> (2 * group) & 3;
            let value = (four | two << 4) as i8 - 32;
            let part = f32::from(scales[i / 16] as i8);
            *out = scale * part * f32::from(value);
        }
    }
}
