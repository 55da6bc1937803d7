//! 16 lanes, one for each row of a group, on the instructions that multiply bytes.

#[cfg(target_arch = "x86_64")]
use crate::cpu::amx;
use crate::cpu::limit::{Limit, allows};

/// What a CPU does with 16 rows at once.
///
/// # Safety
/// Every method needs the CPU features of the implementing type, and pointers that are valid for
/// what they say.
pub trait Lanes {
    /// Four unsigned bytes of each row.
    type Bytes: Copy;
    /// An i32 for each row.
    type Sums: Copy;
    /// An f32 for each row.
    type Floats: Copy;
    /// Tokens whose sums fit into the registers.
    const TOKENS: usize;

    /// Asks for the cache line of `at`, which need not be valid, without waiting for it.
    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }
    /// From 64 bytes.
    unsafe fn bytes(line: *const u8) -> Self::Bytes;
    /// The low halves of the bytes.
    unsafe fn low(bytes: Self::Bytes) -> Self::Bytes;
    /// The high halves of the bytes.
    unsafe fn high(bytes: Self::Bytes) -> Self::Bytes;
    unsafe fn splat(value: i32) -> Self::Sums;
    /// `sums` plus the products of each row's bytes with the four at `x`.
    unsafe fn add_dot(sums: Self::Sums, bytes: Self::Bytes, x: *const i8) -> Self::Sums;
    unsafe fn zero() -> Self::Floats;
    /// From 16 f16.
    unsafe fn scales(from: *const u8) -> Self::Floats;
    /// `total + sums * (scales * x_scale)`, rounded after the product in brackets and at the end.
    unsafe fn add_scaled(
        total: Self::Floats,
        sums: Self::Sums,
        scales: Self::Floats,
        x_scale: f32,
    ) -> Self::Floats;
    unsafe fn to_array(floats: Self::Floats) -> [f32; 16];
}

/// The instructions that products with blocks are compiled for, fastest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteLevel {
    /// Matrix tiles for many tokens, and [`ByteLevel::Avx512Vnni`] for few.
    #[cfg(target_arch = "x86_64")]
    Amx,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

/// What runs on the chosen instructions.
pub trait LanesTask {
    /// # Safety
    /// The CPU must have `L`'s features.
    unsafe fn run<L: Lanes>(self);
}

impl ByteLevel {
    /// All that this CPU has, fastest first.
    pub fn list() -> impl Iterator<Item = ByteLevel> {
        [
            #[cfg(target_arch = "x86_64")]
            ByteLevel::Amx,
            #[cfg(target_arch = "x86_64")]
            ByteLevel::Avx512Vnni,
            #[cfg(target_arch = "x86_64")]
            ByteLevel::AvxVnni,
            #[cfg(target_arch = "x86_64")]
            ByteLevel::Avx2,
            ByteLevel::Portable,
        ]
        .into_iter()
        .filter(|level| level.available())
    }

    /// The fastest that this CPU has.
    pub fn best() -> ByteLevel {
        Self::list().next().unwrap_or(ByteLevel::Portable)
    }

