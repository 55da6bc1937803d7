//! The index of a ragged batch: the positions of its tokens and the slots of their KV.

use std::ops::Range;

use burn::tensor::backend::Backend;
use burn::tensor::ops::IntTensor;
use hearth_forward::SequenceSpan;

use crate::{HeadLayout, Summation, indices};

/// Chunks of many tokens, cut into tiles in addition to blocks. Devices with cooperative matrices
/// compute the tiles ([`Kernels::attention_tiles`](crate::Kernels::attention_tiles)); others
/// compute the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tiling {
    /// Number of tiles. In [`RaggedIndex::blocks`] they follow all blocks.
    pub tiles: usize,
    /// Number of blocks that no tile covers. They come first in [`RaggedIndex::blocks`].
    pub untiled_blocks: usize,
    /// The most tokens of such a block: 1, or `block_tokens`.
    pub untiled_tokens: usize,
}

/// The index of a ragged batch, on the device (i32 tensors).
///
/// Token `t` attends the slots `slot_table[table_start[t] + p]` for `p in 0..=positions[t]`; its
/// own keys and values go to `write_slots[t]`.
#[derive(Debug, Clone)]
pub struct RaggedIndex<B: Backend> {
    /// `[tokens]`: the position of each token in its sequence, counted from 0.
    pub positions: IntTensor<B>,
    /// `[tokens]`: the KV slot that receives each token's keys and values.
    pub write_slots: IntTensor<B>,
    /// `[tokens]`: where the slots of each token's sequence begin in `slot_table`.
    pub table_start: IntTensor<B>,
    /// The slots of every sequence in order of position, concatenated.
    pub slot_table: IntTensor<B>,
    /// `[(blocks + tiles) * 2]`: for each block its first token and its number of tokens, at most
    /// `block_tokens`. The tokens of a block belong to one sequence, so that attention reads their
    /// keys and values once for all of them. The tiles of `tiling` follow in the same form.
    pub blocks: IntTensor<B>,
    pub block_tokens: usize,
    pub block_count: usize,
    pub tiling: Tiling,
    /// The longest context, in positions.
    pub longest: usize,
    /// The order in which attention sums, which also decides how tokens are cut into blocks.
    pub summation: Summation,
}

impl<B: Backend> RaggedIndex<B> {
    /// Copies the index of a batch to `device`. `positions` and `write_slots` have one element per
    /// token; `spans` are the sequences in the order of their tokens.
    pub fn upload(
        positions: &[u32],
        write_slots: &[u32],
        spans: &[SequenceSpan],
        slot_table: &[u32],
        layout: HeadLayout,
        summation: Summation,
        device: &B::Device,
    ) -> Self {
        // Where every sequence has one token, no two tokens can share keys and values, and blocks
        // of one token are the fastest. In a fixed order of summation, a block of one keeps a
        // token's result independent of its neighbours.
        let alone = spans.iter().all(|span| span.tokens <= 1);
        let block_tokens = match alone || summation == Summation::Fixed {
            true => 1,
            false => layout.block_tokens(),
        };
        let mut start = Vec::with_capacity(positions.len());
        let (mut untiled, mut chunks, mut tiles) = (Vec::new(), Vec::new(), Vec::new());
        for span in spans {
            let first = start.len();
            let count = span.tokens as usize;
            start.extend(std::iter::repeat_n(span.first_slot, count));
            let tokens = first..start.len();
            if summation == Summation::Fastest && layout.fills_tiles(count) {
                cut(&mut chunks, tokens.clone(), block_tokens);
                cut(&mut tiles, tokens, layout.tile_tokens());
            } else {
                cut(&mut untiled, tokens, block_tokens);
            }
        }
        let tiling = Tiling {
            tiles: tiles.len(),
            untiled_blocks: untiled.len(),
            // One of two values, because a kernel is compiled for each.
            untiled_tokens: match untiled.iter().all(|[_, count]| *count == 1) {
                true => 1,
                false => block_tokens,
            },
        };
        let block_count = untiled.len() + chunks.len();
        let blocks = [untiled, chunks, tiles].concat();
        let on_device = |values: &[u32]| indices::<B>(values, device);
        Self {
            positions: on_device(positions),
            write_slots: on_device(write_slots),
            table_start: on_device(&start),
            slot_table: on_device(slot_table),
            blocks: on_device(blocks.as_flattened()),
            block_tokens,
            block_count,
            tiling,
            longest: spans
                .iter()
                .map(|span| span.context as usize)
                .max()
                .unwrap_or(0),
            summation,
        }
    }
}

