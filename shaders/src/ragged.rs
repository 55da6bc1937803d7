//! Where the tokens of a ragged batch stand and where their KV lies.

use std::ops::Range;

use burn::tensor::backend::Backend;
use burn::tensor::ops::IntTensor;
use hearth_forward::SequenceSpan;

use crate::{HeadLayout, Summation, indices};

/// Chunks of many tokens once more, for a device that computes them in tiles
/// ([`Kernels::attention_tiles`](crate::Kernels::attention_tiles)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tiling {
    /// Tiles, after all blocks.
    pub tiles: usize,
    /// The blocks before those of tiled chunks: who is in no tile.
    pub lone_blocks: usize,
    /// The most tokens of such a block: 1, or what other blocks have.
    pub lone_tokens: usize,
}

/// A ragged batch on the device (i32 tensors).
///
/// The token `t` attends the slots `slot_table[table_start[t] + p]` for
/// `p in 0..=positions[t]`; its own K and V go to `write_slots[t]`.
#[derive(Debug, Clone)]
pub struct RaggedIndex<B: Backend> {
    /// `[tokens]`
    pub positions: IntTensor<B>,
    /// `[tokens]`
    pub write_slots: IntTensor<B>,
    /// `[tokens]`
    pub table_start: IntTensor<B>,
    /// The slots of every sequence in order of position, concatenated.
    pub slot_table: IntTensor<B>,
    /// `[(blocks + tiles) * 2]`: the first and the number of up to `block_tokens` tokens of one
    /// sequence, which may read keys and values together; then those of `tiling`.
    pub blocks: IntTensor<B>,
    pub block_tokens: usize,
    pub block_count: usize,
    pub tiling: Tiling,
    /// The longest context.
    pub longest: usize,
    /// How attention sums, and what is computed beside it.
    pub summation: Summation,
}

impl<B: Backend> RaggedIndex<B> {
    /// Copies a batch to `device`; `positions` and `write_slots` are by token.
    pub fn upload(
        positions: &[u32],
        write_slots: &[u32],
        spans: &[SequenceSpan],
        slot_table: &[u32],
        layout: HeadLayout,
        summation: Summation,
        device: &B::Device,
    ) -> Self {
        // Where every sequence has one token there is nobody to share with, and a block
        // of one is the quickest. It also is the one block that no neighbour is in.
        let alone = spans.iter().all(|span| span.tokens <= 1);
        let block_tokens = match alone || summation == Summation::Fixed {
            true => 1,
            false => layout.block_tokens(),
        };
        let mut start = Vec::with_capacity(positions.len());
        let (mut lone, mut chunks, mut tiles) = (Vec::new(), Vec::new(), Vec::new());
        for span in spans {
            let first = start.len();
            let count = span.tokens as usize;
            start.extend(std::iter::repeat_n(span.first_slot, count));
            let tokens = first..start.len();
            if summation == Summation::Fastest && layout.fills_tiles(count) {
                cut(&mut chunks, tokens.clone(), block_tokens);
                cut(&mut tiles, tokens, layout.tile_tokens());
            } else {
                cut(&mut lone, tokens, block_tokens);
            }
        }
        let tiling = Tiling {
            tiles: tiles.len(),
            lone_blocks: lone.len(),
            // One of two: a kernel is compiled for each.
            lone_tokens: match lone.iter().all(|[_, count]| *count == 1) {
                true => 1,
                false => block_tokens,
            },
        };
        let block_count = lone.len() + chunks.len();
        let blocks = [lone, chunks, tiles].concat();
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

/// Adds the blocks of up to `most` of the `tokens` of one sequence.
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
        // A token has no neighbour in its block.
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
        // 16 tokens of 4 heads are a tile; 8 are worth one, 7 are not.
        let index_of = index(&[(20, 17), (5, 1), (9, 7), (8, 8)], Summation::Fastest);
        let tiling = Tiling {
            tiles: 3,
            lone_blocks: 5,
            lone_tokens: 2,
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
        // Beside a chunk, those that decode are blocks of one.
        let tiling = index(&[(20, 17), (5, 1), (6, 1)], Summation::Fastest).tiling;
        assert_eq!((tiling.lone_blocks, tiling.lone_tokens), (2, 1));
        // A token's place among others is no part of a fixed order.
        let tiling = index(&[(20, 17), (5, 1)], Summation::Fixed).tiling;
        assert_eq!((tiling.tiles, tiling.lone_blocks), (0, 18));
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
    fn heads_share_what_divides_their_group() {
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
