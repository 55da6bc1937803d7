//! The operations of a paged transformer that Burn lacks.
//!
//! [`Kernels`] extends a Burn backend. It has two implementations: [`cpu`] for
//! `Flex` (SIMD and rayon), and [`cube`] for every CubeCL runtime, one source that
//! becomes CUDA, SPIR-V (Vulkan), Metal or WGSL. Each is tested against the same
//! plain reference ([`check`]).
//!
//! **Architecture Invariant.** This crate knows tensors and slots, never requests.
//!
//! Shapes are written `[tokens, kv_heads, head_dim]`, row-major. `tokens` counts
//! the tokens of all sequences in a ragged batch, one sequence after another.
//! Operations panic on shapes that contradict each other: shapes come from a
//! checked model configuration, never from a client.

pub mod check;
mod cpu;
mod cube;
pub mod device;
mod experts;
mod kv_format;
mod low_rank;
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

pub use cpu::{
    BLOCK, BlockFormat, BlockMatrix, GROUP_ROWS, LineBytes, check_limit, times as cpu_times,
};
pub use cube::{AttentionTiles, MOST_COPIED};
pub use experts::{ChosenExperts, ExpertActivation, ExpertWeights, Experts, Routing};
pub use kv_format::KvFormat;
pub use low_rank::{AdapterGroup, AdapterIndex, LowRankStack};
pub use products::{ProductChoice, ProductKernel};
pub use ragged::{RaggedIndex, Tiling};
pub use sample_plan::sample_plan;
pub use upload::{indices, upload};

/// Rows of the queries that attention computes together, so that each key and value is read once
/// for all of them. A row is one query head of one token. The sums of the rows stay in registers.
const MAX_SHARED_ROWS: usize = 8;
/// Rows of a tile of attention, which is computed with cooperative matrices. Its rows lie in shared
/// memory.
const TILE_ROWS: usize = 64;
/// A chunk of a prompt with at least so many rows is cut into tiles, where the device has a kernel
/// for them.
const FEWEST_TILED_ROWS: usize = 32;

/// The order of summation within a row, which changes the last bits of the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Summation {
    /// The order may depend on the batch: each number of rows has its fastest kernel.
    #[default]
    Fastest,
    /// The order depends on the row and its own sequence alone. A row has the same bits in every
    /// batch, whether its prompt is cut into chunks or cached. The CPU always sums in this order.
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

    /// Query heads of one group that a block computes together.
    pub(crate) fn shared_heads(&self) -> usize {
        self.heads_within(MAX_SHARED_ROWS)
    }

    /// The largest number of heads that divides a group and is at most `rows`.
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

    /// True if a chunk of so many tokens is worth cutting into tiles.
    pub(crate) fn fills_tiles(&self, tokens: usize) -> bool {
        tokens > 1 && tokens * self.tile_heads() >= FEWEST_TILED_ROWS
    }

    /// Tokens of one sequence in a block, which is computed together.
    pub(crate) fn block_tokens(&self) -> usize {
        (MAX_SHARED_ROWS / self.shared_heads()).max(1)
    }
}

/// RMSNorm of queries and keys before the rotation: of each head (Qwen3, arXiv 2505.09388), or over
/// the heads of a token together (OLMo 2, arXiv 2501.00656).
#[derive(Debug, Clone)]
pub struct QkNorm<B: Backend> {
    /// `[head_dim]`, or `[heads * head_dim]` in [`Kernels::norm_projections`].
    pub q: FloatTensor<B>,
    /// `[head_dim]`, or `[kv_heads * head_dim]` in [`Kernels::norm_projections`].
    pub k: FloatTensor<B>,
    pub eps: f32,
}

/// The function of the gates in a gated MLP (Shazeer, arXiv 2002.05202).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Activation {
    /// `x * sigmoid(x)`, as in SwiGLU.
    #[default]
    Silu,
    /// The Gaussian error linear unit by its approximation with tanh (Hendrycks and Gimpel, arXiv
    /// 1606.08415): `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`.
    GeluTanh,
}

impl Activation {
    pub const ALL: [Activation; 2] = [Activation::Silu, Activation::GeluTanh];
}

