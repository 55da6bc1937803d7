//! Vectors of x86: AVX-512 and AVX2.
//!
//! Each method is made of intrinsics that need exactly what the contract of [`Simd`] demands: the
//! CPU features of the type, and pointers that are valid for `LANES` elements, or for twice as many
//! where a method says so.

#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "the contract of the trait covers every operation of every method"
)]

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::Simd;

#[derive(Clone, Copy)]
pub struct Avx512(__m512);

impl Simd for Avx512 {
    const LANES: usize = 16;
    #[inline(always)]
    unsafe fn zero() -> Self {
        Self(_mm512_setzero_ps())
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self(_mm512_set1_ps(value))
    }
    #[inline(always)]
    unsafe fn load_f32(from: *const f32) -> Self {
        Self(_mm512_loadu_ps(from))
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
        Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
    }
    #[inline(always)]
    unsafe fn load_bf16_half(from: *const bf16, half: usize) -> Self {
        Self::load_f32(from.cast()).bf16_half(half)
    }
    #[inline(always)]
    unsafe fn bf16_half(self, half: usize) -> Self {
        let both = _mm512_castps_si512(self.0);
        Self(_mm512_castsi512_ps(match half {
            0 => _mm512_slli_epi32::<16>(both),
            _ => _mm512_and_si512(both, _mm512_set1_epi32(!0xffff)),
        }))
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        Self(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast())))
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        Self(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(
            from.cast(),
        ))))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        _mm512_storeu_ps(to, self.0)
    }
    #[inline(always)]
    unsafe fn add_mul(self, a: Self, b: Self) -> Self {
        Self(_mm512_fmadd_ps(a.0, b.0, self.0))
    }
    #[inline(always)]
    fn fused(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Self(_mm512_mul_ps(self.0, other.0))
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        _mm512_reduce_add_ps(self.0)
    }
    #[inline(always)]
    unsafe fn sums(vectors: [Self; 4]) -> [f32; 4] {
        // Add the halves twice, then transpose the remaining four lanes of each vector and add
        // them.
        let [a, b, c, d] = vectors;
        let (a, b, c, d) = (a.quarter(), b.quarter(), c.quarter(), d.quarter());
        let (ab, cd) = (_mm_unpacklo_ps(a, b), _mm_unpacklo_ps(c, d));
        let (ab_high, cd_high) = (_mm_unpackhi_ps(a, b), _mm_unpackhi_ps(c, d));
        let even = _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movelh_ps(ab_high, cd_high));
        let odd = _mm_add_ps(_mm_movehl_ps(cd, ab), _mm_movehl_ps(cd_high, ab_high));
        let mut sums = [0.0; 4];
        _mm_storeu_ps(sums.as_mut_ptr(), _mm_add_ps(even, odd));
        sums
    }
    #[inline(always)]
    unsafe fn transpose(vectors: &mut [Self; 16]) {
        // First four rows at a time, within each quarter of the vectors, and then the quarters.
        let mut quads = [[_mm512_setzero_ps(); 4]; 4];
        for (quad, rows) in quads.iter_mut().zip(vectors.as_chunks::<4>().0) {
            let [a, b, c, d] = *rows;
            let (ab, cd) = (_mm512_unpacklo_ps(a.0, b.0), _mm512_unpacklo_ps(c.0, d.0));
            let (ab_high, cd_high) = (_mm512_unpackhi_ps(a.0, b.0), _mm512_unpackhi_ps(c.0, d.0));
            *quad = [
                _mm512_shuffle_ps::<0b01_00_01_00>(ab, cd),
                _mm512_shuffle_ps::<0b11_10_11_10>(ab, cd),
                _mm512_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high),
                _mm512_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high),
            ];
        }
        let [a, b, c, d] = quads;
        for column in 0..4 {
            let even = [
                _mm512_shuffle_f32x4::<0b10_00_10_00>(a[column], b[column]),
                _mm512_shuffle_f32x4::<0b10_00_10_00>(c[column], d[column]),
            ];
            let odd = [
                _mm512_shuffle_f32x4::<0b11_01_11_01>(a[column], b[column]),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(c[column], d[column]),
            ];
            for (first, [ab, cd]) in [even, odd].into_iter().enumerate() {
                let at = 4 * first + column;
                vectors[at] = Self(_mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd));
                vectors[at + 8] = Self(_mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd));
            }
        }
    }
}

