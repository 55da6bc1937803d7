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
    unsafe fn low(bytes: __m512i) -> __m512i {
        _mm512_and_si512(bytes, _mm512_set1_epi8(0xf))
    }
    #[inline(always)]
    unsafe fn high(bytes: __m512i) -> __m512i {
        _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), _mm512_set1_epi8(0xf))
    }
    #[inline(always)]
    unsafe fn splat(value: i32) -> __m512i {
        _mm512_set1_epi32(value)
    }
    #[inline(always)]
    unsafe fn add_dot(sums: __m512i, bytes: __m512i, x: *const i8) -> __m512i {
        let x = _mm512_set1_epi32(x.cast::<i32>().read_unaligned());
        _mm512_dpbusd_epi32(sums, bytes, x)
    }
    #[inline(always)]
    unsafe fn zero() -> __m512 {
        _mm512_setzero_ps()
    }
    #[inline(always)]
    unsafe fn scales(from: *const u8) -> __m512 {
        _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))
    }
    #[inline(always)]
    unsafe fn add_scaled(total: __m512, sums: __m512i, scales: __m512, x_scale: f32) -> __m512 {
        let scales = _mm512_mul_ps(scales, _mm512_set1_ps(x_scale));
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), scales, total)
    }
    #[inline(always)]
    unsafe fn to_array(floats: __m512) -> [f32; 16] {
        let mut array = [0.0; 16];
        _mm512_storeu_ps(array.as_mut_ptr(), floats);
        array
    }
}

/// Adds products of bytes in a 256-bit register: for each of the 8 lanes, the four products of
/// unsigned `bytes` and signed `x`.
pub trait Dot {
    /// # Safety
    /// The CPU must have the features of the implementing type.
    unsafe fn add(sums: __m256i, bytes: __m256i, x: __m256i) -> __m256i;
}

/// The VNNI instruction for 256-bit registers (AVX-VNNI).
pub struct Vnni;

impl Dot for Vnni {
    #[inline(always)]
    unsafe fn add(sums: __m256i, bytes: __m256i, x: __m256i) -> __m256i {
        _mm256_dpbusd_avx_epi32(sums, bytes, x)
    }
}

/// Multiplies in 16 bits, because AVX2's own product of bytes saturates.
pub struct Widened;

impl Dot for Widened {
    #[inline(always)]
    unsafe fn add(sums: __m256i, bytes: __m256i, x: __m256i) -> __m256i {
        let even = _mm256_madd_epi16(
            _mm256_and_si256(bytes, _mm256_set1_epi16(0xff)),
            _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x)),
        );
        let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(bytes), _mm256_srai_epi16::<8>(x));
        _mm256_add_epi32(sums, _mm256_add_epi32(even, odd))
    }
}

/// Two registers of 256 bits, which stand for one of 512.
pub struct Halves<D>(PhantomData<D>);

impl<D: Dot> Lanes for Halves<D> {
    type Bytes = [__m256i; 2];
    type Sums = [__m256i; 2];
    type Floats = [__m256; 2];
    const TOKENS: usize = 2;

    #[inline(always)]
    unsafe fn bytes(line: *const u8) -> [__m256i; 2] {
        [0, 32].map(|at| _mm256_loadu_si256(line.add(at).cast()))
    }
    #[inline(always)]
    unsafe fn low(bytes: [__m256i; 2]) -> [__m256i; 2] {
        bytes.map(|bytes| _mm256_and_si256(bytes, _mm256_set1_epi8(0xf)))
    }
    #[inline(always)]
    unsafe fn high(bytes: [__m256i; 2]) -> [__m256i; 2] {
        bytes.map(|bytes| _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), _mm256_set1_epi8(0xf)))
    }
    #[inline(always)]
    unsafe fn splat(value: i32) -> [__m256i; 2] {
        [_mm256_set1_epi32(value); 2]
    }
    #[inline(always)]
    unsafe fn add_dot(sums: [__m256i; 2], bytes: [__m256i; 2], x: *const i8) -> [__m256i; 2] {
        let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
        [D::add(sums[0], bytes[0], x), D::add(sums[1], bytes[1], x)]
    }
    #[inline(always)]
    unsafe fn zero() -> [__m256; 2] {
        [_mm256_setzero_ps(); 2]
    }
    #[inline(always)]
    unsafe fn scales(from: *const u8) -> [__m256; 2] {
        [0, 16].map(|at| _mm256_cvtph_ps(_mm_loadu_si128(from.add(at).cast())))
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
    unsafe fn to_array(floats: [__m256; 2]) -> [f32; 16] {
        let mut array = [0.0f32; 16];
        _mm256_storeu_ps(array.as_mut_ptr(), floats[0]);
        _mm256_storeu_ps(array.as_mut_ptr().add(8), floats[1]);
        array
    }
}
