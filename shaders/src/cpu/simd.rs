//! Vectors of f32 behind one small trait. The instruction set is chosen at run time: AVX-512, AVX2,
//! or plain arrays, which the compiler turns into whatever the target has (NEON, SSE2).

#[cfg(target_arch = "x86_64")]
mod x86;

use half::{bf16, f16};

use super::limit::{Limit, allows};

/// An element in the type it is stored in.
pub trait Stored: Copy + Send + Sync + 'static {
    fn widen(self) -> f32;
    fn narrow(value: f32) -> Self;
    /// Loads `S::LANES` elements.
    ///
    /// # Safety
    /// `from` must be readable for `S::LANES` elements, and the CPU must have `S`'s features.
    unsafe fn load<S: Simd>(from: *const Self) -> S;
    /// True if [`load_half`](Self::load_half) takes every other element, with the vectors of
    /// `level`.
    fn alternates(level: Level) -> bool {
        let _ = level;
        false
    }
    /// Loads one `half`, 0 or 1, of `2 * S::LANES` elements: the first or the last ones, or, where
    /// they [alternate](Self::alternates), those with even or with odd numbers.
    ///
    /// # Safety
    /// As for [`load`](Self::load), for twice as many elements. `half` must be 0 or 1.
    #[inline(always)]
    unsafe fn load_half<S: Simd>(from: *const Self, half: usize) -> S {
        // SAFETY: the caller guarantees the elements and the features.
        unsafe { Self::load(from.add(half * S::LANES)) }
    }
    /// The elements that one lane of [`load_packed`](Self::load_packed) has.
    const PACKED: usize = 1;
    /// Loads `S::LANES * PACKED` elements, for [`unpack`](Self::unpack): lanes can be exchanged
    /// before elements are widened.
    ///
    /// # Safety
    /// As for [`load`](Self::load), for that many elements.
    #[inline(always)]
    unsafe fn load_packed<S: Simd>(from: *const Self) -> S {
        // SAFETY: the caller's guarantees are the same.
        unsafe { Self::load(from) }
    }
    /// The element of each lane that has the number `at`, which must be less than `PACKED`.
    ///
    /// # Safety
    /// The CPU must have `S`'s features.
    #[inline(always)]
    unsafe fn unpack<S: Simd>(packed: S, at: usize) -> S {
        let _ = at;
        packed
    }
}

