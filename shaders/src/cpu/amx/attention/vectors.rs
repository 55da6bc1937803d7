//! Operations on vectors of 16 lanes: powers, rounding, transposition and reductions.

use std::arch::x86_64::*;

/// The exponent below which [`power`] is zero: about that of e^-60. Such a weight would not change the sum of
/// the weights, which is at least 1. But 2^x below -126 is subnormal, as products with a power somewhat above
/// that are, and an Intel CPU (Ice Lake) took a hundred times as long for such a result.
const LEAST_EXPONENT: f32 = -86.5;

/// 2^x to about 1e-7, and zero below [`LEAST_EXPONENT`]. NaN stays NaN.
#[target_feature(enable = "avx512f")]
#[inline]
pub fn power(x: __m512) -> __m512 {
    let some = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(LEAST_EXPONENT));
    let n = _mm512_roundscale_ps::<0>(x);
    let r = _mm512_sub_ps(x, n);
    let mut p = _mm512_set1_ps(1.535_336_2e-4);
    for factor in [
        1.339_887_4e-3,
        9.618_437e-3,
        5.550_332_5e-2,
        2.402_264_8e-1,
        6.931_472e-1,
        1.0,
    ] {
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(factor));
    }
    _mm512_maskz_scalef_ps(some, p, n)
}

/// 32 elements, rounded to bf16.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
pub fn pack(low: __m512, high: __m512) -> __m512i {
    // SAFETY: both types are plain vectors of 512 bits.
    unsafe { std::mem::transmute(_mm512_cvtne2ps_pbh(high, low)) }
}

/// The differences between the elements and their values after rounding by [`pack`].
#[target_feature(enable = "avx512f")]
#[inline]
pub fn residual(packed: __m512i, low: __m512, high: __m512) -> [__m512; 2] {
    let wide = |half| _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half));
    let rounded = [
        wide(_mm512_castsi512_si256(packed)),
        wide(_mm512_extracti64x4_epi64::<1>(packed)),
    ];
    [
        _mm512_sub_ps(low, _mm512_castsi512_ps(rounded[0])),
        _mm512_sub_ps(high, _mm512_castsi512_ps(rounded[1])),
    ]
}

/// The differences between the elements and their values after rounding by [`interleaved`].
#[target_feature(enable = "avx512f")]
#[inline]
pub fn residual_of_pairs(pairs: __m512i, even: __m512, odd: __m512) -> [__m512; 2] {
    let high = _mm512_and_si512(pairs, _mm512_set1_epi32(!0xffff));
    let low = _mm512_slli_epi32::<16>(pairs);
    [
        _mm512_sub_ps(even, _mm512_castsi512_ps(low)),
        _mm512_sub_ps(odd, _mm512_castsi512_ps(high)),
    ]
}

/// Rounds to bf16 and interleaves lane by lane, with `even` in the low half of each lane.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
#[inline]
pub fn interleaved(even: __m512, odd: __m512) -> __m512i {
    let order: [u16; 32] = std::array::from_fn(|i| (i / 2 + i % 2 * 16) as u16);
    // SAFETY: the array has 64 bytes.
    let order = unsafe { _mm512_loadu_si512(order.as_ptr().cast()) };
    _mm512_permutexvar_epi16(order, pack(even, odd))
}

/// Transposes 16 by 16 lanes.
#[target_feature(enable = "avx512f")]
#[inline]
pub fn transposed(r: [__m512i; 16]) -> [__m512i; 16] {
    let mut a = r;
    for i in (0..16).step_by(2) {
        a[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    let mut b = a;
    for i in (0..16).step_by(4) {
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    // Now transpose quarters: column `4 * q + i` of the rows `4 * k..4 * k + 4` is quarter `q` of
    // `b[4 * k + i]`.
    let mut out = b;
    for i in 0..4 {
        let even = [b[i], b[8 + i]];
        let odd = [b[4 + i], b[12 + i]];
        let low: [__m512i; 2] =
            std::array::from_fn(|k| _mm512_shuffle_i32x4::<0x88>(even[k], odd[k]));
        let high: [__m512i; 2] =
            std::array::from_fn(|k| _mm512_shuffle_i32x4::<0xdd>(even[k], odd[k]));
        out[i] = _mm512_shuffle_i32x4::<0x88>(low[0], low[1]);
        out[8 + i] = _mm512_shuffle_i32x4::<0xdd>(low[0], low[1]);
        out[4 + i] = _mm512_shuffle_i32x4::<0x88>(high[0], high[1]);
        out[12 + i] = _mm512_shuffle_i32x4::<0xdd>(high[0], high[1]);
    }
    out
}

/// The sum of the lanes: lanes that are eight apart are added first, then four, two and one.
#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
pub fn fold(x: __m512) -> f32 {
    let eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
    let four = _mm_add_ps(
        _mm256_castps256_ps128(eight),
        _mm256_extractf128_ps::<1>(eight),
    );
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// The largest lane. No lane may be NaN.
#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
pub fn largest_lane(x: __m512) -> f32 {
    let eight = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
    let four = _mm_max_ps(
        _mm256_castps256_ps128(eight),
        _mm256_extractf128_ps::<1>(eight),
    );
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
}