    fn available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            ByteLevel::Amx => amx::available() && ByteLevel::Avx512Vnni.available(),
            #[cfg(target_arch = "x86_64")]
            ByteLevel::Avx512Vnni => {
                allows(Limit::Avx512Vnni)
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            ByteLevel::AvxVnni => {
                allows(Limit::AvxVnni)
                    && is_x86_feature_detected!("avxvnni")
                    && is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            ByteLevel::Avx2 => {
                allows(Limit::Avx2)
                    && is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            ByteLevel::Portable => true,
        }
    }

    /// Runs `task` on these instructions.
    ///
    /// # Safety
    /// The CPU must have them: the level must come from [`ByteLevel::list`] or
    /// [`ByteLevel::best`].
    pub unsafe fn run(self, task: impl LanesTask) {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
        unsafe fn avx512_vnni(task: impl LanesTask) {
            unsafe { task.run::<x86::Avx512Vnni>() }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avxvnni,avx2,fma,f16c")]
        unsafe fn avx_vnni(task: impl LanesTask) {
            unsafe { task.run::<x86::Halves<x86::Vnni>>() }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn avx2(task: impl LanesTask) {
            unsafe { task.run::<x86::Halves<x86::Widened>>() }
        }
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                ByteLevel::Amx | ByteLevel::Avx512Vnni => avx512_vnni(task),
                #[cfg(target_arch = "x86_64")]
                ByteLevel::AvxVnni => avx_vnni(task),
                #[cfg(target_arch = "x86_64")]
                ByteLevel::Avx2 => avx2(task),
                ByteLevel::Portable => task.run::<Portable>(),
            }
        }
    }
}

/// Plain arrays.
struct Portable;

impl Lanes for Portable {
    type Bytes = [u8; 64];
    type Sums = [i32; 16];
    type Floats = [f32; 16];
    const TOKENS: usize = 2;

