//! Where the integers, the zero points and the scales of each layout lie.

use std::ops::Range;

/// The order of outputs in a 32-bit word of AWQ, from its low bits up.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
const AWQ_BITS: u32 = 4;

/// How the weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Values {
    /// `[columns * bits / 32, rows]` words: the columns of a row in consecutive words.
    Gptq { bits: u32 },
    /// `[columns, rows / 8]` words: eight rows of a column in a word.
    Awq,
    /// `[rows, columns * bits / 32]` words of integers that are larger by half their range.
    Words { bits: u32 },
    /// `[rows, columns]` bytes.
    Int8,
    /// `[rows, columns]` E4M3 floats.
    Float8,
}

impl Values {
    /// Bits of an integer, and what a zero point in the middle of the range is.
    pub fn bits(self) -> u32 {
        match self {
            Values::Gptq { bits } | Values::Words { bits } => bits,
            Values::Awq => AWQ_BITS,
            Values::Int8 | Values::Float8 => 8,
        }
    }

    /// The zero point of a symmetric matrix, where the file has none.
    pub fn middle(self) -> i32 {
        match self {
            Values::Gptq { .. } | Values::Awq => 1 << (self.bits() - 1),
            Values::Words { .. } | Values::Int8 | Values::Float8 => 0,
        }
    }

    /// Writes the integers of `within` to `out`, `[within, columns]`. The rows begin at a multiple of 8.
    pub fn read(
        self,
        bytes: &[u8],
        [rows, columns]: [usize; 2],
        within: Range<usize>,
        out: &mut [i16],
    ) {
        let first = within.start;
        let count = within.len();
        match self {
            Values::Gptq { bits } => {
                let per = (32 / bits) as usize;
                for line in 0..columns / per {
                    for row in 0..count {
                        let word = word(bytes, line * rows + first + row);
                        let out = &mut out[row * columns + line * per..][..per];
                        spread(word, bits, out);
                    }
                }
            }
            Values::Awq => {
                for column in 0..columns {
                    for eight in 0..count / 8 {
                        let word = word(bytes, column * (rows / 8) + first / 8 + eight);
                        for (place, row) in AWQ_ORDER.iter().enumerate() {
                            let value = (word >> (AWQ_BITS as usize * place)) & 0xf;
                            out[(8 * eight + row) * columns + column] = value as i16;
                        }
                    }
                }
            }
            Values::Words { bits } => {
                let per = (32 / bits) as usize;
                let half = 1 << (bits - 1);
                let from = first * columns / per;
                for (at, out) in out.chunks_exact_mut(per).enumerate() {
                    spread(word(bytes, from + at), bits, out);
                    out.iter_mut().for_each(|value| *value -= half);
                }
            }
            Values::Int8 => {
                let bytes = &bytes[first * columns..][..out.len()];
                let pairs = out.iter_mut().zip(bytes);
                pairs.for_each(|(out, byte)| *out = i16::from(*byte as i8));
            }
            Values::Float8 => unreachable!("floats are no integers"),
        }
    }
}

/// How the zero points are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Zeros {
    /// `[groups, rows * bits / 32]` words, to which `offset` is added.
    Gptq { bits: u32, offset: u32 },
    /// `[groups, rows / 8]` words.
    Awq,
    /// `[rows * bits / 32, groups]` words of integers that are larger by half their range.
    Words { bits: u32 },
    /// `[rows, groups]` bytes.
    Int8,
}

impl Zeros {
    /// The zero point of a row in a group; there are `rows` and `groups` of them.
    pub fn at(self, bytes: &[u8], [rows, groups]: [usize; 2], row: usize, group: usize) -> i32 {
        match self {
            Zeros::Gptq { bits, offset } => {
                let per = (32 / bits) as usize;
                let word = word(bytes, group * (rows / per) + row / per);
                let mask = (1 << bits) - 1;
                // The file has 0 as the largest number, because one was subtracted from it.
                let stored = (word >> (bits as usize * (row % per))) & mask;
                ((stored + offset) & mask) as i32
            }
            Zeros::Awq => {
                let word = word(bytes, group * (rows / 8) + row / 8);
                let place = AWQ_ORDER.iter().position(|&output| output == row % 8);
                let place = place.unwrap_or_default();
                ((word >> (AWQ_BITS as usize * place)) & 0xf) as i32
            }
            Zeros::Words { bits } => {
                let per = (32 / bits) as usize;
                let word = word(bytes, row / per * groups + group);
                let mask = (1 << bits) - 1;
                ((word >> (bits as usize * (row % per))) & mask) as i32 - (1 << (bits - 1))
            }
            Zeros::Int8 => i32::from(bytes[row * groups + group] as i8),
        }
    }
}

/// Where the scale of a weight lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scale {
    /// Consecutive rows that share their scales.
    pub rows_per: usize,
    pub row_stride: usize,
    /// Columns of a group.
    pub columns_per: usize,
    pub group_stride: usize,
    pub groups: usize,
}

impl Scale {
    pub fn index(self, row: usize, group: usize) -> usize {
        row / self.rows_per * self.row_stride + group * self.group_stride
    }
}

fn word(bytes: &[u8], index: usize) -> u32 {
    let bytes = &bytes[4 * index..][..4];
    u32::from_le_bytes(bytes.try_into().expect("four bytes"))
}

/// Writes the integers of a word, the low bits first.
fn spread(word: u32, bits: u32, out: &mut [i16]) {
    let mask = (1 << bits) - 1;
    for (at, out) in out.iter_mut().enumerate() {
        *out = ((word >> (bits as usize * at)) & mask) as i16;
    }
}