impl Avx512 {
    /// The sums of the lanes that are four apart.
    #[inline(always)]
    unsafe fn quarter(self) -> __m128 {
        let half = _mm256_add_ps(
            _mm512_castps512_ps256(self.0),
            _mm512_extractf32x8_ps::<1>(self.0),
        );
        _mm_add_ps(
            _mm256_castps256_ps128(half),
            _mm256_extractf128_ps::<1>(half),
        )
    }
}

#[derive(Clone, Copy)]
pub struct Avx2(__m256);

impl Simd for Avx2 {
    const LANES: usize = 8;
    #[inline(always)]
    unsafe fn zero() -> Self {
        Self(_mm256_setzero_ps())
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self(_mm256_set1_ps(value))
    }
    #[inline(always)]
    unsafe fn load_f32(from: *const f32) -> Self {
        Self(_mm256_loadu_ps(from))
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
        Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)))
    }
    #[inline(always)]
    unsafe fn bf16_half(self, half: usize) -> Self {
        let both = _mm256_castps_si256(self.0);
        Self(_mm256_castsi256_ps(match half {
            0 => _mm256_slli_epi32::<16>(both),
            _ => _mm256_and_si256(both, _mm256_set1_epi32(!0xffff)),
        }))
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        Self(_mm256_cvtph_ps(_mm_loadu_si128(from.cast())))
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        Self(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(
            from.cast(),
        ))))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        _mm256_storeu_ps(to, self.0)
    }
    #[inline(always)]
    unsafe fn add_mul(self, a: Self, b: Self) -> Self {
        Self(_mm256_fmadd_ps(a.0, b.0, self.0))
    }
    #[inline(always)]
    fn fused(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Self(_mm256_mul_ps(self.0, other.0))
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let mut lanes = [0.0f32; 8];
        _mm256_storeu_ps(lanes.as_mut_ptr(), self.0);
        lanes.iter().sum()
    }
    #[inline(always)]
    unsafe fn sums(vectors: [Self; 4]) -> [f32; 4] {
        // Both halves of the vectors are transposed at once: then each vector has the same lane of
        // all four, and of the lane four behind it. The lanes are added in the order of `sum`.
        let [a, b, c, d] = vectors;
        let (ab, cd) = (_mm256_unpacklo_ps(a.0, b.0), _mm256_unpacklo_ps(c.0, d.0));
        let (ab_high, cd_high) = (_mm256_unpackhi_ps(a.0, b.0), _mm256_unpackhi_ps(c.0, d.0));
        let lanes = [
            _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd),
            _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd),
            _mm256_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high),
            _mm256_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high),
        ];
        let mut total = _mm256_castps256_ps128(lanes[0]);
        for lane in &lanes[1..] {
            total = _mm_add_ps(total, _mm256_castps256_ps128(*lane));
        }
        for lane in lanes {
            total = _mm_add_ps(total, _mm256_extractf128_ps::<1>(lane));
        }
        let mut sums = [0.0; 4];
        _mm_storeu_ps(sums.as_mut_ptr(), total);
        sums
    }
    #[inline(always)]
    unsafe fn transpose(vectors: &mut [Self; 16]) {
        // First four rows at a time, within both halves of the vectors, and then the halves.
        let mut quads = [[_mm256_setzero_ps(); 4]; 2];
        for (quad, rows) in quads.iter_mut().zip(vectors.as_chunks::<4>().0) {
            let [a, b, c, d] = *rows;
            let (ab, cd) = (_mm256_unpacklo_ps(a.0, b.0), _mm256_unpacklo_ps(c.0, d.0));
            let (ab_high, cd_high) = (_mm256_unpackhi_ps(a.0, b.0), _mm256_unpackhi_ps(c.0, d.0));
            *quad = [
                _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd),
                _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd),
                _mm256_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high),
                _mm256_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high),
            ];
        }
        let [first, last] = quads;
        for (column, (a, b)) in first.into_iter().zip(last).enumerate() {
            vectors[column] = Self(_mm256_permute2f128_ps::<0x20>(a, b));
            vectors[column + 4] = Self(_mm256_permute2f128_ps::<0x31>(a, b));
        }
    }
}
