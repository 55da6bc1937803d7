//! Attention over slot indices.
//!
//! A cube computes a block of tokens of one sequence, for query heads that share a KV head: each
//! key and each value is read once for all of these rows. For each tile of positions, every unit
//! first computes the scores of one position; then groups of units, with one vector of the head
//! each, add up the weighted values. The softmax is online (Milakov and Gimelshein, arXiv
//! 1805.02867), so no memory grows with the context.
//!
//! Where this gives fewer cubes than the device runs at once, as when few sequences decode, the
//! positions are split over several cubes whose results are merged afterwards ([`merge`], as in
//! Flash-Decoding).
//!
//! Where the device has cooperative matrices, chunks of many tokens are cut into tiles instead,
//! which have a kernel of their own ([`tiles`]). Tokens that no tile covers use the kernel above, and
//! so do all tokens over pools of integers.
//!
//! In a fixed order ([`Summation::Fixed`]) a block is one token, and its positions are always split
//! every [`FIXED_SPLIT`] positions and merged. Chunks and decode rows use the same two compiled
//! kernels, and a longer row in the batch only adds empty splits to the others.

mod kernels;
mod plan;
mod tiles;

use burn::tensor::{DType, Shape};
use burn_cubecl::CubeRuntime;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{dims, empty_like, vector_within};
use crate::kv_format::PER_WORD;
use crate::{HeadLayout, KvFormat, Summation, Tiling};
use kernels::{Pools, attend, merge};
pub use plan::AttentionTiles;
use tiles::attend_tiles;

/// The fewest positions of a split on average, because merging takes time, too.
const POSITIONS_PER_SPLIT: usize = 128;
const MOST_SPLITS: usize = 64;
/// Cubes that keep one multiprocessor busy.
const CUBES_PER_PROCESSOR: usize = 4;
/// The number of multiprocessors to assume where the driver does not report it.
const UNKNOWN_PROCESSORS: u32 = 32;
/// Positions of a split in a fixed order.
const FIXED_SPLIT: usize = 256;
/// The most bytes of partial results. More tokens are computed one part after another.
const MOST_PARTIAL_BYTES: usize = 32 << 20;

/// The index of a batch, as [`RaggedIndex`](crate::RaggedIndex) describes it.
pub struct SlotTable<R: CubeRuntime> {
    pub positions: CubeTensor<R>,
    pub start: CubeTensor<R>,
    pub slots: CubeTensor<R>,
    pub blocks: CubeTensor<R>,
    pub block_count: usize,
    pub block_tokens: usize,
    pub tiling: Tiling,
    /// The longest context.
    pub longest: usize,
    /// How many of the last positions a token attends; 0 for all.
    pub window: u32,
    pub summation: Summation,
}

/// How scores become weights; see [`AttentionOptions`](crate::AttentionOptions).
pub struct Weighing<R: CubeRuntime> {
    pub scale: f32,
    pub cap: Option<f32>,
    pub sinks: Option<CubeTensor<R>>,
}

/// The parts of [`Weighing`] that a kernel is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Weighed {
    pub capped: bool,
    pub sinks: bool,
}

