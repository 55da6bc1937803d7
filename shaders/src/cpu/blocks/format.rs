//! Each format of blocks, described once: how its elements are stored and how they are scaled.
//!
//! Everything that computes with blocks follows from a [`Layout`]: reading a file's blocks, packing
//! them, and the products at every level of instructions.

use super::{BLOCK, LINE, ROWS};

/// The formats of blocks of small integers, under GGML's names, and bf16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)]
pub enum BlockFormat {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    /// bf16, little-endian, for CPUs that multiply bf16.
    Bf16,
}

/// How the elements of a format are stored and scaled.
pub struct Layout {
    /// Elements and bytes of a block in a file.
    pub stored: (usize, usize),
    /// Consecutive elements with a scale of their own: 16 or 32.
    pub part: usize,
    /// Bits of an element in each of two planes, the low bits first. A packed block of 32 elements
    /// has as many lines as its elements have bits: those of the first plane, then those of the
    /// second.
    pub planes: [usize; 2],
    /// The values of 4-bit elements with the offset added, if elements are not their own values.
    pub table: Option<[u8; 16]>,
    /// The number that is added to elements so that they are not negative: zero or a power of two.
    pub offset: u8,
    pub scales: Scales,
}

/// The 16 values of an element, with `offset` added.
const fn table(values: [i8; 16], offset: u8) -> Option<[u8; 16]> {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = (values[i] as i16 + offset as i16) as u8;
        i += 1;
    }
    Some(table)
}

/// The values of `IQ4_NL` and `IQ4_XS`.
const FINE_NEAR_ZERO: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];
/// The values of `MXFP4`: floats with two bits of exponent and one of mantissa, doubled.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// How the parts of a block are scaled. A value is its element times a scale, plus a minimum where
/// there are minimums.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scales {
    /// The elements are values.
    None,
    /// An f16 for each 32 elements.
    Half,
    /// An f16 for each 32 elements, and an f16 as their minimum.
    HalfAndMinimum,
    /// A power of two for each 32 elements, which is packed as bf16.
    Power,
    /// An f16 for 256 elements, times a signed byte for each part.
    Signed,
    /// An f16 for 256 elements, times a byte for each part; minimums in the same way.
    Pairs,
    /// As [`Scales::Pairs`], in four bits each.
    Nibbles,
}

impl Scales {
    /// True if an f16 scales 256 elements, and each part has an integer beside it.
    pub const fn two_levels(self) -> bool {
        matches!(self, Scales::Signed | Scales::Pairs | Scales::Nibbles)
    }

    /// True if values have minimums.
    pub const fn minimums(self) -> bool {
        matches!(
            self,
            Scales::HalfAndMinimum | Scales::Pairs | Scales::Nibbles
        )
    }
}

impl Layout {
    /// Bits of an element.
    pub const fn bits(&self) -> usize {
        self.planes[0] + self.planes[1]
    }

    /// The largest element, with the offset added.
    pub const fn largest(&self) -> u8 {
        let Some(table) = self.table else {
            return ((1u16 << self.bits()) - 1) as u8;
        };
        let (mut largest, mut i) = (0, 0);
        while i < table.len() {
            if table[i] > largest {
                largest = table[i];
            }
            i += 1;
        }
        largest
    }

    /// Columns of a unit: two blocks of 32, so that their scales fill a line, or as many as an f16
    /// scales.
    pub const fn unit(&self) -> usize {
        if self.scales.two_levels() {
            256
        } else {
            2 * BLOCK
        }
    }

    /// Bytes of the scales of a unit: for each kind of f16 one of every block and row, or one of
    /// every row; and then the integers of every part and row.
    pub const fn scale_bytes(&self) -> usize {
        let parts = self.unit() / self.part;
        match self.scales {
            Scales::None => 0,
            Scales::Half | Scales::Power => LINE,
            Scales::HalfAndMinimum => 2 * LINE,
            Scales::Signed | Scales::Nibbles => LINE + parts * ROWS,
            Scales::Pairs => LINE + 2 * parts * ROWS,
        }
    }

