//! The rows of one KV head in the pools.

use super::TILE;
use crate::cpu::pools::Pooled;
use crate::cpu::simd::Simd;

/// Bytes of a cache line.
const CACHE_LINE: usize = 64;

/// The rows of one KV head in the pools.
#[derive(Clone, Copy)]
pub struct Rows<'a, E> {
    pub k_pool: &'a [E],
    pub v_pool: &'a [E],
    /// Elements of a slot, of all KV heads.
    pub width: usize,
    /// Where the elements of this head begin in a slot, behind its scale.
    pub at: usize,
    pub dim: usize,
}

impl<E: Pooled> Rows<'_, E> {
    /// Where the row at `slot` begins in both pools, behind its scale.
    #[inline(always)]
    fn start(&self, slot: i32) -> usize {
        // A negative slot leads to a place far behind every pool.
        slot.cast_unsigned() as usize * self.width + self.at
    }

    /// Sets the first of `starts` to where the rows at `slots` begin in both pools, and returns these.
    ///
    /// # Panics
    /// If a row is not within the pools.
    #[inline(always)]
    pub fn starts<'s>(&self, slots: &[i32], starts: &'s mut [usize; TILE]) -> &'s [usize] {
        let (starts, mut last) = (&mut starts[..slots.len()], 0);
        for (start, slot) in starts.iter_mut().zip(slots) {
            *start = self.start(*slot);
            last = last.max(*start);
        }
        let least = self.k_pool.len().min(self.v_pool.len());
        let fits = least.checked_sub(self.dim).is_some_and(|most| last <= most);
        assert!(fits, "the rows are not within the pools");
        starts
    }

    /// Sets `scales` to those that `pool` has in front of the rows.
    #[inline(always)]
    pub fn scales(&self, pool: &[E], starts: &[usize], scales: &mut [f32]) {
        for (scale, start) in scales.iter_mut().zip(starts) {
            *scale = E::scale(&pool[start - E::SCALE..*start]);
        }
    }

    /// Prefetches keys and values that are needed soon. The hardware prefetcher does not recognise
    /// the pattern: a few lines at each slot.
    ///
    /// # Safety
    /// The CPU must have `S`'s features.
    #[inline(always)]
    pub unsafe fn fetch<S: Simd>(&self, slots: &[i32]) {
        for slot in slots {
            let from = self.start(*slot);
            let bytes = (E::SCALE + self.dim) * size_of::<E>();
            // Heads with scales do not begin at cache lines, so their last byte may be in one more.
            let last = (E::SCALE > 0).then_some(bytes - 1);
            for pool in [self.k_pool, self.v_pool] {
                let row = pool.as_ptr().wrapping_add(from - E::SCALE).cast::<u8>();
                for at in (0..bytes).step_by(CACHE_LINE).chain(last) {
                    // SAFETY: the caller guarantees the features of `S`; a prefetch accepts any
                    // address.
                    unsafe { S::prefetch(row.wrapping_add(at)) };
                }
            }
        }
    }
}
