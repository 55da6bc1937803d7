//! [`Lanes`] of x86: AVX-512 with VNNI, and AVX2 with and without VNNI.
//!
//! Each method is made of intrinsics that need exactly what the contract of [`Lanes`] demands: the
//! CPU features of the type, and pointers that are valid for the bytes they stand for.

#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "the contracts of the traits cover every operation of every method"
)]

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::{BlockSums, Elements, Lanes, Layout};
use crate::cpu::blocks::BLOCK;

pub struct Avx512Vnni;

/// Returns `values`. The compiler computes them here and in a register, and not where it likes: it would
/// multiply one token after another, and wait for each of its sums.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn here(mut values: __m512i) -> __m512i {
    asm!("/* {0} */", inout(zmm_reg) values, options(nomem, nostack, preserves_flags));
    values
}

impl Lanes for Avx512Vnni {
    type Bytes = __m512i;
    type Sums = __m512i;
    type Floats = __m512;
    // Two groups: some CPUs load one vector in a cycle, and multiply two.
    const TOKENS: usize = 6;
    const GROUPS: usize = 2;
    const FEW_TOKENS: usize = 8;

    #[inline(always)]
    fn length(elements: usize) -> usize {
        // `dots` keeps the order.
        elements
    }

    #[inline(always)]
    unsafe fn bytes(line: *const u8) -> __m512i {
        _mm512_loadu_si512(line.cast())
    }
    #[inline(always)]
    unsafe fn store_bytes(bytes: __m512i, line: *mut u8) {
        _mm512_storeu_si512(line.cast(), bytes);
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
    unsafe fn dots<const TOKENS: usize, const GROUPS: usize>(
        elements: [impl Elements<Self>; GROUPS],
        layout: &Layout,
        part: usize,
        x: [*const i8; TOKENS],
        sums: [BlockSums<'_>; TOKENS],
    ) -> [[__m512i; TOKENS]; GROUPS] {
        let mut dots = [[_mm512_setzero_si512(); TOKENS]; GROUPS];
        if layout.offset != 0 {
            let power = _mm_cvtsi32_si128(layout.offset.trailing_zeros() as i32);
            let mut first = [_mm512_setzero_si512(); TOKENS];
            for (first, sums) in first.iter_mut().zip(sums) {
                let negated = here(_mm512_set1_epi32(sums.negated(layout.part, part)));
                *first = _mm512_sll_epi32(negated, power);
            }
            dots = [first; GROUPS];
        }
        for four in 0..elements[0].count() {
            let mut bytes = [_mm512_setzero_si512(); GROUPS];
            for (bytes, elements) in bytes.iter_mut().zip(elements) {
                *bytes = elements.get(four);
            }
            for (t, x) in x.into_iter().enumerate() {
                let mut x = _mm512_set1_epi32(x.add(4 * four).cast::<i32>().read_unaligned());
                if GROUPS > 1 {
                    // The compiler would load it for each group.
                    x = here(x);
                }
                for (dots, bytes) in dots.iter_mut().zip(bytes) {
                    dots[t] = _mm512_dpbusd_epi32(dots[t], bytes, x);
                }
            }
            for dots in dots.as_flattened_mut() {
                *dots = here(*dots);
            }
        }
        dots
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
    unsafe fn add_products(total: __m512, sums: __m512i, scales: __m512) -> __m512 {
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), scales, total)
    }
    #[inline(always)]
    unsafe fn add_times(total: __m512, values: __m512, x: f32) -> __m512 {
        _mm512_fmadd_ps(values, _mm512_set1_ps(x), total)
    }
    #[inline(always)]
    unsafe fn floats(from: *const f32) -> __m512 {
        _mm512_loadu_ps(from)
    }
    #[inline(always)]
    unsafe fn store_floats(floats: __m512, to: *mut f32) {
        _mm512_storeu_ps(to, floats);
    }
}

/// Sums of products of bytes in 256-bit registers, two of which have a lane for each row.
pub trait Dot: Sized {
    /// Tokens whose sums fit the registers.
    const TOKENS: usize;

    /// [`Lanes::splits`].
    fn splits(layout: &Layout) -> bool;

