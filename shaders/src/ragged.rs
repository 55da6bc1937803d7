//! Where the tokens of a ragged batch stand and where their KV lies.

use burn::tensor::backend::Backend;
use burn::tensor::ops::IntTensor;
use burn::tensor::{DType, Int, Tensor, TensorData};

use crate::{HeadLayout, Summation};

/// One sequence's share of a ragged batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Positions of the sequence, its new tokens included.
    pub context: usize,
    /// New tokens: the last of its positions.
    pub tokens: usize,
    /// Where the sequence begins in the slot table.
    pub first_slot: usize,
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
    /// `[blocks * 2]`: the first and the number of up to `block_tokens` tokens of one
    /// sequence, which may read keys and values together.
    pub blocks: IntTensor<B>,
    pub block_tokens: usize,
    pub block_count: usize,
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
        spans: &[Span],
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
        let mut blocks = Vec::with_capacity(2 * positions.len().div_ceil(block_tokens));
        for span in spans {
            let first = start.len();
            start.extend(std::iter::repeat_n(span.first_slot as u32, span.tokens));
            for from in (first..start.len()).step_by(block_tokens) {
                blocks.extend([from as u32, block_tokens.min(start.len() - from) as u32]);
            }
        }
        let on_device = |values: &[u32]| indices::<B>(values, device);
        Self {
            positions: on_device(positions),
            write_slots: on_device(write_slots),
            table_start: on_device(&start),
            slot_table: on_device(slot_table),
            blocks: on_device(&blocks),
            block_tokens,
            block_count: blocks.len() / 2,
            longest: spans.iter().map(|span| span.context).max().unwrap_or(0),
            summation,
        }
    }
}

/// Ids, positions and slots are far below 2^31: i32 is what every device indexes with.
pub fn indices<B: Backend>(values: &[u32], device: &B::Device) -> IntTensor<B> {
    let values: Vec<i32> = values.iter().map(|value| *value as i32).collect();
    let length = values.len();
    Tensor::<B, 1, Int>::from_data(TensorData::new(values, [length]), (device, DType::I32))
        .into_primitive()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_flex::Flex;

    fn blocks(
        spans: &[(usize, usize)],
        layout: HeadLayout,
        summation: Summation,
    ) -> (Vec<i32>, usize) {
        let mut first_slot = 0;
        let spans: Vec<Span> = spans
            .iter()
            .map(|&(context, tokens)| {
                first_slot += context;
                Span {
                    context,
                    tokens,
                    first_slot: first_slot - context,
                }
            })
            .collect();
        let tokens = spans.iter().map(|span| span.tokens).sum();
        let (positions, slots) = (vec![0; tokens], vec![0; first_slot]);
        let index = RaggedIndex::<Flex>::upload(
            &positions,
            &positions,
            &spans,
            &slots,
            layout,
            summation,
            &Default::default(),
        );
        let blocks = Tensor::<Flex, 1, Int>::from_primitive(index.blocks).into_data();
        (blocks.into_vec().unwrap(), index.block_tokens)
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
