//! Attention over slot indices for bf16 pools.
//!
//! Neighbouring tokens of a sequence share the keys and values that they read: a task is a block
//! of them, and one KV head. Keys times queries gives scores with a query in each lane, so that the
//! softmax (online, Milakov and Gimelshein, 2018) needs nothing from other lanes; the weights are
//! then turned, and multiplied by the values. Queries and weights are rounded to bf16,
//! and so is what that leaves of them, for a second product; sums are f32.
//!
//! **Batch-invariant**: tiles of slots begin at multiples of [`SLOTS`] positions whoever asks, and
//! what a query does not see has the weight zero, which changes no sum.

mod packing;
mod products;
#[cfg(test)]
mod tests;
mod vectors;

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use half::bf16;
use rayon::prelude::*;

use super::{ROW_BYTES, SIDE, Tiles, available};
use crate::HeadLayout;
use crate::cpu::aligned::Aligned;
use crate::cpu::attention::SlotTable;
use crate::cpu::output::Output;
use products::{mix, score};
use vectors::{left_of_pairs, paired, power, turned};

/// Positions whose scores are weighed at once.
const SLOTS: usize = 64;
/// Elements of a tile's row.
const DEPTH: usize = 32;
/// Queries in a task, and its tokens, at most; the heads of one token are never parted.
const QUERIES: usize = 64;
const TOKENS: usize = 32;

/// Whether heads of this size fill tiles.
pub fn fits(layout: HeadLayout) -> bool {
    available() && layout.head_dim.is_multiple_of(DEPTH)
}

/// `q` `[tokens, heads, head_dim]`, the pools `[slots, kv_heads, head_dim]`; all of `out`
/// `[tokens, heads * head_dim]` is written.
pub fn paged(
    q: &[f32],
    k_pool: &[bf16],
    v_pool: &[bf16],
    layout: HeadLayout,
    table: &SlotTable<'_>,
    out: Output,
) {
    assert!(fits(layout), "attention: tiles");
    let tokens = table.positions.len();
    let width = layout.heads * layout.head_dim;
    assert_eq!(q.len(), tokens * width, "attention: length of q");
    assert_eq!((out.tokens, out.width), (tokens, width), "attention: out");
    let group = layout.heads / layout.kv_heads;
    let blocks = blocks(table, (QUERIES / group).clamp(1, TOKENS));
    (0..blocks.len() * layout.kv_heads)
        .into_par_iter()
        .for_each(|task| {
            let tokens = blocks[task / layout.kv_heads].clone();
            SCRATCH.with_borrow_mut(|scratch| {
                let mut block = Block {
                    q,
                    k_pool,
                    v_pool,
                    layout,
                    kv_head: task % layout.kv_heads,
                    group,
                    table,
                    out,
                    scratch,
                };
                // SAFETY: the tiles are available, and with them the vectors; tasks write
                // disjoint heads of disjoint tokens.
                unsafe {
                    let _tiles = Tiles::shaped([(SIDE, ROW_BYTES); 8]);
                    if !block.attend(tokens.clone()) {
                        // A weight of zero does not hide what is not finite from those who must
                        // not see it.
                        for token in tokens {
                            block.attend(token..token + 1);
                        }
                    }
                }
            });
        });
}

thread_local! {
    /// Kept: a step of decoding has hundreds of small tasks.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Runs of at most `longest` tokens that follow each other in a sequence.
fn blocks(table: &SlotTable<'_>, longest: usize) -> Vec<Range<usize>> {
    let mut blocks: Vec<Range<usize>> = Vec::new();
    for token in 0..table.positions.len() {
        let follows = token > 0
            && table.start[token] == table.start[token - 1]
            && table.positions[token] == table.positions[token - 1] + 1;
        match blocks.last_mut() {
            Some(last) if follows && last.len() < longest => last.end += 1,
            _ => blocks.push(token..token + 1),
        }
    }
    blocks
}

/// What a task works in; `tile` is 16 queries.
#[derive(Default)]
struct Scratch {
    /// `[tile][2][head_dim / 32]` tiles of pairs of elements by queries: what they are rounded to,
    /// and what that leaves.
    q: Aligned<bf16>,
    /// `[4][head_dim / 32]` tiles of slots by elements.
    k: Aligned<bf16>,
    /// `[head_dim / 16][2]` tiles of pairs of slots by elements.
    v: Aligned<bf16>,
    /// `[4]` tiles of slots by queries.
    scores: Aligned<f32>,
    /// `[2][2]` tiles of queries by slots, in as many parts.
    weights: Aligned<bf16>,
    /// `[tile][head_dim / 16]` tiles of queries by elements.
    mixed: Aligned<f32>,
    /// `[tile][16]`
    largest: Aligned<f32>,
    sums: Aligned<f32>,
    /// What any query sees, and what all do.
    some: Range<usize>,
    every: Range<usize>,
    /// The positions that a query sees, `[tile][16]`.
    first: Aligned<i32>,
    end: Aligned<i32>,
}

struct Block<'a> {
    q: &'a [f32],
    k_pool: &'a [bf16],
    v_pool: &'a [bf16],
    layout: HeadLayout,
    kv_head: usize,
    /// Query heads of the KV head.
    group: usize,
    table: &'a SlotTable<'a>,
    out: Output,
    scratch: &'a mut Scratch,
}