/// How attention weighs the positions that a token sees.
#[derive(Debug, Clone)]
pub struct AttentionOptions<B: Backend> {
    /// A token attends only so many of the last positions, its own included.
    pub window: Option<u32>,
    /// The factor of the products of queries and keys.
    pub scale: f32,
    /// Bounds a score `s` to `cap * tanh(s / cap)` (Gemma 2, arXiv 2408.00118).
    pub cap: Option<f32>,
    /// `[heads]`, in the type of the activations: for each head a further score that takes a share
    /// of the softmax and has no value (GPT-OSS, arXiv 2508.10925).
    pub sinks: Option<FloatTensor<B>>,
}

impl<B: Backend> AttentionOptions<B> {
    /// Attention of all positions, scaled by `1 / sqrt(head_dim)`.
    pub fn plain(head_dim: usize) -> Self {
        Self {
            window: None,
            scale: 1.0 / (head_dim as f32).sqrt(),
            cap: None,
            sinks: None,
        }
    }
}

/// Rotary embedding by position. Element `i` of a head pairs with `i + rotary_dim / 2`, as in
/// Hugging Face checkpoints; elements from `rotary_dim` on pass through. With a `rotary_dim` of 0
/// nothing is rotated, and the tables are not read.
#[derive(Debug, Clone)]
pub struct RopeTable<B: Backend> {
    /// `[positions, rotary_dim / 2]`, f32
    pub cos: FloatTensor<B>,
    /// `[positions, rotary_dim / 2]`, f32
    pub sin: FloatTensor<B>,
    pub rotary_dim: usize,
}

/// The properties of a GPU that its driver reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hardware {
    /// Shared memory of a workgroup, in bytes.
    pub shared_memory: usize,
    /// The most units (threads) that a workgroup may have.
    pub max_units: u32,
    /// The smallest and the largest subgroup, in units.
    pub subgroups: (u32, u32),
    pub processors: Option<u32>,
}

/// Waits for numbers that are being copied to the host.
///
/// # Errors
/// The text of the device's error.
pub type Fetched = Box<dyn FnOnce() -> Result<Vec<i32>, String>>;

/// A Burn backend with the operations of a paged transformer. Operations without a [`Summation`]
/// parameter compute each row by itself, so their results never depend on the batch.
pub trait Kernels: Backend {
    /// True if [`Self::project`] and [`Self::project_gated`] accept matrices whose parts, one below
    /// another, are packed in `formats`, and [`Self::embed`] and [`Self::mix_experts`] those of one
    /// part.
    fn packs(_formats: &[BlockFormat]) -> bool {
        false
    }

    /// Copies a packed matrix to the device. The result stands for a matrix of floats, but only the
    /// operations that [`Self::packs`] names accept it, and [`Self::packs`] must be true for its
    /// formats. It is multiplied with `activations`, and [`Self::embed`] returns this type.
    fn packed(
        _matrix: BlockMatrix,
        _activations: DType,
        _device: &Self::Device,
    ) -> FloatTensor<Self> {
        unreachable!("the backend has no packed matrices")
    }

    /// Device memory of a matrix `[rows, columns]` packed in `format`, in bytes.
    fn packed_bytes(_format: BlockFormat, _rows: usize, _columns: usize) -> usize {
        unreachable!("the backend has no packed matrices")
    }

    /// True if products with matrices in blocks of integers round the activations to 8 bits.
    fn rounds_activations() -> bool {
        false
    }

    /// Contiguous memory for a KV pool, `[slots, kv_heads, head_width]` elements of `dtype`, where
    /// type and width are those of a [`KvFormat`]. Its contents are unspecified.
    fn empty_pool(device: &Self::Device, shape: [usize; 3], dtype: DType) -> FloatTensor<Self>;

    /// The bytes of a KV pool that [`Self::empty_pool`] made, if they lie in the host's memory. As
    /// for the kernels that write to a pool, there must be no other reference to it.
    fn in_memory(_pool: &mut FloatTensor<Self>) -> Option<&mut [u8]> {
        None
    }

    /// The memory of the `slots` `[rows]` of a KV pool, in words of 32 bits: `[rows, words]`, i32. A
    /// slot must have whole words.
    ///
    /// # Panics
    /// The pool lies in the host's memory ([`Self::in_memory`]).
    fn read_slots(_pool: &FloatTensor<Self>, _slots: IntTensor<Self>) -> IntTensor<Self> {
        unreachable!("the pool is in the host's memory")
    }

