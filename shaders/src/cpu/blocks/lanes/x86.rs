//! [`Lanes`] of x86: AVX-512 with VNNI, and AVX2 with and without VNNI.
//!
//! Each method is made of intrinsics that need exactly what the contract of [`Lanes`] demands: the
//! CPU features of the type, and pointers that are valid for the bytes they stand for.

#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "the contracts of the traits cover every operation of every method"
)]

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::Lanes;

pub struct Avx512Vnni;

impl Lanes for Avx512Vnni {
    type Bytes = __m512i;
    type Sums = __m512i;
    type Floats = __m512;
    const TOKENS: usize = 8;

    #[inline(always)]
    unsafe fn bytes(line: *const u8) -> __m512i {
        _mm512_loadu_si512(line.cast())
    }
    #[inline(always)]
    unsafe fn take(bytes: __m512i, right: i32, mask: u8) -> __m512i {
        // Shifts of 16 bits move bits between bytes, which the mask clears.
        let count = _mm_cvtsi32_si128(right.abs());
        let shifted = match right {
            0.. => _mm512_srl_epi16(bytes, count),
            _ => _mm512_sll_epi16(bytes, count),
        };
        _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8))
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        _mm512_or_si512(a, b)
    }
    #[inline(always)]
    unsafe fn look_up(table: [u8; 16], indices: __m512i) -> __m512i {
        let table = _mm_loadu_si128(table.as_ptr().cast());
        _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), indices)
    }
    #[inline(always)]
    unsafe fn splat(value: i32) -> __m512i {
        _mm512_set1_epi32(value)
    }
    #[inline(always)]
    unsafe fn add_dots<const TOKENS: usize>(
        sums: &mut [__m512i; TOKENS],
        elements: &[__m512i],
        _: u8,
        x: [*const i8; TOKENS],
    ) {
        for (four, bytes) in elements.iter().enumerate() {
            for (sums, x) in sums.iter_mut().zip(x) {
                let x = _mm512_set1_epi32(x.add(4 * four).cast::<i32>().read_unaligned());
                *sums = _mm512_dpbusd_epi32(*sums, *bytes, x);
            }
        }
    }
    #[inline(always)]
    unsafe fn zero() -> __m512 {
        _mm512_setzero_ps()
    }
    #[inline(always)]
    unsafe fn halves(from: *const u8) -> __m512 {
        _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))
    }
    #[inline(always)]
    unsafe fn brains(from: *const u8) -> __m512 {
        let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
    }
    #[inline(always)]
    unsafe fn unsigned(from: *const u8, right: u32, mask: u8) -> __m512 {
        let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
        let shifted = _mm512_srl_epi32(bytes, _mm_cvtsi32_si128(right as i32));
        _mm512_cvtepi32_ps(_mm512_and_si512(
            shifted,
            _mm512_set1_epi32(i32::from(mask)),
        ))
    }
    #[inline(always)]
    unsafe fn signed(from: *const u8) -> __m512 {
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())))
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        _mm512_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn add_scaled(total: __m512, sums: __m512i, scales: __m512, x_scale: f32) -> __m512 {
        let scales = _mm512_mul_ps(scales, _mm512_set1_ps(x_scale));
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), scales, total)
    }
    #[inline(always)]
    unsafe fn add_times(total: __m512, values: __m512, x: f32) -> __m512 {
        _mm512_fmadd_ps(values, _mm512_set1_ps(x), total)
    }
    #[inline(always)]
    unsafe fn to_array(floats: __m512) -> [f32; 16] {
        let mut array = [0.0; 16];
        _mm512_storeu_ps(array.as_mut_ptr(), floats);
        array
    }
}

/// Adds products of bytes in 256-bit registers: for each of the 8 lanes, the four products of unsigned
/// `bytes` and signed `x`.
pub trait Dot {
    /// Tokens whose sums fit the registers.
    const TOKENS: usize;

    /// [`Lanes::taken_off`].
    fn taken_off(largest: u8) -> u8;

    /// [`Lanes::add_dots`].
    ///
    /// # Safety
    /// The CPU must have the features of the implementing type, and four bytes must be readable for
    /// each of `elements` from each `x` on.
    unsafe fn add_all<const TOKENS: usize>(
        sums: &mut [[__m256i; 2]; TOKENS],
        elements: &[[__m256i; 2]],
        largest: u8,
        x: [*const i8; TOKENS],
    );
}

