//! The keys and the values of a tile, widened.

use std::slice::Chunks;

use super::TILE;
use super::rows::Rows;
use crate::cpu::aligned::Aligned;
use crate::cpu::pools::Pooled;
use crate::cpu::simd::Simd;

/// The keys of one KV head at the slots of a tile, `[head_dim, TILE]`: a vector has the same element of
/// several keys.
#[derive(Default)]
pub struct Panel {
    elements: Aligned<f32>,
    dim: usize,
}

impl Panel {
    /// Makes room for heads of length `dim`.
    pub fn resize(&mut self, dim: usize) {
        self.elements.resize(dim * TILE);
        self.dim = dim;
    }

    /// The elements of the keys, in their order.
    #[inline(always)]
    pub fn columns(&self) -> impl Iterator<Item = &[f32; TILE]> {
        self.elements.as_chunks().0.iter()
    }

    /// How many times [`fill`](Self::fill) prefetches at least, for so many keys.
    #[inline(always)]
    pub fn steps<S: Simd, E: Pooled>(&self, keys: usize) -> usize {
        keys.div_ceil(S::LANES) * self.dim.div_ceil(S::LANES * E::PACKED)
    }

    /// Reads up to [`TILE`] keys, which begin at `starts` in the pool. The columns of missing ones mean
    /// nothing. Prefetches rows and slots ahead meanwhile, some with each step: all at once, they would
    /// hold up what is loaded here.
    ///
    /// # Safety
    /// The CPU must have `S`'s features, and the keys, at most [`TILE`], must be within the pool.
    #[inline(always)]
    pub unsafe fn fill<S: Simd, E: Pooled>(
        &mut self,
        pool: &[E],
        starts: &[usize],
        (rows_ahead, slots_ahead): (&Rows<'_, E>, &mut Chunks<'_, i32>),
    ) {
        let dim = self.dim;
        for (index, starts) in starts.chunks(S::LANES).enumerate() {
            // Missing keys are replaced by the first one.
            let mut keys = [pool.as_ptr().wrapping_add(starts[0]); 16];
            for (key, start) in keys.iter_mut().zip(starts) {
                *key = pool.as_ptr().wrapping_add(*start);
            }
            let column = &mut self.elements[index * S::LANES..];
            let mut at = 0;
            // SAFETY: the caller guarantees the features of `S` and the keys, which have `dim` elements.
            // Element `at` is stored from `index * LANES + at * TILE` on, and a tile has whole vectors.
            unsafe {
                while at + S::LANES * E::PACKED <= dim {
                    rows_ahead.fetch::<S>(slots_ahead.next().unwrap_or_default());
                    let mut square = [S::zero(); 16];
                    for (vector, key) in square[..S::LANES].iter_mut().zip(keys) {
                        *vector = E::load_packed(key.add(at));
                    }
                    S::transpose(&mut square);
                    for packed in &square[..S::LANES] {
                        for part in 0..E::PACKED {
                            let element: S = E::unpack(*packed, part);
                            element.store(column.as_mut_ptr().add(at * TILE));
                            at += 1;
                        }
                    }
                }
                rows_ahead.fetch::<S>(slots_ahead.next().unwrap_or_default());
                while E::PACKED > 1 && at + S::LANES <= dim {
                    let mut square = [S::zero(); 16];
                    for (vector, key) in square[..S::LANES].iter_mut().zip(keys) {
                        *vector = E::load(key.add(at));
                    }
                    S::transpose(&mut square);
                    for element in &square[..S::LANES] {
                        element.store(column.as_mut_ptr().add(at * TILE));
                        at += 1;
                    }
                }
            }
            for at in at..dim {
                for (to, key) in column[at * TILE..].iter_mut().zip(&keys[..S::LANES]) {
                    // SAFETY: the caller guarantees the keys, which have `dim` elements.
                    *to = unsafe { *key.add(at) }.widen();
                }
            }
        }
    }
}

/// The values of one KV head at the slots of a tile, `[TILE, head_dim]`, for many queries.
#[derive(Default)]
pub struct Values {
    elements: Aligned<f32>,
    starts: Vec<usize>,
}

impl Values {
    /// Makes room for heads of length `dim`.
    pub fn resize(&mut self, dim: usize) {
        self.elements.resize(dim * TILE);
        self.starts.clear();
        self.starts.extend((0..TILE).map(|index| index * dim));
    }

    /// Reads up to [`TILE`] values, which begin at `starts` in the pool, and returns them with their own
    /// starts.
    ///
    /// # Safety
    /// The CPU must have `S`'s features, and the values must be within the pool.
    #[inline(always)]
    pub unsafe fn fill<S: Simd, E: Pooled>(
        &mut self,
        pool: &[E],
        starts: &[usize],
    ) -> (&[f32], &[usize]) {
        let dim = self.elements.len() / TILE;
        let whole = dim / S::LANES * S::LANES;
        for (value, start) in self.elements.chunks_exact_mut(dim).zip(starts) {
            // SAFETY: the caller guarantees the features of `S` and the values, which have `dim` elements.
            unsafe {
                let from = pool.as_ptr().add(*start);
                for at in (0..whole).step_by(S::LANES) {
                    E::load::<S>(from.add(at)).store(value.as_mut_ptr().add(at));
                }
                for (at, value) in value.iter_mut().enumerate().skip(whole) {
                    *value = (*from.add(at)).widen();
                }
            }
        }
        (&self.elements, &self.starts[..starts.len()])
    }
}
