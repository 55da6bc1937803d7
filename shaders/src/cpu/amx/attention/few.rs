//! The weights of few queries, with one slot per lane.

use std::arch::x86_64::*;

use super::block::{Block, Scratch};
use super::packing::Keys;
use super::products::{mix, score};
use super::vectors::{fold, largest_lane, pack, power, residual};
use super::{DEPTH, SIDE, SLOTS};

/// Vectors of slots.
const PARTS: usize = SLOTS / SIDE;

impl Block<'_> {
    /// Adds the packed values, weighted for the first `queries` queries of a tile. `from` is the
    /// first position.
    ///
    /// # Safety
    /// The tiles must be shaped, and `prepare`, `pack_values` and `keys` must have been called.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    pub unsafe fn weigh_few(
        &self,
        tile: usize,
        queries: usize,
        from: usize,
        keys: Keys,
        s: &mut Scratch,
    ) {
        let dim = self.layout.head_dim;
        let q = tile * SIDE * dim;
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let column = _mm512_slli_epi32::<{ SIDE.ilog2() }>(lanes);
        // SAFETY: the caller guarantees shaped tiles and packed operands. `prepare` has made room
        // for every query of the tile in the scratch memory, which begins at cache lines.
        unsafe {
            let scores = s.scores.as_mut_ptr();
            score(keys, s.q[2 * q..].as_ptr(), dim / DEPTH, scores);
            for query in 0..queries {
                let lane = tile * SIDE + query;
                let first = _mm512_set1_epi32(s.first[lane]);
                let end = _mm512_set1_epi32(s.end[lane]);
                let old = s.chunk.largest[lane];
                let mut sees = [0; PARTS];
                let mut values = [_mm512_setzero_ps(); PARTS];
                let mut largest = _mm512_set1_ps(old);
                for part in 0..PARTS {
                    let start = _mm512_set1_epi32((from + part * SIDE) as i32);
                    let position = _mm512_add_epi32(start, lanes);
                    sees[part] = _mm512_cmple_epi32_mask(first, position)
                        & _mm512_cmpgt_epi32_mask(end, position);
                    let at = scores.add(part * SIDE * SIDE + query);
                    values[part] = _mm512_i32gather_ps::<4>(column, at);
                    // `max` returns its second operand if the first is NaN, so NaN never becomes
                    // the maximum.
                    largest = _mm512_mask_max_ps(largest, sees[part], values[part], largest);
                }
                let new = largest_lane(largest);
                let largest = _mm512_set1_ps(new);
                let mut sum = _mm512_setzero_ps();
                for part in 0..PARTS {
                    let weight = power(_mm512_sub_ps(values[part], largest));
                    values[part] = _mm512_maskz_mov_ps(sees[part], weight);
                    sum = _mm512_add_ps(sum, values[part]);
                }
                for half in 0..2 {
                    let [low, high] = [values[2 * half], values[2 * half + 1]];
                    let row = pack(low, high);
                    let [low, high] = residual(row, low, high);
                    for (part, row) in [row, pack(low, high)].into_iter().enumerate() {
                        let at = (2 * part + half) * SIDE * DEPTH + query * DEPTH;
                        _mm512_store_si512(s.weights.as_mut_ptr().add(at).cast(), row);
                    }
                }
                // The factor is 1 as long as nothing was attended, and where the maximum stays the
                // same.
                let correction = if old == new {
                    1.0
                } else {
                    _mm512_cvtss_f32(power(_mm512_set1_ps(old - new)))
                };
                s.chunk.sums[lane] = s.chunk.sums[lane].mul_add(correction, fold(sum));
                s.chunk.largest[lane] = new;
                if old != new {
                    s.chunk.scale(lane, dim, correction);
                }
            }
            let mixed = s.chunk.mixed[q..][..SIDE * dim].as_mut_ptr();
            mix(s.weights.as_ptr(), s.v.as_ptr(), mixed, dim / SIDE);
        }
    }
}