/// [`Kernels::paged_attention`](crate::Kernels::paged_attention): `q` `[tokens, heads * head_dim]`
/// over the pools `[slots, kv_heads, head_width]`.
pub fn paged<R: CubeRuntime>(
    q: CubeTensor<R>,
    layout: HeadLayout,
    mut table: SlotTable<R>,
    weighing: Weighing<R>,
    k_pool: CubeTensor<R>,
    v_pool: CubeTensor<R>,
) -> CubeTensor<R> {
    let [tokens, width] = dims(&q);
    if let Some(sinks) = &weighing.sinks {
        assert_eq!(sinks.meta.num_elements(), layout.heads, "attention: sinks");
    }
    let out = empty_like(&q, tokens, width);
    let tiles = match table.tiling.tiles {
        0 => None,
        _ => AttentionTiles::of(&q.client, layout, k_pool.dtype),
    };
    let first_tile = table.block_count;
    let mut cubes = 0;
    if let Some(tiles) = tiles {
        table.block_count = table.tiling.untiled_blocks;
        table.block_tokens = table.tiling.untiled_tokens;
        cubes = tiles.cubes() * table.tiling.tiles * (layout.heads / layout.tile_heads());
    }
    cubes += table.block_count * (layout.heads / layout.shared_heads());
    let processors = q.client.properties().hardware.num_streaming_multiprocessors;
    let processors = processors.unwrap_or(UNKNOWN_PROCESSORS) as usize;
    let plan = match table.summation {
        Summation::Fastest => Plan::quickest(&table, tokens, cubes, processors),
        Summation::Fixed => Plan::fixed(&table, tokens, layout),
    };
    // A single split writes the final result; several splits write partial results to be merged.
    let partial = plan.merged.then(|| {
        let rows = plan.tokens_at_once * layout.heads * plan.splits;
        let shape = Shape::from([rows, layout.head_dim + 2]);
        let (client, device) = (q.client.clone(), q.device.clone());
        empty_device_contiguous_dtype(client, device, shape, DType::F32)
    });
    let inputs = Inputs {
        q,
        layout,
        table,
        weighing,
        k_pool,
        v_pool,
    };
    let target = partial.as_ref().unwrap_or(&out);
    for first_token in (0..tokens).step_by(plan.tokens_at_once) {
        let here = plan.tokens_at_once.min(tokens - first_token);
        // Either all tokens are computed at once, or every token is a block of its own.
        let (first_block, blocks) = match here == tokens {
            true => (0, inputs.table.block_count),
            false => (first_token, here),
        };
        if blocks > 0 {
            inputs.attend(&plan, first_block, blocks, first_token, target);
        }
        if let Some(tiles) = tiles {
            inputs.attend_tiles(&plan, tiles, first_tile, target);
        }
        if let Some(partial) = &partial {
            let units = layout.head_dim.next_multiple_of(32);
            // SAFETY: a cube reads the `splits` partial results of its token and head, which the
            // kernels above have written, and writes that head of `out`. Units beyond the width of
            // the head do nothing.
            unsafe {
                merge::launch_unchecked(
                    &inputs.q.client,
                    CubeCount::Static(layout.heads as u32, here as u32, 1),
                    CubeDim::new_1d(units as u32),
                    partial.clone().into_array_arg(),
                    out.clone().into_array_arg(),
                    plan.splits as u32,
                    first_token as u32,
                    layout.head_dim,
                    inputs.q.dtype.into(),
                );
            }
        }
    }
    out
}

/// The tensors of a call.
struct Inputs<R: CubeRuntime> {
    q: CubeTensor<R>,
    layout: HeadLayout,
    table: SlotTable<R>,
    weighing: Weighing<R>,
    k_pool: CubeTensor<R>,
    v_pool: CubeTensor<R>,
}

impl<R: CubeRuntime> Inputs<R> {
    fn weighed(&self) -> Weighed {
        Weighed {
            capped: self.weighing.cap.is_some(),
            sinks: self.weighing.sinks.is_some(),
        }
    }

    /// The sinks. Without them, the argument has to be bound but is never read.
    fn sinks(&self) -> CubeTensor<R> {
        self.weighing.sinks.as_ref().unwrap_or(&self.q).clone()
    }

    /// Computes `blocks` blocks from `first_block` on. `target` begins with `first_token`.
    fn attend(
        &self,
        plan: &Plan,
        first_block: usize,
        blocks: usize,
        first_token: usize,
        target: &CubeTensor<R>,
    ) {
        let Self {
            q, layout, table, ..
        } = self;
        let shared = layout.shared_heads();
        let rows = shared * table.block_tokens;
        // Load 16 bytes at a time where the head's width allows it and the sums leave registers for
        // it.
        let widest = if q.dtype != DType::F32 && rows <= 4 {
            8
        } else {
            4
        };
        let integers = KvFormat::of(self.k_pool.dtype) == KvFormat::Int8;
        let vector = match integers {
            true => PER_WORD,
            false => vector_within(widest, layout.head_dim),
        };
        let pools = Pools { integers, vector };
        let width = if integers { 1 } else { vector };
        let threads = (layout.head_dim / vector).next_power_of_two().max(128);
        let groups = layout.heads / shared;
        // SAFETY: the caller has checked the batch: the slots of the table lie within the pools,
        // and the blocks' tokens within `q`. `target` has room for the results of these tokens, in
        // as many splits as the plan has.
        unsafe {
            attend::launch_unchecked(
                &q.client,
                CubeCount::Static(groups as u32, blocks as u32, plan.splits as u32),
                CubeDim::new_1d(threads as u32),
                width,
                q.clone().into_array_arg(),
                self.k_pool.clone().into_array_arg(),
                self.v_pool.clone().into_array_arg(),
                table.positions.clone().into_array_arg(),
                table.start.clone().into_array_arg(),
                table.slots.clone().into_array_arg(),
                table.blocks.clone().into_array_arg(),
                self.sinks().into_array_arg(),
                target.clone().into_array_arg(),
                self.weighing.scale,
                self.weighing.cap.unwrap_or(1.0),
                table.window,
                plan.share,
                first_block as u32,
                first_token as u32,
                layout.heads,
                layout.kv_heads,
                layout.head_dim,
                shared,
                table.block_tokens,
                threads,
                pools,
                self.weighed(),
                !plan.merged,
                q.dtype.into(),
                self.k_pool.dtype.into(),
                target.dtype.into(),
            );
        }
    }

