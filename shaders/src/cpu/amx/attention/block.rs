//! Attention of one KV head for a block of tokens.

use std::ops::Range;

use half::bf16;

use super::chunks::{self, State};
use super::{CHUNK, SIDE, SLOTS, visible};
use crate::HeadLayout;
use crate::cpu::aligned::Aligned;
use crate::cpu::attention::SlotTable;
use crate::cpu::output::Output;

/// The most queries of a tile for which one slot per lane is faster than one query per lane.
const FEW: usize = 8;

/// The working memory of a task. A `tile` has 16 queries.
#[derive(Default)]
pub struct Scratch {
    /// `[tile][2][head_dim / 32]` tiles of pairs of elements by queries: the rounded queries, and
    /// the rest.
    pub q: Aligned<bf16>,
    /// `[64][head_dim]`: keys whose slots do not follow each other in the pool.
    pub k: Aligned<bf16>,
    /// `[head_dim / 16][2]` tiles of pairs of slots by elements.
    pub v: Aligned<bf16>,
    /// `[head_dim]` zeros.
    pub zeros: Aligned<bf16>,
    /// `[4]` tiles of slots by queries.
    pub scores: Aligned<f32>,
    /// `[2][2]` tiles of queries by slots: the rounded weights, and the rest.
    pub weights: Aligned<bf16>,
    /// The state of the current chunk, and of all chunks before it.
    pub chunk: State,
    pub before: State,
    /// The positions that some query attends, and those that all queries attend.
    pub seen_by_any: Range<usize>,
    pub seen_by_all: Range<usize>,
    /// `[tile][16]`: the positions that each query attends, from `first` to before `end`.
    pub first: Aligned<i32>,
    pub end: Aligned<i32>,
}

/// One KV head of a call.
pub struct Block<'a> {
    pub q: &'a [f32],
    pub k_pool: &'a [bf16],
    pub v_pool: &'a [bf16],
    pub layout: HeadLayout,
    /// The factor of the scores.
    pub scale: f32,
    pub kv_head: usize,
    /// Query heads of each KV head.
    pub group: usize,
    pub table: &'a SlotTable<'a>,
}

