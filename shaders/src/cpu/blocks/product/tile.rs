//! The product of a block of 32 columns, for the tokens of a tile.

use crate::cpu::blocks::activations::{Activations, BlockSums, Pairs};
use crate::cpu::blocks::lanes::{Elements, Lanes};
use crate::cpu::blocks::{BLOCK, units};

/// The most vectors of a block's elements: twice as many where they are split.
pub const VECTORS: usize = 2 * BLOCK / 4;

/// How many vectors the elements of a part are.
#[inline(always)]
pub fn vectors<L: Lanes, const FORMAT: usize>() -> usize {
    let layout = const { units::layout::<FORMAT>() };
    match L::splits(&layout) {
        true => layout.part / 2,
        false => layout.part / 4,
    }
}

/// The elements of a packed block, split where the format's are. Those after the [`vectors`] of its
/// parts repeat the first one.
///
/// # Safety
/// As for [`units::elements`].
#[inline(always)]
pub unsafe fn elements<L: Lanes, const FORMAT: usize>(lines: *const u8) -> [L::Bytes; VECTORS] {
    let layout = const { units::layout::<FORMAT>() };
    // SAFETY: the caller's guarantees.
    unsafe {
        let bytes = units::elements::<L, FORMAT>(lines);
        let mut elements = [bytes[0]; VECTORS];
        match L::splits(&layout) {
            true => {
                for (two, bytes) in elements.as_chunks_mut().0.iter_mut().zip(bytes) {
                    *two = L::split(bytes, layout.offset);
                }
            }
            false => elements[..VECTORS / 2].copy_from_slice(&bytes),
        }
        elements
    }
}

/// The scales and minimums of a block's parts, which has one part or two.
pub struct Factors<L: Lanes> {
    pub scales: [L::Floats; 2],
    /// Zero for formats without minimums.
    pub minimums: [L::Floats; 2],
}

impl<L: Lanes> Clone for Factors<L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L: Lanes> Copy for Factors<L> {}

/// A block of the activations of a tile's tokens, each of which has its block behind that of the token
/// before.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    x: &'a Activations,
    values: *const i8,
    scales: *const f32,
    negated: *const [i32; 4],
    pairs: *const Pairs,
    scaled_sums: *const [f32; 4],
}

impl<'a> Place<'a> {
    /// The block `block` of the tokens from `token` on, which is the first of a tile.
    #[inline(always)]
    pub fn new(x: &'a Activations, token: usize, block: usize) -> Self {
        let at = token * (x.width / BLOCK);
        let first = Self {
            x,
            values: x.values[at * BLOCK..].as_ptr(),
            scales: x.scales[at..].as_ptr(),
            negated: x.negated[at..].as_ptr(),
            pairs: x.pairs[at..].as_ptr(),
            scaled_sums: x.scaled_sums[at..].as_ptr(),
        };
        first.after(block)
    }

    /// The `blocks`-th block after this one, of the same tokens.
    #[inline(always)]
    pub fn after(&self, blocks: usize) -> Self {
        let at = blocks * self.x.side;
        Self {
            x: self.x,
            values: self.values.wrapping_add(at * BLOCK),
            scales: self.scales.wrapping_add(at),
            negated: self.negated.wrapping_add(at),
            pairs: self.pairs.wrapping_add(at),
            scaled_sums: self.scaled_sums.wrapping_add(at),
        }
    }

    /// Adds the products of a block of each group to the totals of the group and each token.
    ///
    /// # Safety
    /// The CPU must have `L`'s features, `elements` must be those of each part of the block of each group, and
    /// the activations must have the block for `TOKENS` tokens of the tile.
    #[inline(always)]
    pub unsafe fn add<L: Lanes, const FORMAT: usize, const TOKENS: usize, const GROUPS: usize>(
        &self,
        totals: &mut [[L::Floats; TOKENS]; GROUPS],
        elements: [[impl Elements<L>; GROUPS]; 2],
        factors: &[Factors<L>; GROUPS],
    ) {
        let layout = const { units::layout::<FORMAT>() };
        // SAFETY: the caller guarantees the features of `L`, the block and its tokens.
        unsafe {
            let first = BlockSums {
                negated: &*self.negated,
                pairs: &*self.pairs,
            };
            let mut sums = [first; TOKENS];
            for (t, sums) in sums.iter_mut().enumerate() {
                (sums.negated, sums.pairs) = (&*self.negated.add(t), &*self.pairs.add(t));
            }
            // The sums of a block whose parts have scales of their own, without the activations' scale.
            let mut scaled = [[L::zero(); TOKENS]; GROUPS];
            for (part, elements) in elements.into_iter().enumerate().take(BLOCK / layout.part) {
                let mut values = [std::ptr::null(); TOKENS];
                for (t, values) in values.iter_mut().enumerate() {
                    *values = self.values.add(t * BLOCK + part * layout.part);
                }
                let dots = L::dots(elements, &layout, part, values, sums);
                for t in 0..TOKENS {
                    for (g, factors) in factors.iter().enumerate() {
                        let (dots, scales) = (dots[g][t], factors.scales[part]);
                        if layout.part == BLOCK {
                            let x = *self.scales.add(t);
                            totals[g][t] = L::add_scaled(totals[g][t], dots, scales, x);
                        } else {
                            scaled[g][t] = L::add_products(scaled[g][t], dots, scales);
                        }
                    }
                }
            }
            if layout.part < BLOCK {
                for t in 0..TOKENS {
                    let x = *self.scales.add(t);
                    for (totals, scaled) in totals.iter_mut().zip(&scaled) {
                        totals[t] = L::add_times(totals[t], scaled[t], x);
                    }
                }
            }
            if layout.scales.minimums() {
                for part in 0..BLOCK / layout.part {
                    for t in 0..TOKENS {
                        let sums = *self.scaled_sums.add(t);
                        let x = Activations::scaled_sum(sums, layout.part, part);
                        for (totals, factors) in totals.iter_mut().zip(factors) {
                            totals[t] = L::add_times(totals[t], factors.minimums[part], x);
                        }
                    }
                }
            }
        }
    }
}

impl<L: Lanes> Factors<L> {
    /// Scales and minimums that are zero.
    ///
    /// # Safety
    /// The CPU must have `L`'s features.
    #[inline(always)]
    pub unsafe fn zero() -> Self {
        // SAFETY: the caller guarantees the features of `L`.
        unsafe {
            Self {
                scales: [L::zero(); 2],
                minimums: [L::zero(); 2],
            }
        }
    }

    /// Those of the block `within` a packed unit.
    ///
    /// # Safety
    /// As for [`units::scales`].
    #[inline(always)]
    pub unsafe fn read<const FORMAT: usize>(unit: *const u8, within: usize) -> Self {
        let layout = const { units::layout::<FORMAT>() };
        let parts = BLOCK / layout.part;
        // SAFETY: the caller's guarantees.
        unsafe {
            let mut factors = Self::zero();
            for part in 0..parts {
                factors.scales[part] = units::scales::<L, FORMAT>(unit, within * parts + part);
                factors.minimums[part] = units::minimums::<L, FORMAT>(unit, within * parts + part);
            }
            factors
        }
    }
}
