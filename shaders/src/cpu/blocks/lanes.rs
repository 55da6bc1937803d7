//! 16 lanes, one for each row of a group, with the instructions that multiply bytes.

#[cfg(target_arch = "x86_64")]
pub mod x86;

#[cfg(target_arch = "x86_64")]
use crate::cpu::amx;
use crate::cpu::limit::{Limit, allows};

use super::LINE;
use super::activations::BlockSums;
use super::format::Layout;

/// Operations on 16 rows at once, for one instruction set.
///
/// # Safety
/// Every method needs the CPU features of the implementing type, and pointers that are valid for
/// the bytes that the method reads. No byte of the activations is -128.
pub trait Lanes {
    /// Four unsigned bytes of each row.
    type Bytes: Copy;
    /// An i32 for each row.
    type Sums: Copy;
    /// An f32 for each row.
    type Floats: Copy;
    /// The most tokens of a tile, where there are several: the sums of so many and of [`Lanes::GROUPS`] groups
    /// fit the registers.
    const TOKENS: usize;
    /// Groups of 16 rows that are multiplied together where there is more than one tile. Each value of the
    /// activations is then loaded once for so many products.
    const GROUPS: usize = 1;
    /// The most tokens that are one tile, which is multiplied straight from the packed weights of one group.
    const FEW_TOKENS: usize = Self::TOKENS;

    /// The length of a loop over so many elements in memory. If the compiler knew it, it would unroll the
    /// loop, and then multiply one token after another, with a load of the elements for each.
    #[inline(always)]
    fn length(elements: usize) -> usize {
        std::hint::black_box(elements)
    }
    /// Prefetches the cache line of `at`, which need not be a valid address.
    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 CPU has SSE, and a prefetch never faults, whatever the address.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }
    /// Loads 64 bytes, which need not be aligned: four bytes of each row.
    unsafe fn bytes(line: *const u8) -> Self::Bytes;
    /// Stores 64 bytes.
    unsafe fn store_bytes(bytes: Self::Bytes, line: *mut u8);
    /// Each byte shifted to the right by `right` bits, or to the left if that is negative, and then
    /// masked. The mask must clear every bit that is not of the same byte.
    unsafe fn take(bytes: Self::Bytes, right: i32, mask: u8) -> Self::Bytes;
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// The entries of `table` at indices below 16.
    unsafe fn look_up(table: [u8; 16], indices: Self::Bytes) -> Self::Bytes;
    /// True if elements of such a format are split into absolute values and signs before they are
    /// multiplied ([`Lanes::split`]).
    fn splits(layout: &Layout) -> bool {
        let _ = layout;
        false
    }
    /// The absolute values of elements less `offset`, and signed bytes that have the signs of these.
    unsafe fn split(bytes: Self::Bytes, offset: u8) -> [Self::Bytes; 2] {
        let _ = (bytes, offset);
        unreachable!("no elements are split")
    }
    /// For each group and token the sums of the products of each row's elements, less the format's offset,
    /// with the values at its `x`. `elements` are those of the part `part` of a block of each group, split
    /// where the format's are. `sums` are those of each token's values in the block. There are at most
    /// [`Lanes::GROUPS`] groups.
    unsafe fn dots<const TOKENS: usize, const GROUPS: usize>(
        elements: [impl Elements<Self>; GROUPS],
        layout: &Layout,
        part: usize,
        x: [*const i8; TOKENS],
        sums: [BlockSums<'_>; TOKENS],
    ) -> [[Self::Sums; TOKENS]; GROUPS];
    unsafe fn zero() -> Self::Floats;
    /// Loads 16 f16.
    unsafe fn halves(from: *const u8) -> Self::Floats;
    /// Loads 16 bf16.
    unsafe fn brains(from: *const u8) -> Self::Floats;
    /// Loads 16 unsigned bytes, shifted to the right by `right` bits and then masked.
    unsafe fn unsigned(from: *const u8, right: u32, mask: u8) -> Self::Floats;
    /// Loads 16 signed bytes.
    unsafe fn signed(from: *const u8) -> Self::Floats;
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `total + sums * (scales * x_scale)`, rounded after the product in brackets and at the end.
    unsafe fn add_scaled(
        total: Self::Floats,
        sums: Self::Sums,
        scales: Self::Floats,
        x_scale: f32,
    ) -> Self::Floats;
    /// `total + sums * scales`, rounded once.
    unsafe fn add_products(
        total: Self::Floats,
        sums: Self::Sums,
        scales: Self::Floats,
    ) -> Self::Floats;
    /// `total + values * x`, rounded once.
    unsafe fn add_times(total: Self::Floats, values: Self::Floats, x: f32) -> Self::Floats;
    /// Loads 16 floats.
    unsafe fn floats(from: *const f32) -> Self::Floats;
    /// Stores 16 floats.
    unsafe fn store_floats(floats: Self::Floats, to: *mut f32);
}