    /// [`Lanes::dots`] of one group.
    ///
    /// # Safety
    /// As for [`Lanes::dots`].
    unsafe fn dots<const TOKENS: usize>(
        elements: impl Elements<Halves<Self>>,
        layout: &Layout,
        part: usize,
        x: [*const i8; TOKENS],
        sums: [BlockSums<'_>; TOKENS],
    ) -> [[__m256i; 2]; TOKENS];
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

    fn splits(_: &Layout) -> bool {
        false
    }

    #[inline(always)]
    unsafe fn dots<const TOKENS: usize>(
        elements: impl Elements<Halves<Self>>,
        layout: &Layout,
        part: usize,
        x: [*const i8; TOKENS],
        sums: [BlockSums<'_>; TOKENS],
    ) -> [[__m256i; 2]; TOKENS] {
        let offset = i32::from(layout.offset);
        let mut dots = [[_mm256_setzero_si256(); 2]; TOKENS];
        for (dots, sums) in dots.iter_mut().zip(sums) {
            *dots = [_mm256_set1_epi32(offset * sums.negated(layout.part, part)); 2];
        }
        for four in 0..elements.count() {
            let bytes = elements.get(four);
            for (dots, x) in dots.iter_mut().zip(x) {
                let x = four_bytes(x.add(4 * four));
                for (dot, bytes) in dots.iter_mut().zip(bytes) {
                    *dot = _mm256_dpbusd_avx_epi32(*dot, bytes, x);
                }
            }
        }
        dots
    }
}

/// AVX2, whose product of bytes adds two of them in 16 bits and saturates.
///
/// Where two products of a format cannot saturate, several such pairs are added in 16 bits. The sums
/// begin with what the offset adds, negated. They may wrap around in between, but the last one is the
/// sum of the products with the offset taken off, and that fits. The elements of other formats are
/// split: their absolute values are multiplied with the values of the activations, which get the signs
/// of the elements. Two such products fit an i16, because no absolute value is larger than 128.
pub struct InPairs;

impl InPairs {
    /// How many pairs of products have a sum that fits an i16. No value of the activations is -128.
    fn pairs(layout: &Layout) -> usize {
        let largest = layout.offset.max(layout.largest() - layout.offset);
        i16::MAX as usize / (2 * usize::from(largest) * i8::MAX as usize)
    }
}

impl Dot for InPairs {
    const TOKENS: usize = 6;

    #[inline(always)]
    fn splits(layout: &Layout) -> bool {
        2 * i32::from(layout.largest()) * i32::from(i8::MAX) > i32::from(i16::MAX)
    }

    #[inline(always)]
    unsafe fn dots<const TOKENS: usize>(
        elements: impl Elements<Halves<Self>>,
        layout: &Layout,
        part: usize,
        x: [*const i8; TOKENS],
        sums: [BlockSums<'_>; TOKENS],
    ) -> [[__m256i; 2]; TOKENS] {
        let mut dots = [[_mm256_setzero_si256(); 2]; TOKENS];
        let ones = _mm256_set1_epi16(1);
        if Self::splits(layout) {
            for (dots, x) in dots.iter_mut().zip(x) {
                *dots = split_products(elements, 0, x);
            }
            for four in 1..elements.count() / 2 {
                for (dots, x) in dots.iter_mut().zip(x) {
                    let products = split_products(elements, four, x);
                    for (dot, product) in dots.iter_mut().zip(products) {
                        *dot = _mm256_add_epi32(*dot, product);
                    }
                }
            }
            return dots;
        }
        // The number of times that sums are begun is constant, the number of elements need not be.
        let times = (layout.part / 4).div_ceil(Self::pairs(layout));
        // Only the sums of a whole part are known.
        debug_assert!(layout.offset == 0 || times == 1);
        let each = elements.count() / times;
        for time in 0..times {
            let mut added = [[_mm256_setzero_si256(); 2]; TOKENS];
            if layout.offset != 0 {
                let offset = _mm256_set1_epi16(-i16::from(layout.offset));
                for (added, sums) in added.iter_mut().zip(sums) {
                    let [low, high] = sums.pairs;
                    let sums = match layout.part {
                        BLOCK => _mm256_add_epi16(
                            four_bytes(low.as_ptr().cast()),
                            four_bytes(high.as_ptr().cast()),
                        ),
                        _ => four_bytes(sums.pairs[part].as_ptr().cast()),
                    };
                    *added = [_mm256_mullo_epi16(sums, offset); 2];
                }
            }
            for four in time * each..(time + 1) * each {
                let bytes = elements.get(four);
                for (added, x) in added.iter_mut().zip(x) {
                    let x = four_bytes(x.add(4 * four));
                    for (added, bytes) in added.iter_mut().zip(bytes) {
                        *added = _mm256_add_epi16(*added, _mm256_maddubs_epi16(bytes, x));
                    }
                }
            }
            for (dots, added) in dots.iter_mut().zip(added) {
                for (dot, added) in dots.iter_mut().zip(added) {
                    *dot = _mm256_add_epi32(*dot, _mm256_madd_epi16(added, ones));
                }
            }
        }
        dots
    }
}

/// The sums of the products of four split elements of each row with the values of a token.
#[inline(always)]
unsafe fn split_products<D: Dot>(
    elements: impl Elements<Halves<D>>,
    four: usize,
    x: *const i8,
) -> [__m256i; 2] {
    let ones = _mm256_set1_epi16(1);
    let x = four_bytes(x.add(4 * four));
    let values = elements.get(2 * four);
    let mut products = [ones; 2];
    for (half, product) in products.iter_mut().enumerate() {
        let x = match elements.line(2 * four + 1) {
            Some(line) => with_signs(x, line.add(32 * half)),
            None => _mm256_sign_epi8(x, elements.get(2 * four + 1)[half]),
        };
        *product = _mm256_madd_epi16(_mm256_maddubs_epi16(values[half], x), ones);
    }
    products
}

/// The bytes of `x` with the signs of those at `signs`, or zero where these are zero. The compiler would
/// load the signs once for all tokens, to registers that their sums need.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn with_signs(x: __m256i, signs: *const u8) -> __m256i {
    let signed;
    asm!(
        "vpsignb {0}, {1}, ymmword ptr [{2}]",
        lateout(ymm_reg) signed, in(ymm_reg) x, in(reg) signs,
        options(pure, readonly, nostack, preserves_flags)
    );
    signed
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
    unsafe fn store_bytes(bytes: [__m256i; 2], line: *mut u8) {
        _mm256_storeu_si256(line.cast(), bytes[0]);
        _mm256_storeu_si256(line.add(32).cast(), bytes[1]);
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
    fn splits(layout: &Layout) -> bool {
        D::splits(layout)
    }
    #[inline(always)]
    unsafe fn split(bytes: [__m256i; 2], offset: u8) -> [[__m256i; 2]; 2] {
        let offset = _mm256_set1_epi8(offset as i8);
        let (a, b) = (
            _mm256_sub_epi8(bytes[0], offset),
            _mm256_sub_epi8(bytes[1], offset),
        );
        [[_mm256_abs_epi8(a), _mm256_abs_epi8(b)], [a, b]]
    }
    #[inline(always)]
    unsafe fn dots<const TOKENS: usize, const GROUPS: usize>(
        elements: [impl Elements<Self>; GROUPS],
        layout: &Layout,
        part: usize,
        x: [*const i8; TOKENS],
        sums: [BlockSums<'_>; TOKENS],
    ) -> [[[__m256i; 2]; TOKENS]; GROUPS] {
        assert_eq!(GROUPS, 1, "groups");
        [D::dots(elements[0], layout, part, x, sums); GROUPS]
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
    unsafe fn add_products(
        total: [__m256; 2],
        sums: [__m256i; 2],
        scales: [__m256; 2],
    ) -> [__m256; 2] {
        [
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[0]), scales[0], total[0]),
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[1]), scales[1], total[1]),
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
    unsafe fn floats(from: *const f32) -> [__m256; 2] {
        [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))]
    }
    #[inline(always)]
    unsafe fn store_floats(floats: [__m256; 2], to: *mut f32) {
        _mm256_storeu_ps(to, floats[0]);
        _mm256_storeu_ps(to.add(8), floats[1]);
    }
}
