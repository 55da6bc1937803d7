//! Packs queries, keys and values in the layout of the tiles.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::block::{Block, Scratch};
use super::vectors::{pack, residual, transposed};
use super::{DEPTH, SIDE, SLOTS, visible};

/// Four tiles of keys, with one slot per row.
#[derive(Clone, Copy)]
pub struct Keys {
    pub tiles: [*const bf16; SLOTS / SIDE],
    /// Bytes from a slot to the next.
    pub stride: usize,
}

/// Bytes of a cache line, at the start of which each row of a tile should begin.
const CACHE_LINE: usize = 64;

impl Block<'_> {
    /// Makes room in the scratch memory and packs the queries.
    ///
    /// # Safety
    /// The CPU must have the vector instructions.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    pub unsafe fn prepare(&self, tokens: Range<usize>, s: &mut Scratch) {
        const TILE: usize = SIDE * DEPTH;
        let dim = self.layout.head_dim;
        let tiles = (tokens.len() * self.group).div_ceil(SIDE);
        [s.seen_by_any, s.seen_by_all] = self.extent(tokens.clone());
        s.q.resize(2 * tiles * SIDE * dim);
        s.k.resize(SLOTS * dim);
        s.v.resize(SLOTS * dim);
        s.zeros.resize(dim);
        s.scores.resize(SLOTS * SIDE);
        s.weights.resize(2 * SLOTS * SIDE);
        // Missing queries of the last tile attend everything, so that they do not affect
        // [`Scratch::seen_by_all`].
        s.first.resize(tiles * SIDE);
        s.first.fill(0);
        s.end.resize(tiles * SIDE);
        s.end.fill(i32::MAX);
        // The softmax uses powers of two, so scores are scaled by log2(e), too.
        let scale = std::f32::consts::LOG2_E * self.scale;
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
                    // SAFETY: the slice has 32 elements, which are two vectors.
                    let [low, high] = [0, SIDE].map(|at| unsafe {
                        _mm512_mul_ps(_mm512_loadu_ps(q.as_ptr().add(at)), _mm512_set1_ps(scale))
                    });
                    rows[0][lane] = pack(low, high);
                    let [low_left, high_left] = residual(rows[0][lane], low, high);
                    rows[1][lane] = pack(low_left, high_left);
                }
                for (part, rows) in rows.into_iter().enumerate() {
                    let at = ((2 * tile + part) * (dim / DEPTH) + depth) * TILE;
                    let to = s.q[at..][..TILE].as_mut_ptr();
                    for (pair, row) in transposed(rows).into_iter().enumerate() {
                        // SAFETY: the slice has the 16 rows of a tile, and the scratch memory
                        // begins at a cache line.
                        unsafe { _mm512_store_si512(to.add(pair * DEPTH).cast(), row) };
                    }
                }
            }
            for lane in 0..SIDE {
                let token = tokens.start + (tile * SIDE + lane) / self.group;
                if token < tokens.end {
                    let seen = visible(self.table, token);
                    s.first[tile * SIDE + lane] = seen.start as i32;
                    s.end[tile * SIDE + lane] = seen.end as i32;
                }
            }
        }
    }

    /// Prefetches the keys and values at `slots`, which are needed soon. The hardware prefetcher
    /// does not recognise the pattern: a few lines at each slot.
    #[inline]
    pub fn fetch(&self, slots: &[i32]) {
        let bytes = self.layout.head_dim * size_of::<bf16>();
        for slot in slots {
            let at = self.at(*slot);
            for pool in [self.k_pool, self.v_pool] {
                let row = pool.as_ptr().wrapping_add(at).cast::<i8>();
                for line in (0..bytes).step_by(CACHE_LINE) {
                    // SAFETY: a prefetch never faults, whatever the address.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(line)) };
                }
            }
        }
    }

    /// Where this head begins at a slot of a pool.
    #[inline]
    fn at(&self, slot: i32) -> usize {
        (slot as usize * self.layout.kv_heads + self.kv_head) * self.layout.head_dim
    }

    /// The keys at `slots`, which are the positions from `skipped` on in a tile. They are used in
    /// place if the slots follow each other and their rows begin at cache lines, and copied
    /// otherwise.
    ///
    /// # Safety
    /// `prepare` must have been called, and a tile must have room for the positions.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn keys(&self, slots: &[i32], skipped: usize, s: &mut Scratch) -> Keys {
        let dim = self.layout.head_dim;
        let row_bytes = self.layout.kv_heads * dim * size_of::<bf16>();
        let (first, aligned) = (self.at(slots[0]), row_bytes.is_multiple_of(CACHE_LINE));
        let from = self.k_pool[first..].as_ptr();
        if aligned && from.align_offset(CACHE_LINE) == 0 && consecutive(slots) {
            // The last slot lies within the pool, and so do all slots before it.
            let end = first + (SLOTS - 1) * self.layout.kv_heads * dim + dim;
            assert!(end <= self.k_pool.len(), "attention: slots beyond the pool");
            let tile = |i| from.wrapping_add(i * SIDE * self.layout.kv_heads * dim);
            return Keys {
                tiles: std::array::from_fn(tile),
                stride: row_bytes,
            };
        }
        for (position, slot) in (skipped..).zip(slots) {
            let key = self.k_pool[self.at(*slot)..][..dim].as_ptr();
            let to = s.k[position * dim..][..dim].as_mut_ptr();
            for at in (0..dim).step_by(DEPTH) {
                // SAFETY: both slices have `dim` elements, which are whole vectors, and the rows of
                // `k` begin at cache lines.
                unsafe { _mm512_store_si512(to.add(at).cast(), load(key.add(at))) };
            }
        }
        Keys {
            tiles: std::array::from_fn(|i| s.k[i * SIDE * dim..].as_ptr()),
            stride: dim * size_of::<bf16>(),
        }
    }

    /// Packs the values at `slots`, which are the positions from `skipped` on in a tile. All other
    /// positions are zero. If `FINITE`, returns whether all values are finite; otherwise the result
    /// is always `true`.
    ///
    /// # Safety
    /// `prepare` must have been called, and a tile must have room for the positions.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub unsafe fn pack_values<const FINITE: bool>(
        &self,
        slots: &[i32],
        skipped: usize,
        s: &mut Scratch,
    ) -> bool {
        let dim = self.layout.head_dim;
        let mut rows = [s.zeros.as_ptr(); SLOTS];
        for (row, slot) in rows[skipped..].iter_mut().zip(slots) {
            *row = self.v_pool[self.at(*slot)..][..dim].as_ptr();
        }
        let exponent = _mm512_set1_epi16(0x7f80);
        let mut infinite = 0;
        for (pair, [even, odd]) in rows.as_chunks::<2>().0.iter().enumerate() {
            let mut to = s.v[pair / SIDE * SIDE * DEPTH + pair % SIDE * DEPTH..].as_mut_ptr();
            for at in (0..dim).step_by(DEPTH) {
                // SAFETY: every row has `dim` elements, which are whole vectors. `v` has room for
                // two rows of tiles for each vector, two tiles apart, and begins at a cache line.
                unsafe {
                    let (even, odd) = (load(even.add(at)), load(odd.add(at)));
                    if FINITE {
                        let bits = _mm512_and_si512(even, exponent);
                        infinite |= _mm512_cmpeq_epi16_mask(bits, exponent);
                        let bits = _mm512_and_si512(odd, exponent);
                        infinite |= _mm512_cmpeq_epi16_mask(bits, exponent);
                    }
                    // Four of each eight elements go to one tile and four to the next.
                    // `chunks::write` restores the order.
                    _mm512_store_si512(to.cast(), _mm512_unpacklo_epi16(even, odd));
                    to = to.add(2 * SIDE * DEPTH);
                    _mm512_store_si512(to.cast(), _mm512_unpackhi_epi16(even, odd));
                    to = to.wrapping_add(2 * SIDE * DEPTH);
                }
            }
        }
        infinite == 0
    }
}

/// True if `slots` are as many as a tile has, and consecutive.
#[target_feature(enable = "avx512f")]
#[inline]
fn consecutive(slots: &[i32]) -> bool {
    let Ok(slots) = <&[i32; SLOTS]>::try_from(slots) else {
        return false;
    };
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    (0..SLOTS).step_by(SIDE).all(|at| {
        let wanted = _mm512_add_epi32(lanes, _mm512_set1_epi32(slots[0].wrapping_add(at as i32)));
        // SAFETY: `at + 16` is at most the length of the array.
        let slots = unsafe { _mm512_loadu_si512(slots.as_ptr().add(at).cast()) };
        _mm512_cmpeq_epi32_mask(slots, wanted) == u16::MAX
    })
}

/// Loads 32 elements.
///
/// # Safety
/// 32 elements must be readable.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn load(from: *const bf16) -> __m512i {
    // SAFETY: the caller guarantees that 64 bytes are readable; the load needs no alignment.
    unsafe { _mm512_loadu_si512(from.cast()) }
}