/// The four bytes at `x`, in every lane.
#[inline(always)]
unsafe fn four_bytes(x: *const i8) -> __m256i {
    _mm256_set1_epi32(x.cast::<i32>().read_unaligned())
}

/// The VNNI instruction for 256-bit registers (AVX-VNNI).
pub struct Vnni;

impl Dot for Vnni {
    const TOKENS: usize = 2;

    fn taken_off(_: u8) -> u8 {
        0
    }

    #[inline(always)]
    unsafe fn add_all<const TOKENS: usize>(
        sums: &mut [[__m256i; 2]; TOKENS],
        elements: &[[__m256i; 2]],
        _: u8,
        x: [*const i8; TOKENS],
    ) {
        for (four, bytes) in elements.iter().enumerate() {
            for (sums, x) in sums.iter_mut().zip(x) {
                let x = four_bytes(x.add(4 * four));
                for (sums, bytes) in sums.iter_mut().zip(*bytes) {
                    *sums = _mm256_dpbusd_avx_epi32(*sums, bytes, x);
                }
            }
        }
    }
}

/// AVX2, whose product of bytes adds two of them in 16 bits and saturates. Where elements are small
/// enough, several such pairs are added in 16 bits. From others 128 is taken off, so that two products
/// cannot saturate.
pub struct InPairs;

impl InPairs {
    /// How many pairs of products of bytes of at most `largest` have a sum that fits an i16. No byte of
    /// the activations is -128.
    const fn pairs(largest: u8) -> usize {
        i16::MAX as usize / (2 * largest as usize * i8::MAX as usize)
    }
}

impl Dot for InPairs {
    const TOKENS: usize = 4;

    fn taken_off(largest: u8) -> u8 {
        match Self::pairs(largest) {
            0 => 128,
            _ => 0,
        }
    }

    #[inline(always)]
    unsafe fn add_all<const TOKENS: usize>(
        sums: &mut [[__m256i; 2]; TOKENS],
        elements: &[[__m256i; 2]],
        largest: u8,
        x: [*const i8; TOKENS],
    ) {
        let pairs = Self::pairs(largest);
        for (first, some) in elements.chunks(pairs.max(1)).enumerate() {
            let mut added = [[_mm256_setzero_si256(); 2]; TOKENS];
            for (four, bytes) in some.iter().enumerate() {
                for (added, x) in added.iter_mut().zip(x) {
                    let x = four_bytes(x.add(4 * (first * pairs.max(1) + four)));
                    for (added, bytes) in added.iter_mut().zip(*bytes) {
                        let two = match pairs {
                            0 => {
                                let signed = _mm256_xor_si256(bytes, _mm256_set1_epi8(i8::MIN));
                                let x = _mm256_sign_epi8(x, signed);
                                _mm256_maddubs_epi16(_mm256_abs_epi8(signed), x)
                            }
                            _ => _mm256_maddubs_epi16(bytes, x),
                        };
                        *added = _mm256_add_epi16(*added, two);
                    }
                }
            }
            let ones = _mm256_set1_epi16(1);
            for (sums, added) in sums.iter_mut().zip(added) {
                for (sums, added) in sums.iter_mut().zip(added) {
                    *sums = _mm256_add_epi32(*sums, _mm256_madd_epi16(added, ones));
                }
            }
        }
    }
}

/// [`Lanes::take`] of a register.
#[inline(always)]
unsafe fn take(bytes: __m256i, right: i32, mask: u8) -> __m256i {
    // Shifts of 16 bits move bits between bytes, which the mask clears.
    let count = _mm_cvtsi32_si128(right.abs());
    let shifted = match right {
        0.. => _mm256_srl_epi16(bytes, count),
        _ => _mm256_sll_epi16(bytes, count),
    };
    _mm256_and_si256(shifted, _mm256_set1_epi8(mask as i8))
}

/// Eight bf16.
#[inline(always)]
unsafe fn brains(from: *const u8) -> __m256 {
    let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
}