impl Stored for f32 {
    fn widen(self) -> f32 {
        self
    }
    fn narrow(value: f32) -> Self {
        value
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S {
        // SAFETY: the caller guarantees that `S::LANES` elements are readable and that the CPU has
        // the features.
        unsafe { S::load_f32(from) }
    }
}

impl Stored for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    /// `bf16::from_f32` without a branch, so that loops over it are vectorised.
    #[inline(always)]
    fn narrow(value: f32) -> Self {
        let bits = value.to_bits();
        let even = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        let quiet = bits | 1 << 22;
        bf16::from_bits((if value.is_nan() { quiet } else { even } >> 16) as u16)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S {
        // SAFETY: the caller guarantees that `S::LANES` elements are readable and that the CPU has
        // the features.
        unsafe { S::load_bf16(from) }
    }
    fn alternates(level: Level) -> bool {
        level.bf16_alternates()
    }
    #[inline(always)]
    unsafe fn load_half<S: Simd>(from: *const Self, half: usize) -> S {
        // SAFETY: the caller guarantees the elements and the features.
        unsafe { S::load_bf16_half(from, half) }
    }
    const PACKED: usize = 2;
    #[inline(always)]
    unsafe fn load_packed<S: Simd>(from: *const Self) -> S {
        // SAFETY: the caller guarantees that the bytes of `LANES` words are readable.
        unsafe { S::load_f32(from.cast()) }
    }
    #[inline(always)]
    unsafe fn unpack<S: Simd>(packed: S, at: usize) -> S {
        // SAFETY: the caller guarantees the features.
        unsafe { packed.bf16_half(at) }
    }
}

impl Stored for f16 {
    fn widen(self) -> f32 {
        self.to_f32()
    }
    fn narrow(value: f32) -> Self {
        f16::from_f32(value)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S {
        // SAFETY: the caller guarantees that `S::LANES` elements are readable and that the CPU has
        // the features.
        unsafe { S::load_f16(from) }
    }
}

/// A vector of f32.
///
/// Code that uses it has loops instead of closures: a closure that the compiler does not inline is
/// compiled without the CPU features of the function around it, and every method becomes a call.
///
/// # Safety
/// Every unsafe method needs the CPU features of the implementing type, and pointers that
/// are valid for `LANES` elements, or for twice as many where a method says so.
pub trait Simd: Copy {
    const LANES: usize;
    unsafe fn zero() -> Self;
    unsafe fn splat(value: f32) -> Self;
    unsafe fn load_f32(from: *const f32) -> Self;
    unsafe fn load_bf16(from: *const bf16) -> Self;
    /// Loads one `half` of `2 * LANES` elements, in the order of [`Level::bf16_alternates`].
    ///
    /// # Safety
    /// `from` must be valid for `2 * LANES` elements, whichever half is loaded, and `half` must be
    /// 0 or 1.
    #[inline(always)]
    unsafe fn load_bf16_half(from: *const bf16, half: usize) -> Self {
        // SAFETY: the caller guarantees the elements and the features.
        unsafe { Self::load_bf16(from.add(half * Self::LANES)) }
    }
    /// The bf16 that are the low (`half` is 0) or the high halves (1) of the lanes' bits.
    unsafe fn bf16_half(self, half: usize) -> Self;
    unsafe fn load_f16(from: *const f16) -> Self;
    unsafe fn load_i8(from: *const i8) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// Prefetches the cache line of `at`, which need not be a valid address.
    #[inline(always)]
    unsafe fn prefetch<E>(at: *const E) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 CPU has SSE, and a prefetch never faults, whatever the address.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }
    /// Prefetches the cache line of `at`, which need not be a valid address, into the second-level
    /// cache. More lines can be on their way there than to the first level, which matters where
    /// memory is the limit.
    #[inline(always)]
    unsafe fn prefetch_far<E>(at: *const E) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 CPU has SSE, and a prefetch never faults, whatever the address.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(at.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }
    /// `self + a * b`
    unsafe fn add_mul(self, a: Self, b: Self) -> Self;
    /// `a * b + c` of numbers, for loops that the compiler vectorises. AVX-512 and AVX2 round once.
    fn fused(a: f32, b: f32, c: f32) -> f32;
    unsafe fn mul(self, other: Self) -> Self;
    /// The sum of the lanes.
    unsafe fn sum(self) -> f32;
    /// The sum of the lanes of each vector.
    #[inline(always)]
    unsafe fn sums(vectors: [Self; 4]) -> [f32; 4] {
        let mut sums = [0.0; 4];
        for (sum, vector) in sums.iter_mut().zip(vectors) {
            // SAFETY: the caller guarantees that the CPU has the features.
            *sum = unsafe { vector.sum() };
        }
        sums
    }
    /// Transposes the square that the first `LANES` vectors are: lane `i` of vector `j` becomes
    /// lane `j` of vector `i`. The others are left as they are.
    unsafe fn transpose(vectors: &mut [Self; 16]);
}

/// Code that is compiled for several instruction sets.
pub trait Task {
    /// # Safety
    /// The CPU must have `S`'s features.
    unsafe fn run<S: Simd>(self);
}

/// An instruction set that the kernels for floats are compiled for. The widest comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

impl Level {
    /// True if this CPU has the instructions and the limit allows them.
    fn available(self) -> bool {
        // `is_x86_feature_detected` reads a cached word.
        match self {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                allows(Limit::Avx512)
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => {
                allows(Limit::Avx2)
                    && is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            Level::Portable => true,
        }
    }

    /// The instruction sets that can be used on this CPU, widest first.
    pub fn list() -> impl Iterator<Item = Level> {
        [
            #[cfg(target_arch = "x86_64")]
            Level::Avx512,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2,
            Level::Portable,
        ]
        .into_iter()
        .filter(|level| level.available())
    }

    /// The widest instruction set that can be used on this CPU.
    pub fn best() -> Level {
        Self::list().next().unwrap_or(Level::Portable)
    }

    /// The lanes of its vectors.
    pub fn lanes(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => x86::Avx512::LANES,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => x86::Avx2::LANES,
            Level::Portable => <[f32; 8]>::LANES,
        }
    }