    /// Writes `words` `[rows, words]`, as [`Self::read_slots`] returns them, to the `slots` `[rows]`
    /// of a KV pool.
    ///
    /// # Panics
    /// The pool lies in the host's memory ([`Self::in_memory`]).
    fn write_slots(
        _pool: &mut FloatTensor<Self>,
        _slots: IntTensor<Self>,
        _words: IntTensor<Self>,
    ) {
        unreachable!("the pool is in the host's memory")
    }

    /// The properties of the GPU that its driver reports; `None` for the CPU.
    fn hardware(device: &Self::Device) -> Option<Hardware>;

    /// Bytes that the calling thread's memory pool has reserved on the device; `None` where there
    /// is no such pool or the device does not answer.
    fn reserved_bytes(device: &Self::Device) -> Option<u64>;

    /// A linear layer: `x` `[tokens, in]` times the transpose of `weight` `[out, in]`, plus `bias`
    /// `[out]`. The result is `[tokens, out]`. Accumulates in f32.
    fn project(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        summation: Summation,
    ) -> FloatTensor<Self>;

    /// [`Self::gate`] of [`Self::project`], with the same rounding in between. `weight` is `[2 *
    /// inner, in]`, and the result is `[tokens, inner]`.
    fn project_gated(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        activation: Activation,
        summation: Summation,
    ) -> FloatTensor<Self> {
        Self::gate(Self::project(x, weight, bias, summation), activation)
    }

    /// [`Self::project`] by the given `kernel`, without a bias and in [`Summation::Fastest`];
    /// `None` where the kernel does not support the sizes, the type or the device.
    fn product_by(
        _kernel: ProductKernel,
        _x: FloatTensor<Self>,
        _weight: FloatTensor<Self>,
    ) -> Option<FloatTensor<Self>> {
        None
    }

    /// Makes [`Self::project`] use the kernels of `choice` from now on for the matrices of
    /// `products`, and the default kernel for all others.
    fn choose_products(_choice: ProductChoice, _products: &Products, _device: &Self::Device) {}

    /// [`Self::project`] with the changes of `stack` for the adapters of the rows.
    fn project_changed(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        summation: Summation,
        stack: &LowRankStack<Self>,
        index: &AdapterIndex<Self>,
    ) -> FloatTensor<Self> {
        let y = Self::project(x.clone(), weight, bias, summation);
        let h = Self::shrink(x, stack, index);
        Self::expand(y, h, stack, index)
    }

    /// The numbers of `b` `[rank, output]` of one slot in the order in which [`LowRankStack::b`] has
    /// them, where `rank` is the largest rank of the stack.
    fn packed_low_rank(b: Vec<f32>, _output: usize) -> Vec<f32> {
        b
    }

    /// The first half of the changes of `stack`: `x` `[rows, in]` times the transpose of each row's
    /// `a`, `[rows, slices * rank]`. Rows of the base model and elements beyond an adapter's rank
    /// are unspecified but finite. A row never depends on the others.
    fn shrink(
        x: FloatTensor<Self>,
        stack: &LowRankStack<Self>,
        index: &AdapterIndex<Self>,
    ) -> FloatTensor<Self>;

    /// The second half: `y` `[rows, out]` times each row's scale, plus `h` `[rows, slices * rank]`
    /// times its `b`, plus its bias. Rows of the base model, and slices that an adapter does not change, are
    /// unchanged. Nothing else may refer to the memory of `y`, which may be written in place.
    fn expand(
        y: FloatTensor<Self>,
        h: FloatTensor<Self>,
        stack: &LowRankStack<Self>,
        index: &AdapterIndex<Self>,
    ) -> FloatTensor<Self>;

    /// The experts of each row of a router's `logits` `[rows, experts]`. Infinities count as the
    /// largest finite numbers of their sign and NaN as the smallest one, so that there are always
    /// experts, and their weights are finite.
    fn choose_experts(logits: FloatTensor<Self>, routing: Routing) -> ChosenExperts<Self>;

