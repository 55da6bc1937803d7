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
        let both = _mm512_loadu_si512(from.cast());
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
    unsafe fn sums_of_sixteen(v: &[Self; 16]) -> [f32; 16] {
        // The lanes are added in the order of `sums`, but each step adds whole vectors, which have the
        // partial sums of two vectors after the first step, of four after the second, and then of all.
        let mut halves = [_mm512_setzero_ps(); 8];
        let (first, last) = v.split_at(8);
        for (half, (a, b)) in halves.iter_mut().zip(first.iter().zip(last)) {
            let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(a.0, b.0);
            *half = _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_10_11_10>(a.0, b.0));
        }
        let mut quarters = [_mm512_setzero_ps(); 4];
        let (first, last) = halves.split_at(4);
        for (quarter, (a, b)) in quarters.iter_mut().zip(first.iter().zip(last)) {
            let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(*a, *b);
            *quarter = _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_01_11_01>(*a, *b));
        }
        let [a, b, c, d] = quarters;
        let (ab, cd) = (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
        let (ab_high, cd_high) = (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
        let even = _mm512_add_ps(
            _mm512_shuffle_ps::<0b01_00_01_00>(ab, cd),
            _mm512_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high),
        );
        let odd = _mm512_add_ps(
            _mm512_shuffle_ps::<0b11_10_11_10>(ab, cd),
            _mm512_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high),
        );
        // The four lanes of 128 bits are those of the vectors from 0, 8, 4 and 12 on.
        let all = _mm512_add_ps(even, odd);
        let mut sums = [0.0; 16];
        let ordered = _mm512_shuffle_f32x4::<0b11_01_10_00>(all, all);
        _mm512_storeu_ps(sums.as_mut_ptr(), ordered);
        sums
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
}
