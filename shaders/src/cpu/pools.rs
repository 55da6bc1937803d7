//! Elements of KV pools, and the rounding of keys and values to 8 bits.

use bytemuck::cast_slice_mut;

use super::simd::{Simd, Stored, Task};
use crate::kv_format::{INFINITY_BITS, LARGEST, NAN_BITS, ROUND, SMALLEST};

/// An element of a KV pool.
pub trait Pooled: Copy + Send + Sync + 'static {
    /// Elements in front of each head that hold its scale; 0 in pools of floats, which have none.
    const SCALE: usize;
    /// The scale of a head, from the elements in front of it.
    fn scale(front: &[Self]) -> f32;
    /// The element before it is multiplied by its head's scale.
    fn widen(self) -> f32;
    /// Loads `S::LANES` elements, as [`widen`](Self::widen) returns them.
    ///
    /// # Safety
    /// `from` must be readable for `S::LANES` elements, and the CPU must have `S`'s features.
    unsafe fn load<S: Simd>(from: *const Self) -> S;
    /// The elements that one lane of [`load_packed`](Self::load_packed) has.
    const PACKED: usize;
    /// Loads `S::LANES * PACKED` elements, for [`unpack`](Self::unpack).
    ///
    /// # Safety
    /// As for [`load`](Self::load), for that many elements.
    unsafe fn load_packed<S: Simd>(from: *const Self) -> S;
    /// The element of each lane that has the number `at`, which must be less than `PACKED`.
    ///
    /// # Safety
    /// The CPU must have `S`'s features.
    unsafe fn unpack<S: Simd>(packed: S, at: usize) -> S;
}

impl<E: Stored> Pooled for E {
    const SCALE: usize = 0;
    const PACKED: usize = E::PACKED;
    #[inline(always)]
    fn scale(_front: &[Self]) -> f32 {
        1.0
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        Stored::widen(self)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S {
        // SAFETY: the caller's guarantees are the same.
        unsafe { <E as Stored>::load(from) }
    }
    #[inline(always)]
    unsafe fn load_packed<S: Simd>(from: *const Self) -> S {
        // SAFETY: the caller's guarantees are the same.
        unsafe { E::load_packed(from) }
    }
    #[inline(always)]
    unsafe fn unpack<S: Simd>(packed: S, at: usize) -> S {
        // SAFETY: the caller's guarantees are the same.
        unsafe { E::unpack(packed, at) }
    }
}

/// A byte of a pool in [`KvFormat::Int8`](crate::KvFormat::Int8).
impl Pooled for i8 {
    const SCALE: usize = size_of::<f32>();
    const PACKED: usize = 1;
    #[inline(always)]
    fn scale(front: &[Self]) -> f32 {
        match front {
            [a, b, c, d] => f32::from_le_bytes([*a, *b, *c, *d].map(i8::cast_unsigned)),
            _ => f32::NAN,
        }
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from(self)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S {
        // SAFETY: the caller's guarantees are the same.
        unsafe { S::load_i8(from) }
    }
    #[inline(always)]
    unsafe fn load_packed<S: Simd>(from: *const Self) -> S {
        // SAFETY: the caller's guarantees are the same.
        unsafe { S::load_i8(from) }
    }
    #[inline(always)]
    unsafe fn unpack<S: Simd>(packed: S, _at: usize) -> S {
        packed
    }
}

/// Rounds heads to [`KvFormat::Int8`](crate::KvFormat::Int8).
pub struct Rounding<'a> {
    /// `[heads, head_dim]`
    pub from: &'a [f32],
    pub head_dim: usize,
    /// `[heads, 1 + head_dim / 4]` words
    pub to: &'a mut [u32],
}

impl Task for Rounding<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let heads = self.from.chunks_exact(self.head_dim);
        for (from, to) in heads.zip(self.to.chunks_exact_mut(1 + self.head_dim / 4)) {
            round(from, to);
        }
    }
}

/// Rounds one head.
#[inline(always)]
fn round(from: &[f32], to: &mut [u32]) {
    // The bits of positive numbers are in the order of the numbers, and NaN is above infinity.
    let largest = from.iter().fold(0, |most, x| x.abs().to_bits().max(most));
    let (scale, words) = to.split_first_mut().expect("a head has a scale");
    let magnitude = f32::from_bits(largest);
    if largest >= INFINITY_BITS || magnitude < SMALLEST {
        *scale = if largest >= INFINITY_BITS {
            NAN_BITS
        } else {
            0
        };
        return words.fill(0);
    }
    *scale = (magnitude / LARGEST).to_bits();
    let inverse = LARGEST / magnitude;
    for (to, x) in cast_slice_mut::<u32, u8>(words).iter_mut().zip(from) {
        *to = (x * inverse + ROUND).to_bits() as u8;
    }
}