impl Block<'_> {
    /// Attention of `tokens` over all positions that they attend, written to their rows of `out`.
    ///
    /// # Safety
    /// The tiles must be shaped. The tokens must belong to one sequence, and their elements of this
    /// head must be this task's.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    pub unsafe fn attend(&self, tokens: Range<usize>, s: &mut Scratch, out: Output) {
        // SAFETY: the caller's guarantees are those of `try_all`.
        if !unsafe { self.try_all(tokens.clone(), s, out) } {
            // In a product of matrices, a weight of zero does not hide a value that is not finite,
            // so each token is computed alone.
            for token in tokens {
                // SAFETY: the caller's guarantees are those of `try_all`.
                unsafe { self.try_all(token..token + 1, s, out) };
            }
        }
    }

    /// Attention of `tokens` over one chunk of positions, written to `out` in the layout of
    /// [`chunks::Partial`].
    ///
    /// # Safety
    /// As for [`attend`](Self::attend), with the rows of `out` for these tokens.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    pub unsafe fn attend_chunk(
        &self,
        tokens: Range<usize>,
        chunk: usize,
        s: &mut Scratch,
        out: Output,
    ) {
        let store = |s: &mut Scratch, tokens: Range<usize>, row: usize| {
            for query in 0..tokens.len() * self.group {
                let (token, head) = (query / self.group, query % self.group);
                let head = self.kv_head * self.group + head;
                // SAFETY: the vectors are there with the tiles, and this head of these rows is the
                // task's.
                unsafe {
                    chunks::store_partial(&s.chunk, query, self.layout, out, row + token, head)
                };
            }
        };
        // SAFETY: the caller guarantees shaped tiles and tokens of one sequence, and `prepare`
        // comes first.
        unsafe {
            self.prepare(tokens.clone(), s);
            if self.weigh_chunk(tokens.clone(), chunk, s) {
                return store(s, tokens, 0);
            }
            for (row, token) in tokens.enumerate() {
                self.prepare(token..token + 1, s);
                self.weigh_chunk(token..token + 1, chunk, s);
                store(s, token..token + 1, row);
            }
        }
    }

    /// As [`attend`](Self::attend), except that it returns `false` and writes nothing if there are
    /// several tokens and a value is not finite.
    ///
    /// # Safety
    /// As for [`attend`](Self::attend).
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    unsafe fn try_all(&self, tokens: Range<usize>, s: &mut Scratch, out: Output) -> bool {
        let queries = tokens.len() * self.group;
        // SAFETY: the caller guarantees that the tiles are there, and with them the vectors.
        unsafe { self.prepare(tokens.clone(), s) };
        let first = s.seen_by_any.start / CHUNK;
        for chunk in first..s.seen_by_any.end.div_ceil(CHUNK) {
            // SAFETY: `prepare` was called for these tokens, the tiles are shaped, and both states
            // have the same queries: `before` was the state of the first chunk.
            unsafe {
                if !self.weigh_chunk(tokens.clone(), chunk, s) {
                    return false;
                }
                if chunk == first {
                    std::mem::swap(&mut s.chunk, &mut s.before);
                } else {
                    s.before.add(&s.chunk, queries, self.layout.head_dim);
                }
            }
        }
        for query in 0..queries {
            let (token, head) = (tokens.start + query / self.group, query % self.group);
            let column = (self.kv_head * self.group + head) * self.layout.head_dim;
            // SAFETY: the caller guarantees that this head of the token is the task's, and it has
            // `head_dim` elements.
            unsafe {
                let to = out.at(token, column);
                s.before.finish(query, self.layout.head_dim, to);
            }
        }
        true
    }

    /// Computes the softmax of a chunk into `s.chunk`. Returns `false` as
    /// [`try_all`](Self::try_all) does.
    ///
    /// # Safety
    /// The tiles must be shaped, and `prepare` must have been called for the same tokens.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    unsafe fn weigh_chunk(&self, tokens: Range<usize>, chunk: usize, s: &mut Scratch) -> bool {
        let queries = tokens.len() * self.group;
        s.chunk.clear(queries.div_ceil(SIDE), self.layout.head_dim);
        let begin = s.seen_by_any.start.max(chunk * CHUNK);
        let end = s.seen_by_any.end.min((chunk + 1) * CHUNK);
        let table = &self.table.slots[self.table.start[tokens.start] as usize..];
        for from in (begin / SLOTS * SLOTS..end).step_by(SLOTS) {
            let slots = &table[from.max(begin)..(from + SLOTS).min(end)];
            self.fetch(&table[(from + SLOTS).min(end)..(from + 2 * SLOTS).min(end)]);
            // SAFETY: `prepare` has made room, and `skipped + slots.len()` is at most the 64
            // positions of a tile. Packing comes before weighing.
            unsafe {
                let skipped = from.max(begin) - from;
                let finite = match tokens.len() {
                    1 => self.pack_values::<false>(slots, skipped, s),
                    _ => self.pack_values::<true>(slots, skipped, s),
                };
                if !finite {
                    return false;
                }
                let keys = self.keys(slots, skipped, s);
                for tile in 0..queries.div_ceil(SIDE) {
                    match queries - tile * SIDE {
                        few @ ..=FEW => self.weigh_few(tile, few, from, keys, s),
                        _ => self.weigh_many(tile, from, keys, s),
                    }
                }
            }
        }
        true
    }

    /// The positions that some of the tokens attend, and those that all of them attend.
    pub fn extent(&self, tokens: Range<usize>) -> [Range<usize>; 2] {
        let (first, last) = (
            visible(self.table, tokens.start),
            visible(self.table, tokens.end - 1),
        );
        [first.start..last.end, last.start..first.end]
    }
}
