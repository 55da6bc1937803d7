//! Attention over slot indices on the tiles, for bf16 pools.
//!
//! Neighbouring tokens of a sequence share the keys and values that they attend, so a task is a
//! block of such tokens and one KV head ([`block`]). Keys times queries gives the scores, with one
//! query per column, and the weights of an online softmax (Milakov and Gimelshein, arXiv
//! 1805.02867) are multiplied with the values. Queries and weights are split into two bf16 parts,
//! the rounded number and the rounded rest, and each part has a product of its own. Sums are f32.
//!
//! Every [`CHUNK`] positions have a softmax of their own, and the chunks are merged in their order,
//! as in Flash-Decoding. Where few sequences decode, chunks become separate tasks.
//!
//! **Batch-invariant**: tiles of slots and chunks begin at multiples of [`SLOTS`] and [`CHUNK`]
//! positions for every request. A position that a query does not attend has the weight zero, which
//! changes no sum. Few queries are computed with one slot per lane and many queries with one query
//! per lane, in the same order of operations.

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

/// Positions whose scores are turned into weights at once.
const SLOTS: usize = 64;
/// Positions of a chunk.
const CHUNK: usize = 4 * SLOTS;
/// Elements of a row of a tile.
const DEPTH: usize = 32;
/// The most queries and the most tokens of a task. The heads of a token always stay together.
const QUERIES: usize = 64;
const TOKENS: usize = 32;
/// Tasks per thread that keep all threads busy to the end.
const TASKS_PER_THREAD: usize = 4;

/// True if attention with these heads can use the tiles.
pub fn fits(layout: HeadLayout) -> bool {
    available() && layout.head_dim.is_multiple_of(DEPTH)
}

/// Attention of `q` `[tokens, heads, head_dim]` over the pools `[slots, kv_heads, head_dim]`. The
/// products of queries and keys are multiplied by `scale`. All of `out`
/// `[tokens, heads * head_dim]` is written.
pub fn paged(
    q: &[f32],
    k_pool: &[bf16],
    v_pool: &[bf16],
    layout: HeadLayout,
    scale: f32,
    table: &SlotTable<'_>,
    out: Output,
) {
    assert!(
        fits(layout),
        "attention: matrix tiles are not available or do not fit"
    );
    let tokens = table.positions.len();
    let width = layout.heads * layout.head_dim;
    assert_eq!(q.len(), tokens * width, "attention: length of q");
    assert_eq!(
        (out.tokens, out.width),
        (tokens, width),
        "attention: shape of out"
    );
    let group = layout.heads / layout.kv_heads;
    let blocks = blocks(table, (QUERIES / group).clamp(1, TOKENS));
    let block = |kv_head| Block {
        q,
        k_pool,
        v_pool,
        layout,
        scale,
        kv_head,
        group,
        table,
    };
    if blocks.len() * layout.kv_heads < TASKS_PER_THREAD * rayon::current_num_threads() {
        let partial = Partial::of(layout, table, &blocks);
        if partial.is_worth_it() {
            return partial.merged(out, |tokens, chunk, kv_head, to| {
                with_scratch(|scratch| {
                    // SAFETY: `with_scratch` shapes the tiles; the tokens of a block belong to one
                    // sequence; `to` has the rows of this task's chunk, and no other task has its
                    // head in them.
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
                // SAFETY: `with_scratch` shapes the tiles; the tokens of a block belong to one
                // sequence; tasks write disjoint heads of disjoint tokens.
                unsafe { block(task % layout.kv_heads).attend(tokens, scratch, out) };
            });
        });
}

thread_local! {
    /// Kept between tasks, because a decode step has hundreds of small tasks.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Runs `task` with this thread's scratch memory and with its tiles shaped.
fn with_scratch(task: impl FnOnce(&mut Scratch)) {
    SCRATCH.with_borrow_mut(|scratch| {
        // SAFETY: `paged` has checked that the tiles are available, and the shapes are valid.
        let _tiles = unsafe { Tiles::shaped([(SIDE, ROW_BYTES); 8]) };
        task(scratch);
    });
}

/// Blocks of at most `longest` tokens that follow each other in a sequence.
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

/// The positions that a token attends.
fn visible(table: &SlotTable<'_>, token: usize) -> Range<usize> {
    let end = table.positions[token] as usize + 1;
    end.saturating_sub(table.window)..end
}