    /// True if two vectors of bf16 are loaded as the even and the odd elements of a pair. These are
    /// the low and the high halves of 32-bit words, so that each vector is widened by one
    /// instruction instead of two. This pays with AVX-512. With AVX2 it does not on Ice Lake, where
    /// the first of the two instructions runs on a unit that multiplications do not use.
    pub fn bf16_alternates(self) -> bool {
        self.lanes() == 16
    }

    /// Runs `task` with the vectors of this instruction set.
    ///
    /// # Safety
    /// The CPU must have it: the level must come from [`Level::list`] or [`Level::best`].
    pub unsafe fn run(self, task: impl Task) {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
        unsafe fn avx512(task: impl Task) {
            // SAFETY: the enabled features include those of `Avx512`.
            unsafe { task.run::<x86::Avx512>() }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn avx2(task: impl Task) {
            // SAFETY: the enabled features are those of `Avx2`.
            unsafe { task.run::<x86::Avx2>() }
        }
        // SAFETY: the caller guarantees that the CPU has the features of this level.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => avx512(task),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => avx2(task),
                Level::Portable => task.run::<[f32; 8]>(),
            }
        }
    }
}

/// Runs `task` with the widest vectors that can be used on this CPU.
pub fn dispatch(task: impl Task) {
    // SAFETY: `Level::best` returns a level that this CPU has.
    unsafe { Level::best().run(task) }
}

/// e^x to about 2 ulp for finite `x`. It has no branches, so that loops over it are vectorised (the
/// polynomial of the Cephes library after reduction by ln 2). It saturates instead of overflowing.
#[inline(always)]
pub fn exp<S: Simd>(x: f32) -> f32 {
    let x = x.clamp(-87.3, 88.3);
    // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let rounded = S::fused(x, std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = S::fused(n, 2.121_944_4e-4, S::fused(n, -0.693_359_4, x));
    let mut p = 1.987_569_1e-4;
    p = S::fused(p, r, 1.398_199_9e-3);
    p = S::fused(p, r, 8.333_452e-3);
    p = S::fused(p, r, 4.166_579_6e-2);
    p = S::fused(p, r, 1.666_666_5e-1);
    p = S::fused(p, r, 5e-1);
    let p = S::fused(p * r, r, r) + 1.0;
    p * f32::from_bits(rounded.to_bits().wrapping_add(127) << 23)
}

/// The hyperbolic tangent, with an absolute error of about 1e-7; as free of branches as [`exp`].
#[inline(always)]
pub fn tanh<S: Simd>(x: f32) -> f32 {
    // `exp` saturates, and so does this.
    1.0 - 2.0 / (exp::<S>(2.0 * x) + 1.0)
}

