//! Attention over slot indices, with online softmax: one task per token and KV head.

use rayon::prelude::*;

use super::pools::Pooled;
use super::simd::{Simd, Task, dispatch, exp, tanh};
use crate::HeadLayout;

/// Positions that are scored before their values are added up.
const TILE: usize = 64;
/// Bytes of a cache line.
const CACHE_LINE: usize = 64;

/// The slots of the tokens of a batch, as [`RaggedIndex`](crate::RaggedIndex) describes them.
pub struct SlotTable<'a> {
    pub positions: &'a [i32],
    pub start: &'a [i32],
    pub slots: &'a [i32],
    /// How many of the last positions a token attends.
    pub window: usize,
}

impl SlotTable<'_> {
    /// The slots that a token attends, in order of position.
    fn visible(&self, token: usize) -> &[i32] {
        let end = self.positions[token] as usize + 1;
        let start = end.saturating_sub(self.window);
        let table = &self.slots[self.start[token] as usize..];
        &table[start..end]
    }

    /// The number of positions that are read, and the number that are attended: summed over the
    /// last token of each sequence, and over all tokens.
    pub fn extent(&self) -> (usize, usize) {
        let tokens = self.positions.len();
        (0..tokens).fold((0, 0), |(read, seen), token| {
            let visible = self.visible(token).len();
            let last = token + 1 == tokens || self.start[token + 1] != self.start[token];
            (read + if last { visible } else { 0 }, seen + visible)
        })
    }
}

/// How scores become weights; see [`AttentionOptions`](crate::AttentionOptions).
pub struct Weighing<'a> {
    pub scale: f32,
    pub cap: Option<f32>,
    /// `[heads]`
    pub sinks: Option<&'a [f32]>,
}

impl Weighing<'_> {
    /// True if scores are only scaled.
    pub fn is_plain(&self) -> bool {
        self.cap.is_none() && self.sinks.is_none()
    }
}

/// `q` and `out` are `[tokens, heads, head_dim]`, the pools `[slots, kv_heads, E::SCALE + head_dim]`.
pub fn paged<E: Pooled>(
    q: &[f32],
    k_pool: &[E],
    v_pool: &[E],
    layout: HeadLayout,
    weighing: &Weighing<'_>,
    table: &SlotTable<'_>,
    out: &mut [f32],
) {
    let group = layout.heads / layout.kv_heads;
    let width = group * layout.head_dim; // the query heads that share a KV head
    let tasks = q
        .par_chunks_exact(width)
        .zip(out.par_chunks_exact_mut(width))
        .enumerate();
    tasks.for_each(|(task, (q, out))| {
        let (token, kv_head) = (task / layout.kv_heads, task % layout.kv_heads);
        let slots = table.visible(token);
        dispatch(Group {
            q,
            k_pool,
            v_pool,
            layout,
            weighing,
            kv_head,
            slots,
            out,
        });
    });
}

/// The query heads of one token that share a KV head.
struct Group<'a, E> {
    q: &'a [f32],
    k_pool: &'a [E],
    v_pool: &'a [E],
    layout: HeadLayout,
    weighing: &'a Weighing<'a>,
    kv_head: usize,
    slots: &'a [i32],
    out: &'a mut [f32],
}

impl<E: Pooled> Task for Group<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let dim = self.layout.head_dim;
        // Keys and values are read and widened once for up to [`MAX_HEADS`] heads.
        let heads = self.q.chunks(MAX_HEADS * dim);
        let mut first = self.kv_head * (self.q.len() / dim);
        for (q, out) in heads.zip(self.out.chunks_mut(MAX_HEADS * dim)) {
            let own = Own {
                weighing: self.weighing,
                sinks: self.weighing.sinks.map(|sinks| &sinks[first..]),
            };
            first += q.len() / dim;
            let stride = E::SCALE + dim;
            let rows = Rows {
                k_pool: self.k_pool,
                v_pool: self.v_pool,
                width: self.layout.kv_heads * stride,
                at: self.kv_head * stride + E::SCALE,
                dim,
            };
            // SAFETY: the caller guarantees the features of `S`.
            unsafe {
                match q.len() / dim {
                    1 => attend::<S, E, 1>(q, &rows, &own, self.slots, out),
                    2 => attend::<S, E, 2>(q, &rows, &own, self.slots, out),
                    3 => attend::<S, E, 3>(q, &rows, &own, self.slots, out),
                    _ => attend::<S, E, MAX_HEADS>(q, &rows, &own, self.slots, out),
                }
            }
        }
    }
}

/// Query heads that share a pass over keys and values, and slots that are scored side by side.
/// Their product is the number of sums, which fit the registers of AVX-512.
const MAX_HEADS: usize = 4;
const SLOTS: usize = 4;

/// The rows of one KV head in the pools.
struct Rows<'a, E> {
    k_pool: &'a [E],
    v_pool: &'a [E],
    /// Elements of a slot, of all KV heads.
    width: usize,
    /// Where the elements of this head begin in a slot, behind its scale.
    at: usize,
    dim: usize,
}

