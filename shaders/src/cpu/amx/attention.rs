//! Attention over slot indices for bf16 pools.
//!
//! Neighbouring tokens of a sequence share the keys and values that they read: a task is a block
//! of them, and one KV head ([`block`]). Keys times queries gives scores with a query in each column,
//! and the weights of an online softmax (Milakov and Gimelshein, 2018) are multiplied by the values.
//! Queries and weights are rounded to bf16, and so is what that leaves of them, for a second
//! product; sums are f32.
//!
//! Every [`CHUNK`] positions have a softmax of their own, and these are merged in their order, as in
//! flash decoding: where few sequences decode, chunks are tasks as well.
//!
//! **Batch-invariant**: tiles of slots and chunks begin at multiples of [`SLOTS`] and [`CHUNK`]
//! positions whoever asks, what a query does not see has the weight zero, which changes no sum, and
//! what few queries do with a slot in each lane many do in the same order with a query in each.

mod block;
mod chunks;
mod few;
mod many;
mod packing;
mod products;
#[cfg(test)]
mod tests;
mod vectors;

use std::cell::RefCell;
use std::ops::Range;

use half::bf16;
use rayon::prelude::*;

use super::{ROW_BYTES, SIDE, Tiles, available};
use crate::HeadLayout;
use crate::cpu::attention::SlotTable;
use crate::cpu::output::Output;
use block::{Block, Scratch};
use chunks::Partial;

/// Positions whose scores are weighed at once.
const SLOTS: usize = 64;
/// Positions of a chunk.
const CHUNK: usize = 4 * SLOTS;
/// Elements of a tile's row.
const DEPTH: usize = 32;
/// Queries in a task, and its tokens, at most; the heads of one token are never parted.
const QUERIES: usize = 64;
const TOKENS: usize = 32;
/// Tasks for each thread that keep all of them busy to the end.
const TASKS_PER_THREAD: usize = 4;

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
    let block = |kv_head| Block {
        q,
        k_pool,
        v_pool,
        layout,
        kv_head,
        group,
        table,
    };
    if blocks.len() * layout.kv_heads < TASKS_PER_THREAD * rayon::current_num_threads() {
        let partial = Partial::of(layout, table, &blocks);
        if partial.is_worth_it() {
            return partial.merged(out, |tokens, chunk, kv_head, to| {
                with_scratch(|scratch| {
                    // SAFETY: the tiles are shaped; `to` is this task's.
                    unsafe { block(kv_head).attend_chunk(tokens, chunk, scratch, to) };
                });
            });
        }
    }
    (0..blocks.len() * layout.kv_heads)
        .into_par_iter()
        .for_each(|task| {
            let tokens = blocks[task / layout.kv_heads].clone();
            with_scratch(|scratch| {
                // SAFETY: the tiles are shaped; tasks write disjoint heads of disjoint tokens.
                unsafe { block(task % layout.kv_heads).attend(tokens, scratch, out) };
            });
        });
}

thread_local! {
    /// Kept: a step of decoding has hundreds of small tasks.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// With this thread's memory, and its tiles shaped.
fn with_scratch(task: impl FnOnce(&mut Scratch)) {
    SCRATCH.with_borrow_mut(|scratch| {
        // SAFETY: `paged` has asked whether they are there.
        let _tiles = unsafe { Tiles::shaped([(SIDE, ROW_BYTES); 8]) };
        task(scratch);
    });
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

/// The positions that a token sees.
fn visible(table: &SlotTable<'_>, token: usize) -> Range<usize> {
    let end = table.positions[token] as usize + 1;
    end.saturating_sub(table.window)..end
}
