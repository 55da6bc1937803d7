//! The operations of a paged transformer that Burn lacks.
//!
//! [`Kernels`] extends a Burn backend. It has two implementations: [`cpu`] for
//! `Flex` (SIMD and rayon), and [`cube`] for every CubeCL runtime, one source that
//! becomes CUDA, SPIR-V (Vulkan), Metal or WGSL. Each is tested against the same
//! plain reference ([`check`]).
//!
//! Architecture Invariant: this crate knows tensors and slots, never requests.
//!
//! Shapes are written `[tokens, kv_heads, head_dim]`, row-major. `tokens` counts
//! the tokens of all sequences in a ragged batch, one sequence after another.
//! Operations panic on shapes that contradict each other: shapes come from a
//! checked model configuration, never from a client.

pub mod check;
mod cpu;
mod cube;
pub mod device;
mod products;
mod ragged;
mod sample_plan;
pub mod size_classes;
pub mod tune;
mod upload;

use burn::tensor::DType;
use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};

use tune::Products;

pub use cpu::{BLOCK, BlockFormat, BlockMatrix, LineBytes, check_limit, times as cpu_times};
pub use cube::{AttentionTiles, MOST_COPIED};
pub use products::{ProductChoice, ProductKernel};
pub use ragged::{RaggedIndex, Tiling};
pub use sample_plan::sample_plan;
pub use upload::{indices, upload};

/// Rows of queries, of a group's heads and of a block's tokens, that read keys and values
/// together: their sums live in registers.
const MAX_SHARED_ROWS: usize = 8;
/// Such rows of a tile, which is computed with cooperative matrices: theirs lie in shared memory.
const TILE_ROWS: usize = 64;
/// Rows of a sequence's chunk from which on it is cut into tiles where the device has a kernel
/// for them.
const FEWEST_TILED_ROWS: usize = 32;

/// What the order in which a row's products are summed may depend on, and so its last bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Summation {
    /// On what else is in the batch: whatever is quickest for so many rows.
    #[default]
    Fastest,
    /// On the row and its own sequence alone: it has the same bits in any batch, however a prompt
    /// is cut into chunks, cached or not. The CPU sums in no other order.
    Fixed,
}

/// How the rows of a stacked query, key and value projection are cut into heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HeadLayout {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

impl HeadLayout {
    /// Elements of one token's stacked query, key and value.
    pub fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Query heads of one group that read keys and values together.
    pub(crate) fn shared_heads(&self) -> usize {
        self.heads_within(MAX_SHARED_ROWS)
    }

    /// As many heads of a group as divide it and are no more than `rows`.
    fn heads_within(&self, rows: usize) -> usize {
        let group = self.heads / self.kv_heads;
        (1..=rows)
            .rev()
            .find(|shared| group.is_multiple_of(*shared))
            .unwrap_or(1)
    }

    /// Query heads of one group in a tile.
    pub(crate) fn tile_heads(&self) -> usize {
        self.heads_within(TILE_ROWS)
    }

    /// Tokens of one sequence in a tile.
    pub(crate) fn tile_tokens(&self) -> usize {
        TILE_ROWS / self.tile_heads()
    }

    /// Whether a chunk of so many tokens is worth tiles.
    pub(crate) fn fills_tiles(&self, tokens: usize) -> bool {
        tokens > 1 && tokens * self.tile_heads() >= FEWEST_TILED_ROWS
    }

    /// Tokens of one sequence that do so too.
    pub(crate) fn block_tokens(&self) -> usize {
        (MAX_SHARED_ROWS / self.shared_heads()).max(1)
    }
}

/// RMSNorm over each query and key head, before the rotation (Qwen3).
#[derive(Debug, Clone)]
pub struct QkNorm<B: Backend> {
    /// `[head_dim]`
    pub q: FloatTensor<B>,
    /// `[head_dim]`
    pub k: FloatTensor<B>,
    pub eps: f32,
}

/// Rotary embedding by position. Element `i` of a head pairs with
/// `i + rotary_dim / 2`, as in Hugging Face checkpoints; elements from
/// `rotary_dim` on pass through.
#[derive(Debug, Clone)]
pub struct RopeTable<B: Backend> {
    /// `[positions, rotary_dim / 2]`, f32
    pub cos: FloatTensor<B>,
    /// `[positions, rotary_dim / 2]`, f32
    pub sin: FloatTensor<B>,
    pub rotary_dim: usize,
}

/// What a driver tells of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hardware {
    /// Bytes that the units of a workgroup share.
    pub shared_memory: usize,
    /// Units that a workgroup has at most.
    pub max_units: u32,
    /// Fewest and most units of a subgroup.
    pub subgroups: (u32, u32),
    pub processors: Option<u32>,
}

/// Waits for numbers on their way to the host.
///
/// # Errors
/// Why the device does not give them.
pub type Fetched = Box<dyn FnOnce() -> Result<Vec<i32>, String>>;

/// A Burn backend with the operations of a paged transformer. What takes no [`Summation`] computes
/// each row by itself.
pub trait Kernels: Backend {
    /// Whether [`Self::project`] and [`Self::embed`] take matrices that are packed in `format`.
    fn packs(_format: BlockFormat) -> bool {
        false
    }

    /// Makes of a packed matrix what [`Self::project`] and [`Self::embed`] take in place of one of
    /// floats, and nothing else does; [`Self::packs`] must say so. What it is multiplied with, and
    /// what [`Self::embed`] returns, is in `activations`.
    fn packed(
        _matrix: BlockMatrix,
        _activations: DType,
        _device: &Self::Device,
    ) -> FloatTensor<Self> {
        unreachable!("the backend packs nothing")
    }

