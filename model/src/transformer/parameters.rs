//! The parameters of a transformer, and their first values for training.

use burn::module::{Module, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{Distribution, Tensor};

use super::table::Table;
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

impl<B: Backend> Transformer<B> {
    /// Random parameters for training: matrices are normal with the standard deviation `std`, which
    /// is divided by `sqrt(2 * layers)` for the two projections that write to the residual stream
    /// (GPT-2); norms are one and biases zero.
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