/// Elements of a part of a block, in vectors that each have four of every row. Where they are split,
/// each vector of absolute values is followed by that of the signs.
pub trait Elements<L: Lanes + ?Sized>: Copy {
    fn count(self) -> usize;
    /// # Safety
    /// The CPU must have `L`'s features, and `index` must be less than the count.
    unsafe fn get(self, index: usize) -> L::Bytes;
    /// The line of the vector `index`, if it is in memory.
    fn line(self, index: usize) -> Option<*const u8>;
}

impl<L: Lanes> Elements<L> for &[L::Bytes] {
    #[inline(always)]
    fn count(self) -> usize {
        self.len()
    }
    #[inline(always)]
    unsafe fn get(self, index: usize) -> L::Bytes {
        // SAFETY: the caller guarantees the index.
        unsafe { *self.get_unchecked(index) }
    }
    #[inline(always)]
    fn line(self, _: usize) -> Option<*const u8> {
        None
    }
}

/// Elements in memory.
#[derive(Clone, Copy)]
pub struct Lines<'a>(pub &'a [[u8; LINE]]);

impl<L: Lanes> Elements<L> for Lines<'_> {
    #[inline(always)]
    fn count(self) -> usize {
        self.0.len()
    }
    #[inline(always)]
    unsafe fn get(self, index: usize) -> L::Bytes {
        // SAFETY: the caller guarantees the features of `L` and the index.
        unsafe { L::bytes(self.0.as_ptr().add(index).cast()) }
    }
    #[inline(always)]
    fn line(self, index: usize) -> Option<*const u8> {
        Some(self.0.as_ptr().wrapping_add(index).cast())
    }
}

/// The instruction sets that products with blocks are compiled for. The fastest comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteLevel {
    /// Matrix tiles (AMX) for many tokens, and [`ByteLevel::Avx512Vnni`] for few.
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

/// Code that is compiled for several instruction sets.
pub trait LanesTask {
    /// # Safety
    /// The CPU must have `L`'s features.
    unsafe fn run<L: Lanes>(self);
}

impl ByteLevel {
    /// The instruction sets that can be used on this CPU, fastest first.
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

    /// The fastest instruction set that can be used on this CPU.
    pub fn best() -> ByteLevel {
        Self::list().next().unwrap_or(ByteLevel::Portable)
    }

    /// True if this CPU has the instructions and the limit allows them.
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

    /// The tokens of a tile where there are `tokens` tokens: all of them, or about as many as in other tiles.
    pub fn side(self, tokens: usize) -> usize {
        fn of<L: Lanes>(tokens: usize) -> usize {
            match tokens <= L::FEW_TOKENS {
                true => tokens.max(1),
                false => tokens.div_ceil(tokens.div_ceil(L::TOKENS)),
            }
        }
        match self {
            #[cfg(target_arch = "x86_64")]
            ByteLevel::Amx | ByteLevel::Avx512Vnni => of::<x86::Avx512Vnni>(tokens),
            #[cfg(target_arch = "x86_64")]
            ByteLevel::AvxVnni => of::<x86::Halves<x86::Vnni>>(tokens),
            #[cfg(target_arch = "x86_64")]
            ByteLevel::Avx2 => of::<x86::Halves<x86::InPairs>>(tokens),
            ByteLevel::Portable => of::<Portable>(tokens),
        }
    }