impl Simd for [f32; 8] {
    const LANES: usize = 8;
    #[inline(always)]
    unsafe fn zero() -> Self {
        [0.0; 8]
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        [value; 8]
    }
    #[inline(always)]
    unsafe fn load_f32(from: *const f32) -> Self {
        // SAFETY: the caller guarantees that 8 elements are readable; arrays have no further
        // requirements.
        unsafe { from.cast::<Self>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: the caller guarantees that 8 elements are readable.
        std::array::from_fn(|i| unsafe { *from.add(i) }.widen())
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        // SAFETY: the caller guarantees that 8 elements are readable.
        std::array::from_fn(|i| unsafe { *from.add(i) }.to_f32())
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: the caller guarantees that 8 elements are readable.
        std::array::from_fn(|i| f32::from(unsafe { *from.add(i) }))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller guarantees that 8 elements are writable.
        unsafe { to.cast::<Self>().write_unaligned(self) }
    }
    #[inline(always)]
    unsafe fn add_mul(self, a: Self, b: Self) -> Self {
        // `mul_add` would be a function call per element on CPUs without the instruction.
        std::array::from_fn(|i| self[i] + a[i] * b[i])
    }
    #[inline(always)]
    fn fused(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] * other[i])
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        self.iter().sum()
    }
    #[inline(always)]
    unsafe fn bf16_half(self, half: usize) -> Self {
        self.map(|lane| match half {
            0 => f32::from_bits(lane.to_bits() << 16),
            _ => f32::from_bits(lane.to_bits() & !0xffff),
        })
    }
    #[inline(always)]
    unsafe fn transpose(vectors: &mut [Self; 16]) {
        let rows = *vectors;
        for (i, vector) in vectors[..8].iter_mut().enumerate() {
            *vector = std::array::from_fn(|j| rows[j][i]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_several_vectors_equal_the_sum_of_each() {
        struct Sums<'a>(&'a [f32; 64], [&'a mut [f32; 4]; 2]);
        impl Task for Sums<'_> {
            unsafe fn run<S: Simd>(self) {
                let at = |i: usize| self.0[i * S::LANES..].as_ptr();
                let [four, ones] = self.1;
                // SAFETY: the features are there, and the slice behind each index has at least
                // `LANES` elements.
                unsafe {
                    let vectors: [S; 4] = std::array::from_fn(|i| S::load_f32(at(i)));
                    *four = S::sums(vectors);
                    *ones = vectors.map(|vector| vector.sum());
                }
            }
        }
        let values = std::array::from_fn(|i| (i as f32 * 0.7).sin() * 1e3);
        for level in Level::list() {
            let [mut four, mut ones] = [[f32::NAN; 4]; 2];
            // SAFETY: the list contains levels that this CPU has.
            unsafe { level.run(Sums(&values, [&mut four, &mut ones])) };
            assert_eq!(four, ones, "{level:?}");
        }
    }

    #[test]
    fn a_transposed_square_has_columns_for_rows() {
        struct Square<'a>(&'a mut [f32; 256]);
        impl Task for Square<'_> {
            unsafe fn run<S: Simd>(self) {
                // SAFETY: the features are there, and 16 vectors have at most 256 lanes.
                unsafe {
                    let mut vectors = [S::zero(); 16];
                    for (i, vector) in vectors.iter_mut().enumerate() {
                        *vector = S::load_f32(self.0.as_ptr().add(i * S::LANES));
                    }
                    S::transpose(&mut vectors);
                    for (i, vector) in vectors.iter().enumerate() {
                        vector.store(self.0.as_mut_ptr().add(i * S::LANES));
                    }
                }
            }
        }
        let values: [f32; 256] = std::array::from_fn(|i| i as f32);
        for level in Level::list() {
            let (mut square, lanes) = (values, level.lanes());
            // SAFETY: the list contains levels that this CPU has.
            unsafe { level.run(Square(&mut square)) };
            for i in 0..lanes {
                for j in 0..lanes {
                    let (got, want) = (square[i * lanes + j], values[j * lanes + i]);
                    assert_eq!(got, want, "{level:?}, row {i}, column {j}");
                }
            }
            assert_eq!(square[lanes * lanes..], values[lanes * lanes..]);
        }
    }

    #[test]
    fn halves_of_a_word_are_two_bf16() {
        struct Halves<'a>(&'a [bf16; 32], [&'a mut [f32; 16]; 2]);
        impl Task for Halves<'_> {
            unsafe fn run<S: Simd>(self) {
                for (half, to) in self.1.into_iter().enumerate() {
                    // SAFETY: the features are there, and no vector has more than 16 words.
                    unsafe {
                        let words = S::load_f32(self.0.as_ptr().cast());
                        words.bf16_half(half).store(to.as_mut_ptr());
                    }
                }
            }
        }
        let values = std::array::from_fn(|i| bf16::from_f32(-1.7 * i as f32));
        for level in Level::list() {
            let [mut low, mut high] = [[f32::NAN; 16]; 2];
            // SAFETY: the list contains levels that this CPU has.
            unsafe { level.run(Halves(&values, [&mut low, &mut high])) };
            for (i, two) in values.as_chunks::<2>().0[..level.lanes()]
                .iter()
                .enumerate()
            {
                assert_eq!([low[i], high[i]], two.map(f32::from), "{level:?}");
            }
        }
    }

    #[test]
    fn exp_and_tanh_agree_with_the_standard_library() {
        struct Both<'a>(&'a [f32], &'a mut [[f32; 2]]);
        impl Task for Both<'_> {
            #[inline(always)]
            unsafe fn run<S: Simd>(self) {
                for (x, to) in self.0.iter().zip(self.1) {
                    *to = [exp::<S>(*x), tanh::<S>(*x)];
                }
            }
        }
        let ends = [-1e30, 1e30];
        let x: Vec<f32> = (-8700..8800)
            .map(|step| step as f32 * 0.01)
            .chain(ends)
            .collect();
        for level in Level::list() {
            let mut both = vec![[f32::NAN; 2]; x.len()];
            // SAFETY: the list contains levels that this CPU has.
            unsafe { level.run(Both(&x, &mut both)) };
            let (both, at_ends) = both.split_last_chunk::<2>().expect("there are two ends");
            for (x, [e, t]) in x.iter().zip(both) {
                let (exp, tanh) = (x.exp(), x.tanh());
                assert!(
                    (e - exp).abs() <= 4e-7 * exp,
                    "{level:?}: exp({x}) is {e}, not {exp}"
                );
                assert!(
                    (t - tanh).abs() <= 3e-7,
                    "{level:?}: tanh({x}) is {t}, not {tanh}"
                );
            }
            let [[least, minus_one], [most, one]] = *at_ends;
            assert!(least < 1e-37 && most > 1e38);
            assert_eq!([minus_one, one], [-1.0, 1.0]);
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_dot_product() {
        struct Dot<'a>(&'a [f32], &'a [bf16], &'a mut f32);
        impl Task for Dot<'_> {
            unsafe fn run<S: Simd>(self) {
                let whole = self.0.len() / S::LANES * S::LANES;
                // SAFETY: the features are there, and `i + LANES` is at most the length of both
                // slices.
                unsafe {
                    let mut sum = S::zero();
                    for i in (0..whole).step_by(S::LANES) {
                        let b = bf16::load::<S>(self.1.as_ptr().add(i));
                        sum = sum.add_mul(S::load_f32(self.0.as_ptr().add(i)), b);
                    }
                    *self.2 = sum.sum();
                }
            }
        }
        let a: Vec<f32> = (0..80).map(|i| (i as f32 * 0.37).sin()).collect();
        let b: Vec<bf16> = (0..80)
            .map(|i| bf16::from_f32((i as f32 * 0.11).cos()))
            .collect();
        let exact: f64 = a
            .iter()
            .zip(&b)
            .map(|(a, b)| f64::from(*a) * f64::from(b.to_f32()))
            .sum();
        for level in Level::list() {
            let mut sum = f32::NAN;
            // SAFETY: the list contains levels that this CPU has.
            unsafe { level.run(Dot(&a, &b, &mut sum)) };
            assert!(
                (f64::from(sum) - exact).abs() < 1e-5,
                "{level:?}: {sum} is not {exact}"
            );
        }
    }
}