/// [`Lanes::unsigned`] of eight bytes.
#[inline(always)]
unsafe fn unsigned(from: *const u8, right: u32, mask: u8) -> __m256 {
    let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()));
    let shifted = _mm256_srl_epi32(bytes, _mm_cvtsi32_si128(right as i32));
    _mm256_cvtepi32_ps(_mm256_and_si256(
        shifted,
        _mm256_set1_epi32(i32::from(mask)),
    ))
}

/// Eight signed bytes.
#[inline(always)]
unsafe fn signed(from: *const u8) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast())))
}

/// Two registers of 256 bits, which stand for one of 512.
pub struct Halves<D>(PhantomData<D>);

impl<D: Dot> Lanes for Halves<D> {
    type Bytes = [__m256i; 2];
    type Sums = [__m256i; 2];
    type Floats = [__m256; 2];
    const TOKENS: usize = D::TOKENS;

    #[inline(always)]
    unsafe fn bytes(line: *const u8) -> [__m256i; 2] {
        [
            _mm256_loadu_si256(line.cast()),
            _mm256_loadu_si256(line.add(32).cast()),
        ]
    }
    #[inline(always)]
    unsafe fn take(bytes: [__m256i; 2], right: i32, mask: u8) -> [__m256i; 2] {
        [take(bytes[0], right, mask), take(bytes[1], right, mask)]
    }
    #[inline(always)]
    unsafe fn or(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])]
    }
    #[inline(always)]
    unsafe fn look_up(table: [u8; 16], indices: [__m256i; 2]) -> [__m256i; 2] {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        [
            _mm256_shuffle_epi8(table, indices[0]),
            _mm256_shuffle_epi8(table, indices[1]),
        ]
    }
    #[inline(always)]
    unsafe fn splat(value: i32) -> [__m256i; 2] {
        [_mm256_set1_epi32(value); 2]
    }
    fn taken_off(largest: u8) -> u8 {
        D::taken_off(largest)
    }
    #[inline(always)]
    unsafe fn add_dots<const TOKENS: usize>(
        sums: &mut [[__m256i; 2]; TOKENS],
        elements: &[[__m256i; 2]],
        largest: u8,
        x: [*const i8; TOKENS],
    ) {
        D::add_all(sums, elements, largest, x);
    }
    #[inline(always)]
    unsafe fn zero() -> [__m256; 2] {
        [_mm256_setzero_ps(); 2]
    }
    #[inline(always)]
    unsafe fn halves(from: *const u8) -> [__m256; 2] {
        [
            _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(from.add(16).cast())),
        ]
    }
    #[inline(always)]
    unsafe fn brains(from: *const u8) -> [__m256; 2] {
        [brains(from), brains(from.add(16))]
    }
    #[inline(always)]
    unsafe fn unsigned(from: *const u8, right: u32, mask: u8) -> [__m256; 2] {
        [
            unsigned(from, right, mask),
            unsigned(from.add(8), right, mask),
        ]
    }
    #[inline(always)]
    unsafe fn signed(from: *const u8) -> [__m256; 2] {
        [signed(from), signed(from.add(8))]
    }
    #[inline(always)]
    unsafe fn mul(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])]
    }
    #[inline(always)]
    unsafe fn add_scaled(
        total: [__m256; 2],
        sums: [__m256i; 2],
        scales: [__m256; 2],
        x_scale: f32,
    ) -> [__m256; 2] {
        let add = |total, sums, scales| {
            let scales = _mm256_mul_ps(scales, _mm256_set1_ps(x_scale));
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), scales, total)
        };
        [
            add(total[0], sums[0], scales[0]),
            add(total[1], sums[1], scales[1]),
        ]
    }
    #[inline(always)]
    unsafe fn add_times(total: [__m256; 2], values: [__m256; 2], x: f32) -> [__m256; 2] {
        let x = _mm256_set1_ps(x);
        [
            _mm256_fmadd_ps(values[0], x, total[0]),
            _mm256_fmadd_ps(values[1], x, total[1]),
        ]
    }
    #[inline(always)]
    unsafe fn to_array(floats: [__m256; 2]) -> [f32; 16] {
        let mut array = [0.0f32; 16];
        _mm256_storeu_ps(array.as_mut_ptr(), floats[0]);
        _mm256_storeu_ps(array.as_mut_ptr().add(8), floats[1]);
        array
    }
}
