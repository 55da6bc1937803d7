//! One KV head's attention for a block of tokens.

use std::ops::Range;

use half::bf16;

use super::chunks::{self, State};
use super::{CHUNK, SIDE, SLOTS, visible};
use crate::HeadLayout;
use crate::cpu::aligned::Aligned;
use crate::cpu::attention::SlotTable;
use crate::cpu::output::Output;

/// Queries of a tile up to which a slot in each lane is quicker than a query in each.
const FEW: usize = 8;

/// What a task works in; `tile` is 16 queries.
#[derive(Default)]
pub struct Scratch {
    /// `[tile][2][head_dim / 32]` tiles of pairs of elements by queries: what they are rounded to,
    /// and what that leaves.
    pub q: Aligned<bf16>,
    /// `[64][head_dim]`, where a tile's slots do not follow each other in the pool.
    pub k: Aligned<bf16>,
    /// `[head_dim / 16][2]` tiles of pairs of slots by elements.
    pub v: Aligned<bf16>,
    /// `[head_dim]` zeros.
    pub nothing: Aligned<bf16>,
    /// `[4]` tiles of slots by queries.
    pub scores: Aligned<f32>,
    /// `[2][2]` tiles of queries by slots, in as many parts.
    pub weights: Aligned<bf16>,
    /// Of the chunk, and of all before it.
    pub chunk: State,
    pub before: State,
    /// What any query sees, and what all do.
    pub some: Range<usize>,
    pub every: Range<usize>,
    /// The positions that a query sees, `[tile][16]`.
    pub first: Aligned<i32>,
    pub end: Aligned<i32>,
}

pub struct Block<'a> {
    pub q: &'a [f32],
    pub k_pool: &'a [bf16],
    pub v_pool: &'a [bf16],
    pub layout: HeadLayout,
    pub kv_head: usize,
    /// Query heads of the KV head.
    pub group: usize,
    pub table: &'a SlotTable<'a>,
}

impl Block<'_> {
    /// All positions that `tokens` see, to their rows of `out`.
    ///
    /// # Safety
    /// The tiles must be shaped, and the tokens be of one sequence, and this task's with this head.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    pub unsafe fn attend(&self, tokens: Range<usize>, s: &mut Scratch, out: Output) {
        if !unsafe { self.try_all(tokens.clone(), s, out) } {
            // A weight of zero does not hide what is not finite from those who must not see it.
            for token in tokens {
                unsafe { self.try_all(token..token + 1, s, out) };
            }
        }
    }

    /// One chunk of them, to rows of `out` as [`chunks::Partial`] has them.
    ///
    /// # Safety
    /// As [`attend`](Self::attend).
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    pub unsafe fn attend_chunk(
        &self,
        tokens: Range<usize>,
        chunk: usize,
        s: &mut Scratch,
        out: Output,
    ) {
        let keep = |s: &mut Scratch, tokens: Range<usize>, row: usize| {
            for query in 0..tokens.len() * self.group {
                let (token, head) = (query / self.group, query % self.group);
                let head = self.kv_head * self.group + head;
                // SAFETY: this head of these rows is the task's.
                unsafe { chunks::keep(&s.chunk, query, self.layout, out, row + token, head) };
            }
        };
        unsafe {
            self.prepare(tokens.clone(), s);
            if self.weigh_chunk(tokens.clone(), chunk, s) {
                return keep(s, tokens, 0);
            }
            for (row, token) in tokens.enumerate() {
                self.prepare(token..token + 1, s);
                self.weigh_chunk(token..token + 1, chunk, s);
                keep(s, token..token + 1, row);
            }
        }
    }

    /// `false`, and nothing done, if there are several tokens and a value is not finite.
    ///
    /// # Safety
    /// As [`attend`](Self::attend).
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    unsafe fn try_all(&self, tokens: Range<usize>, s: &mut Scratch, out: Output) -> bool {
        let queries = tokens.len() * self.group;
        unsafe { self.prepare(tokens.clone(), s) };
        let first = s.some.start / CHUNK;
        for chunk in first..s.some.end.div_ceil(CHUNK) {
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
            // SAFETY: this head is the task's.
            unsafe {
                let to = out.at(token, column);
                s.before.finish(query, self.layout.head_dim, to);
            }
        }
        true
    }

    /// The softmax of a chunk's positions; `false` as [`try_all`](Self::try_all).
    ///
    /// # Safety
    /// After `prepare` for the same tokens, with the tiles shaped.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    unsafe fn weigh_chunk(&self, tokens: Range<usize>, chunk: usize, s: &mut Scratch) -> bool {
        let queries = tokens.len() * self.group;
        s.chunk.clear(queries.div_ceil(SIDE), self.layout.head_dim);
        let begin = s.some.start.max(chunk * CHUNK);
        let end = s.some.end.min((chunk + 1) * CHUNK);
        let table = &self.table.slots[self.table.start[tokens.start] as usize..];
        for from in (begin / SLOTS * SLOTS..end).step_by(SLOTS) {
            let slots = &table[from.max(begin)..(from + SLOTS).min(end)];
            self.fetch(&table[(from + SLOTS).min(end)..(from + 2 * SLOTS).min(end)]);
            // SAFETY: `prepare` made room; a tile has that many slots.
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

    /// What the tokens see: any of them, and all.
    pub fn extent(&self, tokens: Range<usize>) -> [Range<usize>; 2] {
        let (first, last) = (
            visible(self.table, tokens.start),
            visible(self.table, tokens.end - 1),
        );
        [first.start..last.end, last.start..first.end]
    }
}
