//! Attention over slot indices: a task per token and KV head, online softmax.

use rayon::prelude::*;

use super::simd::{Simd, Stored, Task, add_scaled, dispatch, dot, exp};
use crate::HeadLayout;

/// Positions scored before their values are mixed in.
const TILE: usize = 64;

pub struct SlotTable<'a> {
    pub positions: &'a [i32],
    pub start: &'a [i32],
    pub slots: &'a [i32],
    /// How many of the last positions a token sees.
    pub window: usize,
}

impl SlotTable<'_> {
    /// The slots that a token attends, oldest first.
    fn visible(&self, token: usize) -> &[i32] {
        let end = self.positions[token] as usize + 1;
        let start = end.saturating_sub(self.window);
        let table = &self.slots[self.start[token] as usize..];
        &table[start..end]
    }
}

/// `q` and `out` are `[tokens, heads, head_dim]`, the pools `[slots, kv_heads, head_dim]`.
pub fn paged<E: Stored>(
    q: &[f32],
    k_pool: &[E],
    v_pool: &[E],
    layout: HeadLayout,
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
            kv_head,
            slots,
            out,
        });
    });
}

/// The query heads of one token that read one KV head.
struct Group<'a, E> {
    q: &'a [f32],
    k_pool: &'a [E],
    v_pool: &'a [E],
    layout: HeadLayout,
    kv_head: usize,
    slots: &'a [i32],
    out: &'a mut [f32],
}

impl<E: Stored> Task for Group<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let dim = self.layout.head_dim;
        let row = |slot: i32| {
            let at = (slot as usize * self.layout.kv_heads + self.kv_head) * dim;
            at..at + dim
        };
        let scale = 1.0 / (dim as f32).sqrt();
        for (q, out) in self.q.chunks_exact(dim).zip(self.out.chunks_exact_mut(dim)) {
            let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0f32);
            out.fill(0.0);
            for slots in self.slots.chunks(TILE) {
                let mut scores = [0.0f32; TILE];
                let scores = &mut scores[..slots.len()];
                let mut new_max = max;
                for (score, slot) in scores.iter_mut().zip(slots) {
                    *score = unsafe { dot::<S, E>(q, &self.k_pool[row(*slot)]) } * scale;
                    new_max = new_max.max(*score);
                }
                // Zero at first: exp saturates far below any other weight.
                let correction = if max == f32::NEG_INFINITY {
                    0.0
                } else {
                    exp(max - new_max)
                };
                out.iter_mut().for_each(|out| *out *= correction);
                sum *= correction;
                max = new_max;
                for (score, slot) in scores.iter().zip(slots) {
                    let weight = exp(score - max);
                    sum += weight;
                    unsafe { add_scaled::<S, E>(out, weight, &self.v_pool[row(*slot)]) };
                }
            }
            let inverse = 1.0 / sum;
            out.iter_mut().for_each(|out| *out *= inverse);
        }
    }
}
