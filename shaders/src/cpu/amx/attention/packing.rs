//! Queries, keys and values as the tiles take them.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::vectors::{left, pack, turned};
use super::{Block, DEPTH, SIDE, SLOTS};

impl Block<'_> {
    /// Makes room, packs the queries and clears the sums.
    ///
    /// # Safety
    /// The CPU must have the vectors.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    pub(super) unsafe fn prepare(&mut self, tokens: Range<usize>, tiles: usize) {
        const TILE: usize = SIDE * DEPTH;
        let dim = self.layout.head_dim;
        let s = &mut *self.scratch;
        s.q.resize(2 * tiles * SIDE * dim);
        s.k.resize(SLOTS * dim);
        s.v.resize(SLOTS * dim);
        s.scores.resize(SLOTS * SIDE);
        s.weights.resize(2 * SLOTS * SIDE);
        s.mixed.resize(tiles * SIDE * dim);
        s.mixed.fill(0.0);
        for vectors in [&mut s.largest, &mut s.sums] {
            vectors.resize(tiles * SIDE);
        }
        s.largest.fill(f32::NEG_INFINITY);
        s.sums.fill(0.0);
        // A query that is not there sees everything, so that it does not stand out.
        s.first.resize(tiles * SIDE);
        s.first.fill(0);
        s.end.resize(tiles * SIDE);
        s.end.fill(i32::MAX);
        // Weights are powers of two.
        let scale = std::f32::consts::LOG2_E / (dim as f32).sqrt();
        for tile in 0..tiles {
            for depth in 0..dim / DEPTH {
                let mut rows = [[_mm512_setzero_si512(); SIDE]; 2];
                #[allow(clippy::needless_range_loop, reason = "both planes are written")]
                for lane in 0..SIDE {
                    let query = tile * SIDE + lane;
                    let (token, head) = (tokens.start + query / self.group, query % self.group);
                    if token >= tokens.end {
                        break;
                    }
                    let head = token * self.layout.heads + self.kv_head * self.group + head;
                    let q = &self.q[head * dim + depth * DEPTH..][..DEPTH];
                    // SAFETY: the slice has two vectors.
                    let [low, high] = [0, SIDE].map(|at| unsafe {
                        _mm512_mul_ps(_mm512_loadu_ps(q.as_ptr().add(at)), _mm512_set1_ps(scale))
                    });
                    rows[0][lane] = pack(low, high);
                    let [low_left, high_left] = left(rows[0][lane], low, high);
                    rows[1][lane] = pack(low_left, high_left);
                }
                for (part, rows) in rows.into_iter().enumerate() {
                    let at = ((2 * tile + part) * (dim / DEPTH) + depth) * TILE;
                    let to = s.q[at..][..TILE].as_mut_ptr();
                    for (pair, row) in turned(rows).into_iter().enumerate() {
                        // SAFETY: a tile has 16 rows.
                        unsafe { _mm512_store_si512(to.add(pair * DEPTH).cast(), row) };
                    }
                }
            }
            for lane in 0..SIDE {
                let token = tokens.start + (tile * SIDE + lane) / self.group;
                if token < tokens.end {
                    let end = self.table.positions[token] as usize + 1;
                    s.first[tile * SIDE + lane] = end.saturating_sub(self.table.window) as i32;
                    s.end[tile * SIDE + lane] = end as i32;
                }
            }
        }
    }

    /// Packs the keys and values at `slots` as those of a tile's positions from `skipped` on; values
    /// are zero elsewhere. Whether they are finite.
    ///
    /// # Safety
    /// After `prepare`; a tile must have as many positions.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    pub(super) unsafe fn gather(&mut self, slots: &[i32], skipped: usize) -> bool {
        let dim = self.layout.head_dim;
        let depths = dim / DEPTH;
        let s = &mut *self.scratch;
        let row = |pool: &[bf16], position: usize| {
            let slot = *slots.get(position.wrapping_sub(skipped))?;
            let at = (slot as usize * self.layout.kv_heads + self.kv_head) * dim;
            Some(pool[at..at + dim].as_ptr())
        };
        let load = |row: Option<*const bf16>, depth: usize| match row {
            // SAFETY: a row has as many vectors.
            Some(row) => unsafe { _mm512_loadu_si512(row.add(depth * DEPTH).cast()) },
            None => _mm512_setzero_si512(),
        };
        let exponent = _mm512_set1_epi16(0x7f80);
        let mut infinite = 0;
        for position in skipped..skipped + slots.len() {
            let key = row(self.k_pool, position);
            let tile = position / SIDE * depths;
            for depth in 0..depths {
                let at = (tile + depth) * SIDE * DEPTH + position % SIDE * DEPTH;
                // SAFETY: `k` has room for all slots.
                unsafe { _mm512_store_si512(s.k.as_mut_ptr().add(at).cast(), load(key, depth)) };
            }
        }
        for pair in 0..SLOTS / 2 {
            let [even, odd] = [0, 1].map(|i| row(self.v_pool, 2 * pair + i));
            for depth in 0..depths {
                let (even, odd) = (load(even, depth), load(odd, depth));
                for values in [even, odd] {
                    let bits = _mm512_and_si512(values, exponent);
                    infinite |= _mm512_cmpeq_epi16_mask(bits, exponent);
                }
                // Four elements of every eight to one tile, four to the next: `finish` knows.
                let halves = [
                    _mm512_unpacklo_epi16(even, odd),
                    _mm512_unpackhi_epi16(even, odd),
                ];
                for (half, values) in halves.into_iter().enumerate() {
                    let tile = (2 * depth + half) * 2 + pair / SIDE;
                    let at = tile * SIDE * DEPTH + pair % SIDE * DEPTH;
                    // SAFETY: `v` has room for all slots.
                    unsafe { _mm512_store_si512(s.v.as_mut_ptr().add(at).cast(), values) };
                }
            }
        }
        infinite == 0
    }
}