    /// Bytes of the elements of 32 columns and 16 rows.
    pub const fn block_bytes(&self) -> usize {
        self.bits() * LINE
    }

    /// Bytes of a unit: its scales, then its elements.
    pub const fn unit_bytes(&self) -> usize {
        self.scale_bytes() + self.unit() / BLOCK * self.block_bytes()
    }
}

impl BlockFormat {
    /// All formats, in the order of their numbers.
    pub const ALL: [BlockFormat; 14] = [
        BlockFormat::Q4_0,
        BlockFormat::Q4_1,
        BlockFormat::Q5_0,
        BlockFormat::Q5_1,
        BlockFormat::Q8_0,
        BlockFormat::Q2_K,
        BlockFormat::Q3_K,
        BlockFormat::Q4_K,
        BlockFormat::Q5_K,
        BlockFormat::Q6_K,
        BlockFormat::IQ4_NL,
        BlockFormat::IQ4_XS,
        BlockFormat::MXFP4,
        BlockFormat::Bf16,
    ];

    /// The formats of small integers.
    pub fn integers() -> impl Iterator<Item = BlockFormat> {
        let all = Self::ALL.into_iter();
        all.filter(|format| *format != BlockFormat::Bf16)
    }

    /// Elements of a block in a file.
    pub const fn elements(self) -> usize {
        self.layout().stored.0
    }

    /// True if a matrix in this format can have rows of `columns` elements: the last of the smaller
    /// blocks may be incomplete, but not one of 256.
    pub const fn fits(self, columns: usize) -> bool {
        self.elements() <= BLOCK || columns.is_multiple_of(self.elements())
    }

    /// Bytes of a block in a file.
    pub const fn bytes(self) -> usize {
        self.layout().stored.1
    }

    pub const fn layout(self) -> Layout {
        let (stored, part, planes, offset, scales) = match self {
            BlockFormat::Q4_0 => ((32, 18), 32, [4, 0], 8, Scales::Half),
            BlockFormat::Q4_1 => ((32, 20), 32, [4, 0], 0, Scales::HalfAndMinimum),
            BlockFormat::Q5_0 => ((32, 22), 32, [4, 1], 16, Scales::Half),
            BlockFormat::Q5_1 => ((32, 24), 32, [4, 1], 0, Scales::HalfAndMinimum),
            BlockFormat::Q8_0 => ((32, 34), 32, [8, 0], 128, Scales::Half),
            BlockFormat::Q2_K => ((256, 84), 16, [2, 0], 0, Scales::Nibbles),
            BlockFormat::Q3_K => ((256, 110), 16, [2, 1], 4, Scales::Signed),
            BlockFormat::Q4_K => ((256, 144), 32, [4, 0], 0, Scales::Pairs),
            BlockFormat::Q5_K => ((256, 176), 32, [4, 1], 0, Scales::Pairs),
            BlockFormat::Q6_K => ((256, 210), 16, [4, 2], 32, Scales::Signed),
            BlockFormat::IQ4_NL => ((32, 18), 32, [4, 0], 128, Scales::Half),
            BlockFormat::IQ4_XS => ((256, 136), 32, [4, 0], 128, Scales::Signed),
            BlockFormat::MXFP4 => ((32, 17), 32, [4, 0], 16, Scales::Power),
            BlockFormat::Bf16 => ((1, 2), 32, [8, 8], 0, Scales::None),
        };
        let table = match self {
            BlockFormat::IQ4_NL | BlockFormat::IQ4_XS => table(FINE_NEAR_ZERO, offset),
            BlockFormat::MXFP4 => table(E2M1, offset),
            _ => None,
        };
        Layout {
            stored,
            part,
            planes,
            table,
            offset,
            scales,
        }
    }
}