impl<E: Pooled> Rows<'_, E> {
    #[inline(always)]
    fn of(&self, slot: i32) -> std::ops::Range<usize> {
        let from = slot as usize * self.width + self.at;
        from..from + self.dim
    }

    /// Multiplies each of `values` by the scale that `pool` has at the slot in the same place.
    #[inline(always)]
    fn scale(&self, pool: &[E], slots: &[i32], values: &mut [[f32; TILE]]) {
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
    unsafe fn fetch<S: Simd>(&self, slots: &[i32]) {
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

/// How some heads weigh their scores.
struct Own<'a> {
    weighing: &'a Weighing<'a>,
    /// The sinks from the first of these heads on.
    sinks: Option<&'a [f32]>,
}

/// Online softmax (Milakov and Gimelshein, arXiv 1805.02867) over tiles of slots, for `HEADS`
/// heads.
///
/// # Safety
/// The CPU must have `S`'s features.
#[inline(always)]
unsafe fn attend<S: Simd, E: Pooled, const HEADS: usize>(
    q: &[f32],
    rows: &Rows<'_, E>,
    own: &Own<'_>,
    slots: &[i32],
    out: &mut [f32],
) {
    let scale = own.weighing.scale;
    let (mut max, mut sum) = ([f32::NEG_INFINITY; HEADS], [0.0f32; HEADS]);
    if let Some(sinks) = own.sinks {
        // The softmax begins with the sink, whose weight relative to itself is 1.
        max.copy_from_slice(&sinks[..HEADS]);
        sum = [1.0; HEADS];
    }
    out.fill(0.0);
    for (tile, here) in slots.chunks(TILE).enumerate() {
        let next = &slots[((tile + 1) * TILE).min(slots.len())..];
        // SAFETY: the caller guarantees the features of `S`.
        unsafe { rows.fetch::<S>(&next[..next.len().min(TILE)]) };
        let slots = here;
        let mut weights = [[0.0f32; TILE]; HEADS];
        for (from, few) in slots.chunks(SLOTS).enumerate() {
            // SAFETY: the caller guarantees the features of `S`.
            let scores = unsafe { scores::<S, E, HEADS>(q, rows, few) };
            for (weights, scores) in weights.iter_mut().zip(scores) {
                for (weight, score) in weights[from * SLOTS..].iter_mut().zip(scores) {
                    *weight = score * scale;
                }
            }
        }
        rows.scale(rows.k_pool, slots, &mut weights);
        for head in 0..HEADS {
            let weights = &mut weights[head][..slots.len()];
            if let Some(cap) = own.weighing.cap {
                weights
                    .iter_mut()
                    .for_each(|weight| *weight = cap * tanh(*weight / cap));
            }
            let new_max = by_lanes(
                weights,
                max[head],
                |max, score| if score > max { score } else { max },
            );
            // The first correction is zero: there is nothing to rescale, and `exp` does not take
            // infinity.
            let correction = if max[head] == f32::NEG_INFINITY {
                0.0
            } else {
                exp(max[head] - new_max)
            };
            max[head] = new_max;
            weights
                .iter_mut()
                .for_each(|weight| *weight = exp(*weight - new_max));
            sum[head] = sum[head] * correction + by_lanes(weights, 0.0, |sum, weight| sum + weight);
            let out = &mut out[head * rows.dim..][..rows.dim];
            out.iter_mut().for_each(|out| *out *= correction);
        }
        rows.scale(rows.v_pool, slots, &mut weights);
        // SAFETY: the caller guarantees the features of `S`.
        unsafe { mix::<S, E, HEADS>(&weights, rows, slots, out) };
    }
    for (out, sum) in out.chunks_exact_mut(rows.dim).zip(sum) {
        let inverse = 1.0 / sum;
        out.iter_mut().for_each(|out| *out *= inverse);
    }
}

/// Combines `values` in sixteen lanes, each starting with `start`, and then combines the lanes. The
/// compiler may not reorder operations on floats by itself.
#[inline(always)]
fn by_lanes(values: &[f32], start: f32, combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [start; 16];
    let chunks = values.chunks_exact(16);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = combine(*lane, *value);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane = combine(*lane, *value);
    }
    lanes.into_iter().reduce(combine).unwrap_or(start)
}

/// The dot products of each head with the keys at up to [`SLOTS`] slots.
///
/// # Safety
/// The CPU must have `S`'s features.
#[inline(always)]
unsafe fn scores<S: Simd, E: Pooled, const HEADS: usize>(
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
        for (scores, sums) in scores.iter_mut().zip(sums) {
            if let [a, b, c, d] = sums[..] {
                *scores = S::sums([a, b, c, d]);
            } else {
                for (score, sum) in scores[first..].iter_mut().zip(sums) {
                    *score = sum.sum();
                }
            }
        }
    }
}

/// Adds the values at `slots`, times each head's weights, to `out`.
///
/// # Safety
/// The CPU must have `S`'s features.
#[inline(always)]
unsafe fn mix<S: Simd, E: Pooled, const HEADS: usize>(
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