    #[inline(always)]
    unsafe fn bytes(line: *const u8) -> [u8; 64] {
        unsafe { line.cast::<[u8; 64]>().read() }
    }
    #[inline(always)]
    unsafe fn low(bytes: [u8; 64]) -> [u8; 64] {
        bytes.map(|byte| byte & 0xf)
    }
    #[inline(always)]
    unsafe fn high(bytes: [u8; 64]) -> [u8; 64] {
        bytes.map(|byte| byte >> 4)
    }
    #[inline(always)]
    unsafe fn splat(value: i32) -> [i32; 16] {
        [value; 16]
    }
    #[inline(always)]
    unsafe fn add_dot(sums: [i32; 16], bytes: [u8; 64], x: *const i8) -> [i32; 16] {
        let x = unsafe { x.cast::<[i8; 4]>().read() };
        std::array::from_fn(|row| {
            (0..4).fold(sums[row], |sum, i| {
                sum + i32::from(bytes[4 * row + i]) * i32::from(x[i])
            })
        })
    }
    #[inline(always)]
    unsafe fn zero() -> [f32; 16] {
        [0.0; 16]
    }
    #[inline(always)]
    unsafe fn scales(from: *const u8) -> [f32; 16] {
        let halves = unsafe { from.cast::<[[u8; 2]; 16]>().read() };
        halves.map(|half| half::f16::from_le_bytes(half).to_f32())
    }
    #[inline(always)]
    unsafe fn add_scaled(
        total: [f32; 16],
        sums: [i32; 16],
        scales: [f32; 16],
        x_scale: f32,
    ) -> [f32; 16] {
        std::array::from_fn(|row| (sums[row] as f32).mul_add(scales[row] * x_scale, total[row]))
    }
    #[inline(always)]
    unsafe fn to_array(floats: [f32; 16]) -> [f32; 16] {
        floats
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
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
            unsafe { _mm512_loadu_si512(line.cast()) }
        }
        #[inline(always)]
        unsafe fn low(bytes: __m512i) -> __m512i {
            unsafe { _mm512_and_si512(bytes, _mm512_set1_epi8(0xf)) }
        }
        #[inline(always)]
        unsafe fn high(bytes: __m512i) -> __m512i {
            unsafe { _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), _mm512_set1_epi8(0xf)) }
        }
        #[inline(always)]
        unsafe fn splat(value: i32) -> __m512i {
            unsafe { _mm512_set1_epi32(value) }
        }
        #[inline(always)]
        unsafe fn add_dot(sums: __m512i, bytes: __m512i, x: *const i8) -> __m512i {
            unsafe {
                let x = _mm512_set1_epi32(x.cast::<i32>().read_unaligned());
                _mm512_dpbusd_epi32(sums, bytes, x)
            }
        }
        #[inline(always)]
        unsafe fn zero() -> __m512 {
            unsafe { _mm512_setzero_ps() }
        }
        #[inline(always)]
        unsafe fn scales(from: *const u8) -> __m512 {
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
        }
        #[inline(always)]
        unsafe fn add_scaled(total: __m512, sums: __m512i, scales: __m512, x_scale: f32) -> __m512 {
            unsafe {
                let scales = _mm512_mul_ps(scales, _mm512_set1_ps(x_scale));
                _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), scales, total)
            }
        }
        #[inline(always)]
        unsafe fn to_array(floats: __m512) -> [f32; 16] {
            let mut array = [0.0; 16];
            unsafe { _mm512_storeu_ps(array.as_mut_ptr(), floats) };
            array
        }
    }

    /// The products of bytes in a 256-bit register.
    pub trait Dot {
        /// # Safety
        /// The CPU must have its features.
        unsafe fn add(sums: __m256i, bytes: __m256i, x: __m256i) -> __m256i;
    }

    pub struct Vnni;

    impl Dot for Vnni {
        #[inline(always)]
        unsafe fn add(sums: __m256i, bytes: __m256i, x: __m256i) -> __m256i {
            unsafe { _mm256_dpbusd_avx_epi32(sums, bytes, x) }
        }
    }

    /// By way of 16 bits: AVX2's own product of bytes saturates.
    pub struct Widened;

    impl Dot for Widened {
        #[inline(always)]
        unsafe fn add(sums: __m256i, bytes: __m256i, x: __m256i) -> __m256i {
            unsafe {
                let even = _mm256_madd_epi16(
                    _mm256_and_si256(bytes, _mm256_set1_epi16(0xff)),
                    _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x)),
                );
                let odd =
                    _mm256_madd_epi16(_mm256_srli_epi16::<8>(bytes), _mm256_srai_epi16::<8>(x));
                _mm256_add_epi32(sums, _mm256_add_epi32(even, odd))
            }
        }
    }

    /// Two registers of 256 bits.
    pub struct Halves<D>(PhantomData<D>);

    impl<D: Dot> Lanes for Halves<D> {
        type Bytes = [__m256i; 2];
        type Sums = [__m256i; 2];
        type Floats = [__m256; 2];
        const TOKENS: usize = 2;

        #[inline(always)]
        unsafe fn bytes(line: *const u8) -> [__m256i; 2] {
            [0, 32].map(|at| unsafe { _mm256_loadu_si256(line.add(at).cast()) })
        }
        #[inline(always)]
        unsafe fn low(bytes: [__m256i; 2]) -> [__m256i; 2] {
            bytes.map(|bytes| unsafe { _mm256_and_si256(bytes, _mm256_set1_epi8(0xf)) })
        }
        #[inline(always)]
        unsafe fn high(bytes: [__m256i; 2]) -> [__m256i; 2] {
            bytes.map(|bytes| unsafe {
                _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), _mm256_set1_epi8(0xf))
            })
        }
        #[inline(always)]
        unsafe fn splat(value: i32) -> [__m256i; 2] {
            [unsafe { _mm256_set1_epi32(value) }; 2]
        }
        #[inline(always)]
        unsafe fn add_dot(sums: [__m256i; 2], bytes: [__m256i; 2], x: *const i8) -> [__m256i; 2] {
            unsafe {
                let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
                [D::add(sums[0], bytes[0], x), D::add(sums[1], bytes[1], x)]
            }
        }
        #[inline(always)]
        unsafe fn zero() -> [__m256; 2] {
            [unsafe { _mm256_setzero_ps() }; 2]
        }
        #[inline(always)]
        unsafe fn scales(from: *const u8) -> [__m256; 2] {
            [0, 16].map(|at| unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.add(at).cast())) })
        }
        #[inline(always)]
        unsafe fn add_scaled(
            total: [__m256; 2],
            sums: [__m256i; 2],
            scales: [__m256; 2],
            x_scale: f32,
        ) -> [__m256; 2] {
            let add = |total, sums, scales| unsafe {
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
            unsafe {
                _mm256_storeu_ps(array.as_mut_ptr(), floats[0]);
                _mm256_storeu_ps(array.as_mut_ptr().add(8), floats[1]);
            }
            array
        }
    }
}