/// Cuts the `tokens` of one sequence into blocks of at most `most` tokens.
fn cut(blocks: &mut Vec<[u32; 2]>, tokens: Range<usize>, most: usize) {
    let end = tokens.end;
    blocks.extend(
        tokens
            .step_by(most)
            .map(|from| [from as u32, most.min(end - from) as u32]),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Int, Tensor};
    use burn_flex::Flex;

    fn blocks(spans: &[(u32, u32)], layout: HeadLayout, summation: Summation) -> (Vec<i32>, usize) {
        let index = upload(spans, layout, summation);
        (read(index.blocks), index.block_tokens)
    }

    fn read(blocks: IntTensor<Flex>) -> Vec<i32> {
        let blocks = Tensor::<Flex, 1, Int>::from_primitive(blocks).into_data();
        blocks.into_vec().unwrap()
    }

    fn upload(spans: &[(u32, u32)], layout: HeadLayout, summation: Summation) -> RaggedIndex<Flex> {
        let mut first_slot = 0;
        let spans: Vec<SequenceSpan> = spans
            .iter()
            .map(|&(context, tokens)| {
                first_slot += context;
                SequenceSpan {
                    context,
                    tokens,
                    first_slot: first_slot - context,
                }
            })
            .collect();
        let tokens = spans.iter().map(|span| span.tokens as usize).sum();
        let (positions, slots) = (vec![0; tokens], vec![0; first_slot as usize]);
        RaggedIndex::<Flex>::upload(
            &positions,
            &positions,
            &spans,
            &slots,
            layout,
            summation,
            &Default::default(),
        )
    }

    #[test]
    fn tokens_are_cut_into_blocks_that_never_span_two_sequences() {
        let layout = HeadLayout {
            heads: 8,
            kv_heads: 2,
            head_dim: 64,
        };
        assert_eq!(layout.block_tokens(), 2);
        let (cut, size) = blocks(&[(9, 5), (3, 1), (2, 2)], layout, Summation::Fastest);
        assert_eq!((cut, size), (vec![0, 2, 2, 2, 4, 1, 5, 1, 6, 2], 2));
        let (cut, size) = blocks(&[(9, 1), (3, 1)], layout, Summation::Fastest);
        assert_eq!((cut, size), (vec![0, 1, 1, 1], 1));
        // In a fixed order, every token has a block of its own.
        let (cut, size) = blocks(&[(9, 2), (3, 1)], layout, Summation::Fixed);
        assert_eq!((cut, size), (vec![0, 1, 1, 1, 2, 1], 1));
    }

    #[test]
    fn chunks_of_many_tokens_come_last_and_are_cut_into_tiles_too() {
        let layout = HeadLayout {
            heads: 8,
            kv_heads: 2,
            head_dim: 64,
        };
        let index = |spans: &[(u32, u32)], order| upload(spans, layout, order);
        // A tile has 16 tokens of 4 heads; chunks of 8 tokens are cut into tiles, chunks of 7 are
        // not.
        let index_of = index(&[(20, 17), (5, 1), (9, 7), (8, 8)], Summation::Fastest);
        let tiling = Tiling {
            tiles: 3,
            untiled_blocks: 5,
            untiled_tokens: 2,
        };
        assert_eq!(index_of.tiling, tiling);
        assert_eq!(
            (index_of.block_count, index_of.block_tokens),
            (5 + 9 + 4, 2)
        );
        let blocks = read(index_of.blocks);
        assert_eq!(blocks[..10], [17, 1, 18, 2, 20, 2, 22, 2, 24, 1]);
        assert_eq!(blocks[10..14], [0, 2, 2, 2]);
        assert_eq!(blocks[36..], [0, 16, 16, 1, 25, 8]);
        // Beside a chunk, decode rows are blocks of one token.
        let tiling = index(&[(20, 17), (5, 1), (6, 1)], Summation::Fastest).tiling;
        assert_eq!((tiling.untiled_blocks, tiling.untiled_tokens), (2, 1));
        // In a fixed order, nothing may depend on a token's place in its chunk, so there are no
        // tiles.
        let tiling = index(&[(20, 17), (5, 1)], Summation::Fixed).tiling;
        assert_eq!((tiling.tiles, tiling.untiled_blocks), (0, 18));
    }

    #[test]
    fn a_tile_has_heads_of_one_group_and_as_many_tokens_as_its_rows_allow() {
        let tile = |heads, kv_heads| {
            let layout = HeadLayout {
                heads,
                kv_heads,
                head_dim: 64,
            };
            (layout.tile_heads(), layout.tile_tokens())
        };
        assert_eq!(tile(32, 8), (4, 16));
        assert_eq!(tile(28, 4), (7, 9));
        assert_eq!(tile(16, 16), (1, 64));
        assert_eq!(tile(96, 1), (48, 1));
    }

    #[test]
    fn the_heads_of_a_block_divide_their_group() {
        let shared = |heads, kv_heads| {
            let layout = HeadLayout {
                heads,
                kv_heads,
                head_dim: 64,
            };
            (layout.shared_heads(), layout.block_tokens())
        };
        assert_eq!(shared(32, 8), (4, 2));
        assert_eq!(shared(28, 4), (7, 1));
        assert_eq!(shared(16, 16), (1, 8));
        assert_eq!(shared(48, 1), (8, 1));
        assert_eq!(shared(11, 1), (1, 8));
    }
}