    /// Runs `task` with these instructions.
    ///
    /// # Safety
    /// The CPU must have them: the level must come from [`ByteLevel::list`] or [`ByteLevel::best`].
    pub unsafe fn run(self, task: impl LanesTask) {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
        unsafe fn avx512_vnni(task: impl LanesTask) {
            // SAFETY: the enabled features include those of `Avx512Vnni`.
            unsafe { task.run::<x86::Avx512Vnni>() }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avxvnni,avx2,fma,f16c")]
        unsafe fn avx_vnni(task: impl LanesTask) {
            // SAFETY: the enabled features are those of `Halves<Vnni>`.
            unsafe { task.run::<x86::Halves<x86::Vnni>>() }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn avx2(task: impl LanesTask) {
            // SAFETY: the enabled features are those of `Halves<InPairs>`.
            unsafe { task.run::<x86::Halves<x86::InPairs>>() }
        }
        // SAFETY: the caller guarantees that the CPU has the features of this level.
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

/// Plain arrays, for any CPU.
struct Portable;

impl Lanes for Portable {
    type Bytes = [u8; 64];
    type Sums = [i32; 16];
    type Floats = [f32; 16];
    const TOKENS: usize = 2;

    #[inline(always)]
    unsafe fn bytes(line: *const u8) -> [u8; 64] {
        // SAFETY: the caller guarantees that 64 bytes are readable; arrays of bytes need no
        // alignment.
        unsafe { line.cast::<[u8; 64]>().read() }
    }
    #[inline(always)]
    unsafe fn store_bytes(bytes: [u8; 64], line: *mut u8) {
        // SAFETY: the caller guarantees that 64 bytes are writable; arrays of bytes need no alignment.
        unsafe { line.cast::<[u8; 64]>().write(bytes) }
    }
    #[inline(always)]
    unsafe fn take(bytes: [u8; 64], right: i32, mask: u8) -> [u8; 64] {
        match right {
            0.. => bytes.map(|byte| byte >> right & mask),
            _ => bytes.map(|byte| byte << -right & mask),
        }
    }
    #[inline(always)]
    unsafe fn or(a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        std::array::from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    unsafe fn look_up(table: [u8; 16], indices: [u8; 64]) -> [u8; 64] {
        indices.map(|index| table[usize::from(index & 0xf)])
    }
    #[inline(always)]
    unsafe fn dots<const TOKENS: usize, const GROUPS: usize>(
        elements: [impl Elements<Self>; GROUPS],
        layout: &Layout,
        part: usize,
        x: [*const i8; TOKENS],
        sums: [BlockSums<'_>; TOKENS],
    ) -> [[[i32; 16]; TOKENS]; GROUPS] {
        assert_eq!(GROUPS, 1, "groups");
        let elements = elements[0];
        let offset = i32::from(layout.offset);
        let mut dots = sums.map(|sums| [offset * sums.negated(layout.part, part); 16]);
        for four in 0..elements.count() {
            // SAFETY: there are so many.
            let bytes = unsafe { elements.get(four) };
            for (dots, x) in dots.iter_mut().zip(x) {
                // SAFETY: the caller guarantees that four values are readable for each of `elements`;
                // arrays of bytes need no alignment.
                let x = unsafe { x.add(4 * four).cast::<[i8; 4]>().read() };
                for (row, dot) in dots.iter_mut().enumerate() {
                    for (byte, x) in bytes[4 * row..].iter().zip(x) {
                        *dot += i32::from(*byte) * i32::from(x);
                    }
                }
            }
        }
        [dots; GROUPS]
    }
    #[inline(always)]
    unsafe fn zero() -> [f32; 16] {
        [0.0; 16]
    }
    #[inline(always)]
    unsafe fn halves(from: *const u8) -> [f32; 16] {
        // SAFETY: the caller guarantees that 32 bytes are readable; arrays of bytes need no
        // alignment.
        let halves = unsafe { from.cast::<[[u8; 2]; 16]>().read() };
        halves.map(|half| half::f16::from_le_bytes(half).to_f32())
    }
    #[inline(always)]
    unsafe fn brains(from: *const u8) -> [f32; 16] {
        // SAFETY: the caller guarantees that 32 bytes are readable; arrays of bytes need no
        // alignment.
        let brains = unsafe { from.cast::<[[u8; 2]; 16]>().read() };
        brains.map(|brain| half::bf16::from_le_bytes(brain).to_f32())
    }
    #[inline(always)]
    unsafe fn unsigned(from: *const u8, right: u32, mask: u8) -> [f32; 16] {
        // SAFETY: the caller guarantees that 16 bytes are readable.
        let bytes = unsafe { from.cast::<[u8; 16]>().read() };
        bytes.map(|byte| f32::from(byte >> right & mask))
    }
    #[inline(always)]
    unsafe fn signed(from: *const u8) -> [f32; 16] {
        // SAFETY: the caller guarantees that 16 bytes are readable.
        unsafe { from.cast::<[i8; 16]>().read() }.map(f32::from)
    }
    #[inline(always)]
    unsafe fn mul(a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|row| a[row] * b[row])
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
    unsafe fn add_products(total: [f32; 16], sums: [i32; 16], scales: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|row| (sums[row] as f32).mul_add(scales[row], total[row]))
    }
    #[inline(always)]
    unsafe fn add_times(total: [f32; 16], values: [f32; 16], x: f32) -> [f32; 16] {
        std::array::from_fn(|row| values[row].mul_add(x, total[row]))
    }
    #[inline(always)]
    unsafe fn floats(from: *const f32) -> [f32; 16] {
        // SAFETY: the caller guarantees that 16 floats are readable.
        unsafe { from.cast::<[f32; 16]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_floats(floats: [f32; 16], to: *mut f32) {
        // SAFETY: the caller guarantees that 16 floats are writable.
        unsafe { to.cast::<[f32; 16]>().write_unaligned(floats) }
    }
}