    /// Bytes that a matrix packed in `format` takes on a device.
    fn packed_bytes(_format: BlockFormat, _rows: usize, _columns: usize) -> usize {
        unreachable!("the backend packs nothing")
    }

    /// Whether activations are rounded to 8 bits for products with matrices in blocks of integers.
    fn rounds_activations() -> bool {
        false
    }

    /// Contiguous memory for a KV pool, `[slots, kv_heads, head_dim]`.
    fn empty_pool(device: &Self::Device, shape: [usize; 3], dtype: DType) -> FloatTensor<Self>;

    /// `None` for the CPU.
    fn hardware(device: &Self::Device) -> Option<Hardware>;

    /// Bytes that the calling thread's memory pool has taken from the device and keeps; `None`
    /// where there is no such pool, or the device does not answer.
    fn reserved_bytes(device: &Self::Device) -> Option<u64>;

    /// A linear layer: `x` `[tokens, in]` times the transpose of `weight` `[out, in]`, plus `bias`
    /// `[out]`: `[tokens, out]`. Accumulates in f32.
    fn project(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        summation: Summation,
    ) -> FloatTensor<Self>;

    /// [`Self::silu_mul`] of what [`Self::project`] gives, rounded as that is: `weight` is
    /// `[2 * inner, in]`, and the result `[tokens, inner]`.
    fn project_gated(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        summation: Summation,
    ) -> FloatTensor<Self> {
        Self::silu_mul(Self::project(x, weight, bias, summation))
    }

    /// [`Self::project`] of many tokens by `kernel`, without a bias and in [`Summation::Fastest`];
    /// `None` where it refuses the sizes, the type or the device.
    fn product_by(
        _kernel: ProductKernel,
        _x: FloatTensor<Self>,
        _weight: FloatTensor<Self>,
    ) -> Option<FloatTensor<Self>> {
        None
    }

    /// Has [`Self::project`] take these kernels from now on for `products`, and the usual one for
    /// all others.
    fn choose_products(_choice: ProductChoice, _products: &Products, _device: &Self::Device) {}

    /// Rows `ids` `[tokens]` of `table` `[vocab, hidden]`, in the type of activations.
    fn embed(table: FloatTensor<Self>, ids: IntTensor<Self>) -> FloatTensor<Self>;

    /// `x / sqrt(mean(x^2) + eps) * weight` over the last dimension of
    /// `x` `[tokens, hidden]` (Zhang and Sennrich, arXiv 1910.07467).
    fn rms_norm(x: FloatTensor<Self>, weight: FloatTensor<Self>, eps: f32) -> FloatTensor<Self>;

    /// `(sum, normed)`: the residual sum `x + delta`, and its RMSNorm.
    fn add_rms_norm(
        x: FloatTensor<Self>,
        delta: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        eps: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// SwiGLU's middle: `silu(gate) * up` of `gate_up` `[tokens, 2 * inner]`, gate
    /// first: `[tokens, inner]`.
    fn silu_mul(gate_up: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Splits `qkv` `[tokens, (heads + 2 kv_heads) * head_dim]`, normalises (when
    /// given) and rotates queries and keys, writes keys and values into the pools
    /// `[slots, kv_heads, head_dim]` at `write_slots`, and returns the queries
    /// `[tokens, heads * head_dim]`.
    fn rope_and_store(
        qkv: FloatTensor<Self>,
        layout: HeadLayout,
        norm: Option<&QkNorm<Self>>,
        rope: &RopeTable<Self>,
        index: &RaggedIndex<Self>,
        k_pool: &mut FloatTensor<Self>,
        v_pool: &mut FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// Causal softmax attention of `q` `[tokens, heads * head_dim]` over the slots
    /// of each token's sequence, with the last `window` positions only when given
    /// (the token's own included): `[tokens, heads * head_dim]`. Scores are scaled
    /// by `1 / sqrt(head_dim)`; the softmax is online and in f32 (Milakov and
    /// Gimelshein, arXiv 1805.02867). Sums as `index` says.
    fn paged_attention(
        q: FloatTensor<Self>,
        layout: HeadLayout,
        index: &RaggedIndex<Self>,
        window: Option<u32>,
        k_pool: &FloatTensor<Self>,
        v_pool: &FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// How [`Self::paged_attention`] computes chunks of many tokens in cooperative matrices; `None`
    /// where the device has none that fit, and every token goes through the one kernel. Nor are
    /// there any in a fixed order of sums.
    fn attention_tiles(
        _layout: HeadLayout,
        _dtype: DType,
        _device: &Self::Device,
    ) -> Option<AttentionTiles> {
        None
    }

    /// Has the device begin with what it was given so far.
    fn flush(_device: &Self::Device) {}

    /// Whether the backend has [`Self::sample`] and [`Self::fetch`]: GPUs do. Where this is false,
    /// the logits go to the host and the engine samples there.
    fn samples_on_device() -> bool {
        false
    }

    /// Samples one token from each row of `logits` `[rows, vocab]`, with the parameters in `plan`,
    /// which [`sample_plan`] made for as many rows. The result is `[rows]`, i32: token ids, and -1
    /// for a row in which no token can be sampled.
    ///
    /// # Panics
    /// Where [`Self::samples_on_device`] is false.
    fn sample(_logits: FloatTensor<Self>, _plan: IntTensor<Self>) -> IntTensor<Self> {
        unreachable!("the backend does not sample")
    }

    /// Queues a copy of the sampled tokens `ids` `[rows]` to the host, ahead of any work that is
    /// submitted later. The returned function waits for this copy.
    ///
    /// # Panics
    /// Where [`Self::samples_on_device`] is false.
    fn fetch(_ids: IntTensor<Self>) -> Fetched {
        unreachable!("the backend does not sample")
    }
}
