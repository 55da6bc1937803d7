//! The weights of many queries, with one query per lane.

use std::arch::x86_64::*;

use super::block::{Block, Scratch};
use super::packing::Keys;
use super::products::{mix, score};
use super::vectors::{interleaved, power, residual_of_pairs, transposed};
use super::{DEPTH, SIDE, SLOTS};

impl Block<'_> {
    /// Adds the packed values, weighted for a tile of queries. `from` is the first position.
    ///
    /// # Safety
    /// The tiles must be shaped, and `prepare`, `pack_values` and `keys` must have been called.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    pub unsafe fn weigh_many(&self, tile: usize, from: usize, keys: Keys, s: &mut Scratch) {
        let dim = self.layout.head_dim;
        let (lanes, q) = (tile * SIDE, tile * SIDE * dim);
        // SAFETY: the caller guarantees shaped tiles and packed operands. `prepare` has made room
        // for every query of the tile in the scratch memory, which begins at cache lines.
        unsafe {
            let scores = s.scores.as_mut_ptr();
            score(keys, s.q[2 * q..].as_ptr(), dim / DEPTH, scores);
            let old = _mm512_load_ps(s.chunk.largest[lanes..].as_ptr());
            let largest_and_sum =
                if s.seen_by_all.start <= from && from + SLOTS <= s.seen_by_all.end {
                    weights(|_| u16::MAX, old, s)
                } else {
                    let first = _mm512_load_si512(s.first[lanes..].as_ptr().cast());
                    let end = _mm512_load_si512(s.end[lanes..].as_ptr().cast());
                    let seen_by_any = s.seen_by_any.clone();
                    let sees = |slot: usize| {
                        let position = _mm512_set1_epi32((from + slot) as i32);
                        let sees = _mm512_cmple_epi32_mask(first, position)
                            & _mm512_cmpgt_epi32_mask(end, position);
                        // Missing queries attend everything, so limit all queries to what some
                        // query attends.
                        if seen_by_any.contains(&(from + slot)) {
                            sees
                        } else {
                            0
                        }
                    };
                    weights(sees, old, s)
                };
            let (largest, sum) = largest_and_sum;
            // The factor is 1 as long as nothing was attended, and where the maximum stays the
            // same.
            let larger = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(old, largest);
            let one = _mm512_set1_ps(1.0);
            let correction = power(_mm512_sub_ps(old, largest));
            let correction = _mm512_mask_blend_ps(larger, one, correction);
            let sums = s.chunk.sums[lanes..].as_mut_ptr();
            _mm512_store_ps(sums, _mm512_fmadd_ps(_mm512_load_ps(sums), correction, sum));
            _mm512_store_ps(s.chunk.largest[lanes..].as_mut_ptr(), largest);
            if larger != 0 {
                let mut by_query = [0.0; SIDE];
                _mm512_storeu_ps(by_query.as_mut_ptr(), correction);
                for (query, by) in by_query.into_iter().enumerate() {
                    s.chunk.scale(lanes + query, dim, by);
                }
            }
            let mixed = s.chunk.mixed[q..][..SIDE * dim].as_mut_ptr();
            mix(s.weights.as_ptr(), s.v.as_ptr(), mixed, dim / SIDE);
        }
    }
}

/// Turns the scores into weights in the layout of the tiles. Returns the largest scores and the
/// sums of the weights. `sees` returns the queries that attend a slot.
///
/// # Safety
/// `prepare` must have made room in the scratch memory.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
#[inline]
unsafe fn weights(
    sees: impl Fn(usize) -> __mmask16,
    old: __m512,
    s: &mut Scratch,
) -> (__m512, __m512) {
    // SAFETY: `prepare` has made room for 64 slots by 16 queries of scores and of weights in two
    // parts, and both begin at cache lines.
    unsafe {
        let scores = s.scores.as_ptr();
        let mut largest = [old; 4];
        for at in (0..SLOTS).step_by(4) {
            for (i, largest) in largest.iter_mut().enumerate() {
                let score = _mm512_load_ps(scores.add((at + i) * SIDE));
                // `max` returns its second operand if the first is NaN, so NaN never becomes the
                // maximum.
                *largest = _mm512_mask_max_ps(*largest, sees(at + i), score, *largest);
            }
        }
        let [a, b, c, d] = largest;
        let largest = _mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d));
        // The sums are added up in the same order as by `fold`, which is used for few queries.
        let mut sums = [_mm512_setzero_ps(); SIDE];
        for half in 0..2 {
            let mut rows = [[_mm512_setzero_si512(); SIDE]; 2];
            #[allow(clippy::needless_range_loop, reason = "both planes are written")]
            for pair in 0..SIDE {
                let slot = half * DEPTH + 2 * pair;
                let mut weights = [_mm512_setzero_ps(); 2];
                for (i, weight) in weights.iter_mut().enumerate() {
                    let score = _mm512_load_ps(scores.add((slot + i) * SIDE));
                    let all = power(_mm512_sub_ps(score, largest));
                    *weight = _mm512_maskz_mov_ps(sees(slot + i), all);
                    let sum = &mut sums[(slot + i) % SIDE];
                    *sum = _mm512_add_ps(*sum, *weight);
                }
                // The even slot is in the low half of each lane.
                let [even, odd] = weights;
                let pairs = interleaved(even, odd);
                let [even, odd] = residual_of_pairs(pairs, even, odd);
                (rows[0][pair], rows[1][pair]) = (pairs, interleaved(even, odd));
            }
            for (part, rows) in rows.into_iter().enumerate() {
                let to = s.weights.as_mut_ptr().add((2 * part + half) * SIDE * DEPTH);
                for (query, row) in transposed(rows).into_iter().enumerate() {
                    _mm512_store_si512(to.add(query * DEPTH).cast(), row);
                }
            }
        }
        for width in [8, 4, 2, 1] {
            for i in 0..width {
                sums[i] = _mm512_add_ps(sums[i], sums[i + width]);
            }
        }
        (largest, sums[0])
    }
}
