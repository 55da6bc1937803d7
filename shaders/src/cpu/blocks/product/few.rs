//! One tile of tokens, multiplied straight from the packed weights.

use super::Product;
use super::tile::{Factors, Place, elements, vectors};
use crate::cpu::blocks::lanes::Lanes;
use crate::cpu::blocks::{BLOCK, LINE, ROWS, units};

/// How far ahead weights are prefetched, in bytes. With several tokens, the hardware prefetcher is
/// not far enough ahead.
const FETCH_AHEAD: usize = 2048;

impl Product<'_> {
    /// Computes all groups for `TOKENS` tokens.
    ///
    /// # Safety
    /// The CPU must have `L`'s features, and there must be `TOKENS` tokens in one tile.
    #[inline(always)]
    pub unsafe fn few<L: Lanes, const FORMAT: usize, const TOKENS: usize>(&self) {
        let layout = const { units::layout::<FORMAT>() };
        let per_unit = layout.unit() / BLOCK;
        for group in self.groups.clone() {
            let weights = self.weight.group(group);
            // SAFETY: the caller guarantees the features of `L` and the tokens. The group has the
            // columns of `x`: where a unit has 256 columns, it divides those of the matrix. The tile's
            // elements of `y` are this task's.
            unsafe {
                let mut totals = [[L::zero(); TOKENS]];
                for unit in 0..self.x.width / layout.unit() {
                    let at = weights.as_ptr().add(unit * layout.unit_bytes());
                    prefetch::<L>(at, layout.scale_bytes());
                    for within in 0..per_unit {
                        let lines = layout.scale_bytes() + within * layout.block_bytes();
                        let lines = at.add(lines);
                        prefetch::<L>(lines, layout.block_bytes());
                        let elements = elements::<L, FORMAT>(lines);
                        let factors = Factors::read::<FORMAT>(at, within);
                        let place = Place::new(self.x, 0, unit * per_unit + within);
                        let each = vectors::<L, FORMAT>();
                        // A block of one part repeats it.
                        let last = (BLOCK / layout.part - 1) * each;
                        let parts = [[&elements[..each]], [&elements[last..][..each]]];
                        place.add::<L, FORMAT, TOKENS, 1>(&mut totals, parts, &[factors]);
                    }
                }
                for (token, total) in totals[0].into_iter().enumerate() {
                    let mut floats = [0.0; ROWS];
                    L::store_floats(total, floats.as_mut_ptr());
                    self.store::<L>(token, group, &floats);
                }
            }
        }
    }
}

/// Prefetches what lies so far ahead of `from`.
///
/// # Safety
/// The CPU must have `L`'s features.
#[inline(always)]
unsafe fn prefetch<L: Lanes>(from: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(LINE) {
        // SAFETY: the caller guarantees the features of `L`.
        unsafe { L::prefetch(from.wrapping_add(FETCH_AHEAD + at)) };
    }
}