    /// The sum of the outputs of each row's experts, times their weights, in the order of `chosen`:
    /// `x` `[rows, hidden]` gives `[rows, hidden]`. A row never depends on the others. The ids must
    /// be below the number of experts, as those of [`Self::choose_experts`] are; GPUs do not check
    /// it.
    fn mix_experts(
        x: FloatTensor<Self>,
        chosen: &ChosenExperts<Self>,
        experts: &Experts<Self>,
    ) -> FloatTensor<Self>;

    /// Rows `ids` `[tokens]` of `table` `[vocab, hidden]`, in the type of the activations:
    /// `[tokens, hidden]`.
    fn embed(table: FloatTensor<Self>, ids: IntTensor<Self>) -> FloatTensor<Self>;

    /// `x / sqrt(mean(x^2) + eps) * weight` over the last dimension of `x` `[tokens, hidden]`
    /// (Zhang and Sennrich, arXiv 1910.07467). As in all norms, `weight` is f32 or of the type of
    /// `x`.
    fn rms_norm(x: FloatTensor<Self>, weight: FloatTensor<Self>, eps: f32) -> FloatTensor<Self>;

    /// The residual sum `x + scale * delta` and its RMSNorm, `[tokens, hidden]` each.
    fn add_rms_norm(
        x: FloatTensor<Self>,
        delta: FloatTensor<Self>,
        scale: f32,
        weight: FloatTensor<Self>,
        eps: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The gate of an MLP: `activation(gate) * up` of `gate_up` `[tokens, 2 * inner]`, whose gates
    /// come first. The result is `[tokens, inner]`.
    fn gate(gate_up: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self>;

    /// `x * scale` `[rows, vocab]`, and with a `cap` its bound `cap * tanh(x * scale / cap)`.
    fn scale_and_cap(x: FloatTensor<Self>, scale: f32, cap: Option<f32>) -> FloatTensor<Self>;

    /// RMSNorm over all queries of a token together and over all its keys together, in `qkv`
    /// `[tokens, (heads + 2 * kv_heads) * head_dim]`, whose values stay as they are. Nothing else
    /// may refer to the memory of `qkv`, which may be written in place.
    fn norm_projections(
        qkv: FloatTensor<Self>,
        layout: HeadLayout,
        norm: &QkNorm<Self>,
    ) -> FloatTensor<Self>;

    /// Splits `qkv` `[tokens, (heads + 2 * kv_heads) * head_dim]` into heads, normalises queries
    /// and keys if `norm` is given, rotates them (RoPE, Su et al., arXiv 2104.09864), and writes
    /// keys and values to the slots `index.write_slots` of the pools, which may have any
    /// [`KvFormat`]. Returns the queries, `[tokens, heads * head_dim]`.
    fn rope_and_store(
        qkv: FloatTensor<Self>,
        layout: HeadLayout,
        norm: Option<&QkNorm<Self>>,
        rope: &RopeTable<Self>,
        index: &RaggedIndex<Self>,
        k_pool: &mut FloatTensor<Self>,
        v_pool: &mut FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// Causal softmax attention of `q` `[tokens, heads * head_dim]` over the slots of each token's
    /// sequence in the pools, which may have any [`KvFormat`], weighed as `options` say. The result is `[tokens, heads * head_dim]`. The softmax
    /// is online and in f32 (Milakov and Gimelshein, arXiv 1805.02867). The order of summation is
    /// `index.summation`.
    fn paged_attention(
        q: FloatTensor<Self>,
        layout: HeadLayout,
        index: &RaggedIndex<Self>,
        options: &AttentionOptions<Self>,
        k_pool: &FloatTensor<Self>,
        v_pool: &FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// How [`Self::paged_attention`] computes chunks of many tokens over pools of `dtype` with
    /// cooperative matrices. `None` where the device has no matrices that fit, and for pools of
    /// integers; all tokens then use the kernel for single tokens, as they always do in
    /// [`Summation::Fixed`].
    fn attention_tiles(
        _layout: HeadLayout,
        _dtype: DType,
        _device: &Self::Device,
    ) -> Option<AttentionTiles> {
        None
    }

    /// Makes the device start the work that was queued so far.
    fn flush(_device: &Self::Device) {}

    /// True if the backend has [`Self::sample`] and [`Self::fetch`]: GPUs do. Where this is false,
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
