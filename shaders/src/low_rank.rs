//! Low-rank changes of one matrix by several adapters at once (LoRA, Hu et al., arXiv 2106.09685;
//! the two grouped products are those of Punica, Chen et al., arXiv 2310.18547).

use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};

use crate::indices;

/// The changes of one matrix by the adapters in all slots: `y = x W^T` becomes `y * scale + (x A^T) B +
/// bias`. The matrix may be several projections
/// stacked, each of which has a low-rank change of its own: a slice of the rows of `a` and of the
/// columns of `b`.
#[derive(Debug, Clone)]
pub struct LowRankStack<B: Backend> {
    /// `[slots * slices * rank, in]`, in the type of activations or of the weights.
    pub a: FloatTensor<B>,
    /// `[slots * rank, out]`, in the type of `a`; each slot in the order of
    /// [`Kernels::packed_low_rank`](crate::Kernels::packed_low_rank).
    pub b: FloatTensor<B>,
    /// `[slots, out]`, in the type of `a`.
    pub bias: FloatTensor<B>,
    /// `[slots, out]`, f32: factors of `y`, which are 1 but for adapters that change the lengths of
    /// the rows of the matrix (DoRA, Liu et al., arXiv 2402.09353).
    pub scale: FloatTensor<B>,
    /// `[slots * slices]`, i32: the rank of each slice, at most `rank`; 0 where an adapter does not
    /// change it. Rows of `a` and `b` beyond it are never read.
    pub ranks: IntTensor<B>,
    /// The same as `ranks`.
    pub host_ranks: Vec<u32>,
    /// `[slots]`: whether an adapter has a bias, which is zero otherwise.
    pub biased: Vec<bool>,
    /// `[slots]`: whether an adapter has factors other than 1.
    pub scaled: Vec<bool>,
    /// The columns of each slice.
    pub slices: Vec<usize>,
    /// The largest rank.
    pub rank: usize,
}

impl<B: Backend> LowRankStack<B> {
    /// True if an adapter of `index` changes this matrix.
    pub fn changes(&self, index: &AdapterIndex<B>) -> bool {
        let slices = self.slices.len();
        let of_slot = |slot: usize| &self.host_ranks[slot * slices..][..slices];
        let mut slots = index.groups.iter().map(|group| group.slot);
        slots.any(|slot| of_slot(slot).iter().any(|rank| *rank > 0))
    }

    /// Columns of [`Kernels::shrink`](crate::Kernels::shrink)'s result.
    pub fn inner(&self) -> usize {
        self.slices.len() * self.rank
    }
}

/// The rows of one adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterGroup {
    /// Counted from 0.
    pub slot: usize,
    /// Ascending.
    pub rows: Vec<u32>,
}

/// The adapter of each row of a batch.
#[derive(Debug, Clone)]
pub struct AdapterIndex<B: Backend> {
    /// `[rows]`, i32: the slot of each row, counted from 0; -1 for the base model.
    pub slots: IntTensor<B>,
    /// The rows by slot; those of the base model are in none.
    pub groups: Vec<AdapterGroup>,
}

impl<B: Backend> AdapterIndex<B> {
    /// Copies the slots of all rows, counted from 1 with 0 for the base model, to `device`. `None`
    /// if all rows are the base model's.
    pub fn upload(slots: &[u32], device: &B::Device) -> Option<Self> {
        let mut groups: Vec<AdapterGroup> = Vec::new();
        for (row, slot) in (0..).zip(slots) {
            let Some(slot) = slot.checked_sub(1) else {
                continue;
            };
            let slot = slot as usize;
            match groups.iter_mut().find(|group| group.slot == slot) {
                Some(group) => group.rows.push(row),
                None => groups.push(AdapterGroup {
                    slot,
                    rows: vec![row],
                }),
            }
        }
        if groups.is_empty() {
            return None;
        }
        // 0 becomes -1 as an i32.
        let slots: Vec<u32> = slots.iter().map(|slot| slot.wrapping_sub(1)).collect();
        Some(Self {
            slots: indices::<B>(&slots, device),
            groups,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Int, Tensor};
    use burn_flex::Flex;

    #[test]
    fn rows_are_grouped_by_adapter_in_their_order() {
        let device = Default::default();
        assert!(AdapterIndex::<Flex>::upload(&[0, 0], &device).is_none());
        let index = AdapterIndex::<Flex>::upload(&[2, 0, 1, 2], &device).unwrap();
        let group = |slot, rows: &[u32]| AdapterGroup {
            slot,
            rows: rows.to_vec(),
        };
        assert_eq!(index.groups, [group(1, &[0, 3]), group(0, &[2])]);
        let slots = Tensor::<Flex, 1, Int>::from_primitive(index.slots);
        let slots: Vec<i32> = slots.into_data().into_vec().unwrap();
        assert_eq!(slots, [1, -1, 0, 1]);
    }
}
