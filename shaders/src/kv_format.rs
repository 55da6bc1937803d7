//! The formats of KV pools.

use std::fmt;

use burn::tensor::DType;

/// The format in which a KV pool stores a head: the keys or the values of one token and one KV head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// `head_dim` floats of this type.
    Floats(DType),
    /// 8-bit integers and a scale. A head is `1 + head_dim / 4` words of 32 bits: an f32 scale, and
    /// then the integers, four in a word, the first one in the lowest bits.
    ///
    /// The scale is the largest magnitude in the head over 127, and an integer is its element over
    /// the scale, rounded to the nearest integer and a tie to the even one. So an element is off by
    /// at most 1/254 of the largest magnitude of its head. The format of a head depends on nothing
    /// but its own elements.
    ///
    /// A head whose largest magnitude is below [`SMALLEST`] is stored as zeros with a scale of zero.
    /// A head with an element that is not finite gets zeros and NaN as its scale, so that attention
    /// to it gives NaN.
    Int8,
}

/// The smallest magnitude that [`KvFormat::Int8`] tells from zero. Scales are far from subnormal
/// numbers, which some devices take for zero.
pub const SMALLEST: f32 = 1e-30;
/// The largest integer.
pub const LARGEST: f32 = 127.0;
/// Adding this number to an f32 of a small magnitude rounds it to the nearest integer, a tie to the
/// even one, and leaves that integer in the lowest bits, as two's complement.
pub const ROUND: f32 = 12_582_912.0;
/// The bits of infinity. The bits of all numbers that are not finite are at least as large, apart
/// from the sign.
pub const INFINITY_BITS: u32 = 0x7f80_0000;
/// The bits of the scale of a head that is not finite.
pub const NAN_BITS: u32 = 0x7fc0_0000;

/// Integers in a word.
pub const PER_WORD: usize = 4;

impl KvFormat {
    /// The type of a pool's tensor. Pools of integers are tensors of words, which only the kernels
    /// for pools accept.
    pub fn dtype(self) -> DType {
        match self {
            KvFormat::Floats(dtype) => dtype,
            KvFormat::Int8 => DType::U32,
        }
    }

    /// The format of a pool whose tensor has the type `dtype`.
    pub fn of(dtype: DType) -> Self {
        match dtype {
            DType::U32 => KvFormat::Int8,
            dtype => KvFormat::Floats(dtype),
        }
    }

    /// True if heads of `head_dim` elements can be stored in this format.
    pub fn fits(self, head_dim: usize) -> bool {
        self != KvFormat::Int8 || head_dim.is_multiple_of(PER_WORD)
    }

    /// Elements of a pool's tensor in a head, which has `head_dim` elements itself.
    pub fn head_width(self, head_dim: usize) -> usize {
        match self {
            KvFormat::Floats(_) => head_dim,
            KvFormat::Int8 => 1 + head_dim / PER_WORD,
        }
    }

    /// Bytes of a head.
    pub fn head_bytes(self, head_dim: usize) -> usize {
        self.head_width(head_dim) * self.dtype().size()
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KvFormat::Floats(DType::F32) => "f32",
            KvFormat::Floats(DType::F16) => "f16",
            KvFormat::Floats(DType::BF16) => "bf16",
            KvFormat::Floats(_) => "an unknown type",
            KvFormat::Int8 => "int8",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_in_8_bits_has_a_word_more_than_its_integers() {
        let bytes = |format: KvFormat| format.head_bytes(64);
        assert_eq!(bytes(KvFormat::Floats(DType::F32)), 256);
        assert_eq!(bytes(KvFormat::Floats(DType::BF16)), 128);
        assert_eq!(bytes(KvFormat::Int8), 68);
        assert!(KvFormat::Int8.fits(64) && !KvFormat::Int8.fits(66));
        assert!(KvFormat::Floats(DType::F16).fits(66));
        for format in [KvFormat::Floats(DType::F16), KvFormat::Int8] {
            assert_eq!(KvFormat::of(format.dtype()), format);
        }
    }
}
