//! The rows of the pools, and their products with queries and weights.

use super::TILE;
use crate::cpu::pools::Pooled;
use crate::cpu::simd::Simd;

/// Bytes of a cache line.
const CACHE_LINE: usize = 64;

/// Query heads that share a pass over keys and values, and slots that are scored side by side.
/// Their product is the number of sums, which fit the registers of AVX-512.
pub const MAX_HEADS: usize = 4;
pub const SLOTS: usize = 4;

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
    #[inline(always)]
    fn of(&self, slot: i32) -> std::ops::Range<usize> {
        let from = slot as usize * self.width + self.at;
        from..from + self.dim
    }

    /// Multiplies each of `values` by the scale that `pool` has at the slot in the same place.
    #[inline(always)]
    pub fn scale(&self, pool: &[E], slots: &[i32], values: &mut [[f32; TILE]]) {
        if E::SCALE == 0 {
            return;
        }
        let mut scales = [0.0; TILE];
        for (scale, slot) in scales.iter_mut().zip(slots) {
            let from = self.of(*slot).start;
            *scale = E::scale(&pool[from - E::SCALE..from]);
        }
        for values in values {
            for (value, scale) in values.iter_mut().zip(scales) {
                *value *= scale;
            }
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
            let from = self.of(*slot).start;
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

/// The dot products of each head with the keys at up to [`SLOTS`] slots.
///
/// # Safety
/// The CPU must have `S`'s features.
#[inline(always)]
pub unsafe fn scores<S: Simd, E: Pooled, const HEADS: usize>(
    q: &[f32],
    rows: &Rows<'_, E>,
    slots: &[i32],
) -> [[f32; SLOTS]; HEADS] {
    let dim = rows.dim;
    let whole = dim / S::LANES * S::LANES;
    // Missing slots are replaced by the first one; their scores are ignored.
    let keys: [&[E]; SLOTS] = std::array::from_fn(|i| {
        let slot = slots.get(i).unwrap_or(&slots[0]);
        &rows.k_pool[rows.of(*slot)]
    });
    let mut scores = [[0.0; SLOTS]; HEADS];
    // SAFETY: the caller guarantees the features of `S`, and that `q` has `HEADS` heads; keys have
    // `dim` elements.
    unsafe {
        if S::LANES == 16 || HEADS <= 2 {
            dot_products::<S, E, HEADS, SLOTS>(q, &keys, 0, &mut scores);
        } else {
            // The CPU has half as many registers.
            for first in (0..SLOTS).step_by(SLOTS / 2) {
                dot_products::<S, E, HEADS, { SLOTS / 2 }>(q, &keys, first, &mut scores);
            }
        }
    }
    for (head, scores) in scores.iter_mut().enumerate() {
        for (slot, score) in scores.iter_mut().enumerate() {
            for i in whole..dim {
                *score += q[head * dim + i] * keys[slot][i].widen();
            }
        }
    }
    scores
}

/// Sets the scores of `SIDE` keys from the `first` on, over whole vectors.
///
/// # Safety
/// The CPU must have `S`'s features, and `q` must have `HEADS` heads of the length of a key.
#[inline(always)]
unsafe fn dot_products<S: Simd, E: Pooled, const HEADS: usize, const SIDE: usize>(
    q: &[f32],
    keys: &[&[E]; SLOTS],
    first: usize,
    scores: &mut [[f32; SLOTS]; HEADS],
) {
    let dim = keys[0].len();
    let whole = dim / S::LANES * S::LANES;
    // SAFETY: the caller guarantees the features of `S`. `i + LANES` is at most `dim`, the length
    // of every key and of every head in `q`.
    unsafe {
        let mut sums = [[S::zero(); SIDE]; HEADS];
        for i in (0..whole).step_by(S::LANES) {
            let mut wide = [S::zero(); SIDE];
            for (wide, key) in wide.iter_mut().zip(&keys[first..]) {
                *wide = E::load::<S>(key.as_ptr().add(i));
            }
            for (head, sums) in sums.iter_mut().enumerate() {
                let q = S::load_f32(q.as_ptr().add(head * dim + i));
                for (sum, key) in sums.iter_mut().zip(wide) {
                    *sum = sum.add_mul(q, key);
                }
            }
        }
        // Four sums at a time, whichever heads and keys they are of.
        let sums = sums.as_flattened();
        let mut values = [0.0; MAX_HEADS * SLOTS];
        let (fours, rest) = sums.as_chunks::<4>();
        for (values, sums) in values.chunks_exact_mut(4).zip(fours) {
            values.copy_from_slice(&S::sums(*sums));
        }
        for (value, sum) in values[4 * fours.len()..].iter_mut().zip(rest) {
            *value = sum.sum();
        }
        for (scores, values) in scores.iter_mut().zip(values.chunks_exact(SIDE)) {
            scores[first..first + SIDE].copy_from_slice(values);
        }
    }
}

/// Adds the values at `slots`, times each head's weights, to `out`.
///
/// # Safety
/// The CPU must have `S`'s features.
#[inline(always)]
pub unsafe fn mix<S: Simd, E: Pooled, const HEADS: usize>(
    weights: &[[f32; TILE]; HEADS],
    rows: &Rows<'_, E>,
    slots: &[i32],
    out: &mut [f32],
) {
    /// The most vectors of a head that are summed in registers at once.
    const WIDE: usize = 4;
    let most = match S::LANES == 16 || HEADS <= 2 {
        true => WIDE,
        false => WIDE / 2,
    };
    let dim = rows.dim;
    let whole = dim / S::LANES * S::LANES;
    let mut from = 0;
    while from < whole {
        let wide = ((whole - from) / S::LANES).min(most);
        // SAFETY: the caller guarantees the features of `S`; `wide` vectors from `from` on fit into
        // `whole`.
        unsafe {
            match wide {
                1 => mix_vectors::<S, E, HEADS, 1>(weights, rows, slots, out, from),
                2 => mix_vectors::<S, E, HEADS, 2>(weights, rows, slots, out, from),
                3 => mix_vectors::<S, E, HEADS, 3>(weights, rows, slots, out, from),
                _ => mix_vectors::<S, E, HEADS, WIDE>(weights, rows, slots, out, from),
            }
        }
        from += wide * S::LANES;
    }
    for (head, weights) in weights.iter().enumerate() {
        for i in whole..dim {
            for (weight, slot) in weights.iter().zip(slots) {
                out[head * dim + i] += weight * rows.v_pool[rows.of(*slot)][i].widen();
            }
        }
    }
}

/// [`mix`] for `WIDE` vectors of each head, beginning at element `from` of the head.
///
/// # Safety
/// The CPU must have `S`'s features, and the vectors must lie within the head.
#[inline(always)]
unsafe fn mix_vectors<S: Simd, E: Pooled, const HEADS: usize, const WIDE: usize>(
    weights: &[[f32; TILE]; HEADS],
    rows: &Rows<'_, E>,
    slots: &[i32],
    out: &mut [f32],
    from: usize,
) {
    let out = &mut out[..HEADS * rows.dim];
    // SAFETY: the caller guarantees the features of `S`, and that `WIDE` vectors from `from` on lie
    // within a head's `dim` elements. `out` has `HEADS` heads, and a row of the pool has `dim`
    // elements.
    unsafe {
        let at =
            |out: *mut f32, head: usize, i: usize| out.add(head * rows.dim + from + i * S::LANES);
        let mut sums = [[S::zero(); WIDE]; HEADS];
        for (head, sums) in sums.iter_mut().enumerate() {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = S::load_f32(at(out.as_mut_ptr(), head, i));
            }
        }
        for (slot, index) in slots.iter().zip(0..TILE) {
            let value = &rows.v_pool[rows.of(*slot)];
            let mut vectors = [S::zero(); WIDE];
            for (i, vector) in vectors.iter_mut().enumerate() {
                *vector = E::load::<S>(value.as_ptr().add(from + i * S::LANES));
            }
            for (head, sums) in sums.iter_mut().enumerate() {
                let weight = S::splat(weights[head][index]);
                for (sum, vector) in sums.iter_mut().zip(vectors) {
                    *sum = sum.add_mul(weight, vector);
                }
            }
        }
        for (head, sums) in sums.iter().enumerate() {
            for (i, sum) in sums.iter().enumerate() {
                sum.store(at(out.as_mut_ptr(), head, i));
            }
        }
    }
}
