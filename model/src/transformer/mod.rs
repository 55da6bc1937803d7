//! One config-driven decoder-only transformer: Llama, Mistral, Qwen2, Qwen3.
//!
//! The parameters live in [`Transformer`], a Burn module. Two forward passes read
//! them: [`dense`] is plain Burn, differentiable, and serves training and as the
//! reference; [`paged`] serves requests over the KV pool with the operations of
//! `hearth_shaders`.
//!
//! Matrices keep Hugging Face's layout, `[out, in]`. The query, key and value
//! projections are one matrix, and so are gate and up: a decode step is bound by
//! launches and by bytes, and neither gains from three small products.

mod blocks;
mod dense;
mod export;
mod load;
mod paged;
mod table;

pub use blocks::{Blocks, Quantized};
pub use export::ExportedTensor;
pub use paged::{DeviceBatch, DeviceOutputs, PagedContext};
pub(crate) use paged::{indices, primitive, tensor};
pub use table::Table;

use burn::module::{Module, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{Distribution, Tensor};

use crate::config::ModelConfig;

/// The parameters of a decoder-only transformer.
#[derive(Module, Debug)]
pub struct Transformer<B: Backend> {
    /// Token embedding, `[vocab, hidden]`.
    pub embedding: Table<B>,
    pub layers: Vec<Layer<B>>,
    /// Final RMSNorm weight, `[hidden]`.
    pub norm: Param<Tensor<B, 1>>,
    /// Output projection, `[vocab, hidden]`; absent when tied to the embedding.
    pub lm_head: Option<Table<B>>,
}

/// The parameters of one decoder layer.
#[derive(Module, Debug)]
pub struct Layer<B: Backend> {
    /// RMSNorm before attention, `[hidden]`.
    pub attention_norm: Param<Tensor<B, 1>>,
    /// Query, key and value projections stacked, `[(heads + 2 kv_heads) * head_dim, hidden]`.
    pub qkv: Param<Tensor<B, 2>>,
    /// `[(heads + 2 kv_heads) * head_dim]`.
    pub qkv_bias: Option<Param<Tensor<B, 1>>>,
    /// RMSNorm over each query head (Qwen3), `[head_dim]`.
    pub q_norm: Option<Param<Tensor<B, 1>>>,
    /// RMSNorm over each key head (Qwen3), `[head_dim]`.
    pub k_norm: Option<Param<Tensor<B, 1>>>,
    /// Output projection of attention, `[hidden, heads * head_dim]`.
    pub output: Param<Tensor<B, 2>>,
    /// `[hidden]`.
    pub output_bias: Option<Param<Tensor<B, 1>>>,
    /// RMSNorm before the MLP, `[hidden]`.
    pub mlp_norm: Param<Tensor<B, 1>>,
    /// Gate and up projections stacked, `[2 * intermediate, hidden]`.
    pub gate_up: Param<Tensor<B, 2>>,
    /// `[2 * intermediate]`.
    pub gate_up_bias: Option<Param<Tensor<B, 1>>>,
    /// Down projection, `[hidden, intermediate]`.
    pub down: Param<Tensor<B, 2>>,
    /// `[hidden]`.
    pub down_bias: Option<Param<Tensor<B, 1>>>,
}

impl ModelConfig {
    /// Rows of the stacked query, key and value projection.
    pub fn qkv_rows(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
}

impl<B: Backend> Transformer<B> {
    /// Random parameters for training: normal with the given standard deviation,
    /// the two projections that write to the residual stream scaled down by
    /// `sqrt(2 * layers)` (GPT-2), norms one, biases zero.
    pub fn init(config: &ModelConfig, std: f64, device: &B::Device) -> Self {
        let residual_std = std / (2.0 * config.layers as f64).sqrt();
        let matrix = |rows: usize, columns: usize, std: f64| {
            Param::from_tensor(Tensor::random(
                [rows, columns],
                Distribution::Normal(0.0, std),
                device,
            ))
        };
        let table = || {
            Table::of(
                vec![matrix(config.vocab_size, config.hidden_size, std)],
                config.vocab_size,
            )
        };
        let ones = |size: usize| Param::from_tensor(Tensor::ones([size], device));
        let bias = |present: bool, size: usize| {
            present.then(|| Param::from_tensor(Tensor::zeros([size], device)))
        };
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let attention = config.heads * config.head_dim;
        let layers = (0..config.layers)
            .map(|_| Layer {
                attention_norm: ones(hidden),
                qkv: matrix(config.qkv_rows(), hidden, std),
                qkv_bias: bias(config.attention_bias.qkv, config.qkv_rows()),
                q_norm: config.qk_norm.then(|| ones(config.head_dim)),
                k_norm: config.qk_norm.then(|| ones(config.head_dim)),
                output: matrix(hidden, attention, residual_std),
                output_bias: bias(config.attention_bias.output, hidden),
                mlp_norm: ones(hidden),
                gate_up: matrix(2 * inner, hidden, std),
                gate_up_bias: bias(config.mlp_bias, 2 * inner),
                down: matrix(hidden, inner, residual_std),
                down_bias: bias(config.mlp_bias, hidden),
            })
            .collect();
        Self {
            embedding: table(),
            layers,
            norm: ones(hidden),
            lm_head: (!config.tie_word_embeddings).then(table),
        }
    }

    /// The output projection, `[vocab, hidden]`.
    pub(crate) fn lm_head(&self) -> Tensor<B, 2> {
        self.lm_head.as_ref().unwrap_or(&self.embedding).val()
    }
}