    /// Computes the tiles, which begin at `first_tile` of the blocks.
    fn attend_tiles(
        &self,
        plan: &Plan,
        tiles: AttentionTiles,
        first_tile: usize,
        target: &CubeTensor<R>,
    ) {
        let Self {
            q, layout, table, ..
        } = self;
        let groups = layout.heads / layout.tile_heads();
        let (columns, count) = (groups * tiles.cubes(), table.tiling.tiles);
        // SAFETY: as in `attend`; the tokens of a tile are tokens of the batch, and rows of a tile
        // without a token are not written.
        unsafe {
            attend_tiles::launch_unchecked(
                &q.client,
                CubeCount::Static(columns as u32, count as u32, plan.splits as u32),
                CubeDim::new_1d(tiles.threads() as u32),
                tiles.vector,
                q.clone().into_array_arg(),
                self.k_pool.clone().into_array_arg(),
                self.v_pool.clone().into_array_arg(),
                table.positions.clone().into_array_arg(),
                table.start.clone().into_array_arg(),
                table.slots.clone().into_array_arg(),
                table.blocks.clone().into_array_arg(),
                self.sinks().into_array_arg(),
                target.clone().into_array_arg(),
                self.weighing.scale,
                self.weighing.cap.unwrap_or(1.0),
                table.window,
                first_tile as u32,
                *layout,
                tiles,
                self.weighed(),
                !plan.merged,
                q.dtype.into(),
                target.dtype.into(),
            );
        }
    }
}

/// How the positions are split, and how many tokens are computed at once.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    splits: usize,
    /// Positions of a split; 0 to split the positions of each block evenly.
    share: u32,
    /// True if the splits write partial results, to be merged.
    merged: bool,
    tokens_at_once: usize,
}

impl Plan {
    fn quickest<R: CubeRuntime>(
        table: &SlotTable<R>,
        tokens: usize,
        cubes: usize,
        processors: usize,
    ) -> Self {
        let splits = splits(cubes, table.longest, processors);
        Self {
            splits,
            share: 0,
            merged: splits > 1,
            tokens_at_once: tokens.max(1),
        }
    }

    fn fixed<R: CubeRuntime>(table: &SlotTable<R>, tokens: usize, layout: HeadLayout) -> Self {
        let seen = match table.window {
            0 => table.longest,
            window => table.longest.min(window as usize),
        };
        let splits = fixed_splits(seen);
        Self {
            splits,
            share: FIXED_SPLIT as u32,
            merged: true,
            tokens_at_once: tokens_at_once(tokens, splits, layout),
        }
    }
}

/// The number of splits: a power of two, so that the memory for partial results has few sizes.
fn splits(cubes: usize, longest: usize, processors: usize) -> usize {
    let wanted = CUBES_PER_PROCESSOR * processors / cubes.max(1);
    let most = wanted.min(longest / POSITIONS_PER_SPLIT).min(MOST_SPLITS);
    match most {
        0 => 1,
        most => 1 << most.ilog2(),
    }
}

/// The number of splits for the longest row, rounded up to a power of two for the same reason.
fn fixed_splits(seen: usize) -> usize {
    seen.div_ceil(FIXED_SPLIT).max(1).next_power_of_two()
}

/// How many tokens' partial results fit into [`MOST_PARTIAL_BYTES`].
fn tokens_at_once(tokens: usize, splits: usize, layout: HeadLayout) -> usize {
    let bytes = layout.heads * splits * (layout.head_dim + 2) * size_of::<f32>();
    (MOST_PARTIAL_BYTES / bytes).clamp(1, tokens.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_split_where_cubes_are_few_and_contexts_long() {
        // Llama-3.2-1B decoding one sequence of 1,024 on a device of 132 processors.
        assert_eq!(splits(8, 1024, 132), 8);
        assert_eq!(splits(8, 100, 132), 1);
        assert_eq!(splits(8, 300, 132), 2);
        assert_eq!(splits(8, 100_000, 132), 64);
        // 64 sequences make enough cubes by themselves.
        assert_eq!(splits(512, 1024, 132), 1);
        assert_eq!(splits(264, 4096, 132), 2);
    }

    #[test]
    fn a_fixed_order_computes_tokens_in_parts_where_partial_results_are_large() {
        assert_eq!([1, 256, 257, 100_000].map(fixed_splits), [1, 1, 2, 512]);
        let layout = HeadLayout {
            heads: 32,
            kv_heads: 8,
            head_dim: 64,
        };
        assert_eq!(tokens_at_once(64, fixed_splits(1024), layout), 64);
        assert_eq!(tokens_at_once(512, fixed_splits(32_768), layout), 31);
        assert_eq!(tokens_at_once(512, fixed_splits(10_000_000), layout), 1);
    }
}