impl Block<'_> {
    /// `false`, and nothing done, if there are several tokens and a value is not finite.
    ///
    /// # Safety
    /// The tiles must be shaped, and the tokens be of one sequence, and this task's.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    unsafe fn attend(&mut self, tokens: Range<usize>) -> bool {
        let dim = self.layout.head_dim;
        let queries = tokens.len() * self.group;
        let tiles = queries.div_ceil(SIDE);
        unsafe { self.prepare(tokens.clone(), tiles) };
        let (first, last) = (self.visible(tokens.start), self.visible(tokens.end - 1));
        self.scratch.some = first.start..last.end;
        self.scratch.every = last.start..first.end;
        let some = self.scratch.some.clone();
        for from in (some.start / SLOTS * SLOTS..some.end).step_by(SLOTS) {
            let here = from.max(some.start)..(from + SLOTS).min(some.end);
            let slots = &self.table.slots[self.table.start[tokens.start] as usize..][here.clone()];
            // SAFETY: `prepare` made room; a tile has that many slots.
            unsafe {
                let finite = self.gather(slots, here.start - from);
                if !finite && tokens.len() > 1 {
                    return false;
                }
                for tile in 0..tiles {
                    self.weigh(tile, from);
                }
            }
        }
        for query in 0..queries {
            let (token, head) = (tokens.start + query / self.group, query % self.group);
            let column = (self.kv_head * self.group + head) * dim;
            // SAFETY: this head is the task's.
            unsafe { self.finish(query, self.out.at(token, column)) };
        }
        true
    }

    /// The positions that a token sees.
    fn visible(&self, token: usize) -> Range<usize> {
        let end = self.table.positions[token] as usize + 1;
        end.saturating_sub(self.table.window)..end
    }

    /// Adds the gathered values, by the weights of a tile of queries; `from`: the first position.
    ///
    /// # Safety
    /// After `gather`, with the tiles shaped.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    unsafe fn weigh(&mut self, tile: usize, from: usize) {
        let dim = self.layout.head_dim;
        let s = &mut *self.scratch;
        let (lanes, q) = (tile * SIDE, tile * SIDE * dim);
        unsafe {
            let scores = s.scores.as_mut_ptr();
            // What rounding has left of the queries is added.
            for part in 0..2 {
                let q = s.q[2 * q + part * SIDE * dim..].as_ptr();
                score(s.k.as_ptr(), q, dim / DEPTH, part == 0, scores);
            }
            let first = _mm512_load_si512(s.first[lanes..].as_ptr().cast());
            let end = _mm512_load_si512(s.end[lanes..].as_ptr().cast());
            let here = |range: &Range<usize>| {
                let slot = |position: usize| position.clamp(from, from + SLOTS) - from;
                slot(range.start)..slot(range.end)
            };
            let (some, every) = (here(&s.some), here(&s.every));
            let sees = |slot: usize| {
                if every.contains(&slot) {
                    return u16::MAX;
                }
                let position = _mm512_set1_epi32((from + slot) as i32);
                _mm512_cmple_epi32_mask(first, position) & _mm512_cmpgt_epi32_mask(end, position)
            };
            let load = |slot: usize| _mm512_load_ps(scores.add(slot * SIDE));
            let old = _mm512_load_ps(s.largest[lanes..].as_ptr());
            let mut largest = [old; 4];
            for slot in some.clone() {
                let largest = &mut largest[slot % 4];
                // NaN is never the larger of two.
                *largest = _mm512_mask_max_ps(*largest, sees(slot), load(slot), *largest);
            }
            let [a, b, c, d] = largest;
            let largest = _mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d));
            let mut sums = [_mm512_setzero_ps(); 4];
            for half in 0..2 {
                let mut rows = [[_mm512_setzero_si512(); SIDE]; 2];
                #[allow(clippy::needless_range_loop, reason = "both planes are written")]
                for pair in 0..SIDE {
                    let slot = half * DEPTH + 2 * pair;
                    if slot >= some.end || slot + 1 < some.start {
                        continue;
                    }
                    let [even, odd] = [slot, slot + 1].map(|slot| {
                        let weight = power(_mm512_sub_ps(load(slot), largest));
                        let mask = if some.contains(&slot) { sees(slot) } else { 0 };
                        _mm512_maskz_mov_ps(mask, weight)
                    });
                    let at = pair % 2 * 2;
                    sums[at] = _mm512_add_ps(sums[at], even);
                    sums[at + 1] = _mm512_add_ps(sums[at + 1], odd);
                    // The even slot in the low half of each lane.
                    let pairs = paired(even, odd);
                    let [even, odd] = left_of_pairs(pairs, even, odd);
                    (rows[0][pair], rows[1][pair]) = (pairs, paired(even, odd));
                }
                for (part, rows) in rows.into_iter().enumerate() {
                    let to = s.weights.as_mut_ptr().add((2 * part + half) * SIDE * DEPTH);
                    for (query, row) in turned(rows).into_iter().enumerate() {
                        _mm512_store_si512(to.add(query * DEPTH).cast(), row);
                    }
                }
            }
            let [a, b, c, d] = sums;
            let sum = _mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d));
            // One while nothing has been seen, and where nothing larger was.
            let larger = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(old, largest);
            let one = _mm512_set1_ps(1.0);
            let correction = power(_mm512_sub_ps(old, largest));
            let correction = _mm512_mask_blend_ps(larger, one, correction);
            let sums = s.sums[lanes..].as_mut_ptr();
            _mm512_store_ps(sums, _mm512_fmadd_ps(_mm512_load_ps(sums), correction, sum));
            _mm512_store_ps(s.largest[lanes..].as_mut_ptr(), largest);
            let mixed = s.mixed[q..][..SIDE * dim].as_mut_ptr();
            if larger != 0 {
                let mut by_query = [0.0; SIDE];
                _mm512_storeu_ps(by_query.as_mut_ptr(), correction);
                for (row, by) in (0..dim).zip(by_query.into_iter().cycle()) {
                    let at = mixed.add(row * SIDE);
                    _mm512_store_ps(at, _mm512_mul_ps(_mm512_load_ps(at), _mm512_set1_ps(by)));
                }
            }
            for pair in 0..dim / DEPTH {
                let v = s.v.as_ptr().add(pair * 4 * SIDE * DEPTH);
                for part in 0..2 {
                    let weights = s.weights.as_ptr().add(part * 2 * SIDE * DEPTH);
                    mix(weights, v, mixed.add(pair * DEPTH * SIDE));
                }
            }
        }
    }

    /// Writes what a query has mixed, by the sum of its weights, to `out`.
    ///
    /// # Safety
    /// `out` must have room for a head.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    unsafe fn finish(&self, query: usize, out: *mut f32) {
        let dim = self.layout.head_dim;
        let (tile, lane) = (query / SIDE, query % SIDE);
        let mixed = &self.scratch.mixed[tile * SIDE * dim..][..SIDE * dim];
        let inverse = _mm512_set1_ps(1.0 / self.scratch.sums[query]);
        // Quarters as `gather` has parted them.
        let [low, high] = [
            [0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23],
            [8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31],
        ]
        .map(|order: [i32; 16]| unsafe { _mm512_loadu_si512(order.as_ptr().cast()) });
        for depth in 0..dim / DEPTH {
            let at = |half: usize| mixed[((2 * depth + half) * SIDE + lane) * SIDE..].as_ptr();
            // SAFETY: rows of tiles, and a head of `out`.
            unsafe {
                let [a, b] = [0, 1].map(|half| _mm512_mul_ps(_mm512_load_ps(at(half)), inverse));
                let to = out.add(depth * DEPTH);
                _mm512_storeu_ps(to, _mm512_permutex2var_ps(a, low, b));
                _mm512_storeu_ps(to.add(SIDE), _mm512_permutex2var_ps(a, high, b));
            }
        }
    }
}
