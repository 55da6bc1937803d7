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
    pub fn scale<const HEADS: usize>(
        &self,
        pool: &[E],
        slots: &[i32],
        values: &mut [[f32; HEADS]],
    ) {
        if E::SCALE == 0 {
            return;
        }
        for (values, slot) in values.iter_mut().zip(slots) {
            let from = self.of(*slot).start;
            let scale = E::scale(&pool[from - E::SCALE..from]);
            values.iter_mut().for_each(|value| *value *= scale);
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

/// Sets `scores` to the dot products of the keys at up to [`SLOTS`] slots with each head. Those of
/// missing slots mean nothing.
///
/// # Safety
/// The CPU must have `S`'s features, and `q` must have `HEADS` heads.
#[inline(always)]
pub unsafe fn scores<S: Simd, E: Pooled, const HEADS: usize>(
    q: &[f32],
    rows: &Rows<'_, E>,
    slots: &[i32],
    scores: &mut [[f32; HEADS]; SLOTS],
) {
    let dim = rows.dim;
    let whole = dim / S::LANES * S::LANES;
    // Missing slots are replaced by the first one.
    let keys: [&[E]; SLOTS] = std::array::from_fn(|i| {
        let slot = slots.get(i).unwrap_or(&slots[0]);
        &rows.k_pool[rows.of(*slot)]
    });
    // SAFETY: the caller guarantees the features of `S`, and that `q` has `HEADS` heads; keys have
    // `dim` elements.
    unsafe {
        if S::LANES == 16 || HEADS <= 2 {
            dot_products::<S, E, HEADS, SLOTS>(q, &keys, scores);
        } else {
            // The CPU has half as many registers.
            let (keys, _) = keys.as_chunks::<{ SLOTS / 2 }>();
            let (halves, _) = scores.as_chunks_mut::<{ SLOTS / 2 }>();
            for (keys, scores) in keys.iter().zip(halves) {
                dot_products::<S, E, HEADS, { SLOTS / 2 }>(q, keys, scores);
            }
        }
    }
    for (key, scores) in keys.iter().zip(scores) {
        for (head, score) in scores.iter_mut().enumerate() {
            for i in whole..dim {
                *score += q[head * dim + i] * key[i].widen();
            }
        }
    }
}

/// Sets the scores of `SIDE` keys, over whole vectors.
///
/// # Safety
/// The CPU must have `S`'s features, and `q` must have `HEADS` heads of the length of a key.
#[inline(always)]
unsafe fn dot_products<S: Simd, E: Pooled, const HEADS: usize, const SIDE: usize>(
    q: &[f32],
    keys: &[&[E]; SIDE],
    scores: &mut [[f32; HEADS]; SIDE],
) {
    let dim = keys[0].len();
    let whole = dim / S::LANES * S::LANES;
    // SAFETY: the caller guarantees the features of `S`. `i + LANES` is at most `dim`, the length
    // of every key and of every head in `q`.
    unsafe {
        let mut sums = [[S::zero(); HEADS]; SIDE];
        for i in (0..whole).step_by(S::LANES) {
            let mut wide = [S::zero(); SIDE];
            for (wide, key) in wide.iter_mut().zip(keys) {
                *wide = E::load::<S>(key.as_ptr().add(i));
            }
            for head in 0..HEADS {
                let q = S::load_f32(q.as_ptr().add(head * dim + i));
                for (sums, key) in sums.iter_mut().zip(wide) {
                    sums[head] = sums[head].add_mul(q, key);
                }
            }
        }
        // Several sums at a time, whichever heads and keys they are of.
        let (sixteens, rest) = sums.as_flattened().as_chunks::<16>();
        let (scores, last) = scores.as_flattened_mut().as_chunks_mut::<16>();
        for (scores, sums) in scores.iter_mut().zip(sixteens) {
            *scores = S::sums_of_sixteen(sums);
        }
        let (fours, rest) = rest.as_chunks::<4>();
        let (scores, last) = last.as_chunks_mut::<4>();
        for (scores, sums) in scores.iter_mut().zip(fours) {
            *scores = S::sums(*sums);
        }
        for (score, sum) in last.iter_mut().zip(rest) {
            *score = sum.sum();
        }
    }
}

/// Adds the values at `slots`, times each head's weights, to `out`.
///
/// # Safety
/// The CPU must have `S`'s features, and `out` must have `HEADS` heads.
#[inline(always)]
pub unsafe fn mix<S: Simd, E: Pooled, const HEADS: usize>(
    weights: &[[f32; HEADS]],
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
    let mut values: [&[E]; TILE] = [&[]; TILE];
    let values = &mut values[..weights.len()];
    for (value, slot) in values.iter_mut().zip(slots) {
        *value = &rows.v_pool[rows.of(*slot)];
    }
    let mut from = 0;
    while from < whole {
        let wide = ((whole - from) / S::LANES).min(most);
        // SAFETY: the caller guarantees the features of `S` and the heads; `wide` vectors from
        // `from` on fit into `whole`.
        unsafe {
            match wide {
                1 => mix_vectors::<S, E, HEADS, 1>(weights, values, out, dim, from),
                2 => mix_vectors::<S, E, HEADS, 2>(weights, values, out, dim, from),
                3 => mix_vectors::<S, E, HEADS, 3>(weights, values, out, dim, from),
                _ => mix_vectors::<S, E, HEADS, WIDE>(weights, values, out, dim, from),
            }
        }
        from += wide * S::LANES;
    }
    for head in 0..HEADS {
        for i in whole..dim {
            for (weights, value) in weights.iter().zip(&*values) {
                out[head * dim + i] += weights[head] * value[i].widen();
            }
        }
    }
}

/// [`mix`] for `WIDE` vectors of each head, beginning at element `from` of the `dim` elements of the
/// head and of each value.
///
/// # Safety
/// The CPU must have `S`'s features, and the vectors must lie within the head.
#[inline(always)]
unsafe fn mix_vectors<S: Simd, E: Pooled, const HEADS: usize, const WIDE: usize>(
    weights: &[[f32; HEADS]],
    values: &[&[E]],
    out: &mut [f32],
    dim: usize,
    from: usize,
) {
    let out = out[..HEADS * dim].as_mut_ptr();
    // SAFETY: the caller guarantees the features of `S`, and that `WIDE` vectors from `from` on lie
    // within a head's and a value's `dim` elements. `out` has `HEADS` heads.
    unsafe {
        let mut sums = [[S::zero(); WIDE]; HEADS];
        for (head, sums) in sums.iter_mut().enumerate() {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = S::load_f32(out.add(head * dim + from + i * S::LANES));
            }
        }
        for (weights, value) in weights.iter().zip(values) {
            let mut vectors = [S::zero(); WIDE];
            for (i, vector) in vectors.iter_mut().enumerate() {
                *vector = E::load::<S>(value.as_ptr().add(from + i * S::LANES));
            }
            for (sums, weight) in sums.iter_mut().zip(weights) {
                let weight = S::splat(*weight);
                for (sum, vector) in sums.iter_mut().zip(vectors) {
                    *sum = sum.add_mul(weight, vector);
                }
            }
        }
        for (head, sums) in sums.iter().enumerate() {
            for (i, sum) in sums.iter().enumerate() {
                sum.store(out.add(head * dim + from + i * S::LANES));
            }
        }
    }
}
