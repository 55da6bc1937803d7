//! The parameters of a transformer, and their first values for training.

use burn::module::{Module, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{Distribution, Tensor};

use super::table::Table;
use crate::config::{Linear, MlpTensors, ModelConfig};

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

/// The parameters of one decoder layer. The norms that a layer has depend on the family.
#[derive(Module, Debug)]
pub struct Layer<B: Backend> {
    /// RMSNorm before attention, `[hidden]`.
    pub attention_norm: Option<Param<Tensor<B, 1>>>,
    /// RMSNorm of what attention returns, `[hidden]`.
    pub attention_post_norm: Option<Param<Tensor<B, 1>>>,
    /// Query, key and value projections stacked, `[(heads + 2 kv_heads) * head_dim, hidden]`.
    pub qkv: Param<Tensor<B, 2>>,
    /// `[(heads + 2 kv_heads) * head_dim]`.
    pub qkv_bias: Option<Param<Tensor<B, 1>>>,
    /// RMSNorm of queries: over each head, `[head_dim]`, or over all, `[heads * head_dim]`.
    pub q_norm: Option<Param<Tensor<B, 1>>>,
    /// RMSNorm of keys: over each head, `[head_dim]`, or over all, `[kv_heads * head_dim]`.
    pub k_norm: Option<Param<Tensor<B, 1>>>,
    /// A further score for each head, `[heads]`.
    pub sinks: Option<Param<Tensor<B, 1>>>,
    /// Output projection of attention, `[hidden, heads * head_dim]`.
    pub output: Param<Tensor<B, 2>>,
    /// `[hidden]`.
    pub output_bias: Option<Param<Tensor<B, 1>>>,
    /// RMSNorm before the MLP, `[hidden]`.
    pub mlp_norm: Option<Param<Tensor<B, 1>>>,
    /// RMSNorm of what the MLP returns, `[hidden]`.
    pub mlp_post_norm: Option<Param<Tensor<B, 1>>>,
    pub mlp: LayerMlp<B>,
}

/// The parameters of the second half of a layer.
// There is one for each layer, so that the size of the smaller variant does not matter.
#[allow(clippy::large_enum_variant)]
#[derive(Module, Debug)]
pub enum LayerMlp<B: Backend> {
    Dense(DenseMlp<B>),
    Experts(ExpertMlp<B>),
}

/// A router and its experts.
#[derive(Module, Debug)]
pub struct ExpertMlp<B: Backend> {
    /// `[experts, hidden]`
    pub router: Param<Tensor<B, 2>>,
    /// `[experts]`
    pub router_bias: Option<Param<Tensor<B, 1>>>,
    /// The MLPs of all experts, each of whose parameters are stacked.
    pub experts: DenseMlp<B>,
    pub shared: Option<SharedExpert<B>>,
}

/// The MLP that all tokens take beside their experts.
#[derive(Module, Debug)]
pub struct SharedExpert<B: Backend> {
    pub mlp: DenseMlp<B>,
    /// The projection whose sigmoid the output is multiplied with, `[1, hidden]`.
    pub gate: Param<Tensor<B, 2>>,
}

/// The parameters of a gated MLP.
#[derive(Module, Debug)]
pub struct DenseMlp<B: Backend> {
    /// Gate and up projections stacked, `[2 * width, hidden]`.
    pub gate_up: Param<Tensor<B, 2>>,
    /// `[2 * width]`.
    pub gate_up_bias: Option<Param<Tensor<B, 1>>>,
    /// Down projection, `[hidden, width]`.
    pub down: Param<Tensor<B, 2>>,
    /// `[hidden]`.
    pub down_bias: Option<Param<Tensor<B, 1>>>,
}

impl<B: Backend> Transformer<B> {
    /// Random parameters for training: matrices are normal with the standard deviation `std`, which
    /// is divided by `sqrt(2 * layers)` for the two projections that write to the residual stream
    /// (GPT-2); norms are one, biases and sinks zero.
    pub fn init(config: &ModelConfig, std: f64, device: &B::Device) -> Self {
        let residual_std = std / (2.0 * config.layers.len() as f64).sqrt();
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
        let norm = |of: &Option<(String, usize)>| of.as_ref().map(|(_, size)| ones(*size));
        let bias = |present: bool, size: usize| {
            present.then(|| Param::from_tensor(Tensor::zeros([size], device)))
        };
        let linear = |of: &Linear, std: f64| {
            let rows = of.stack().rows();
            (matrix(rows, of.columns, std), bias(of.bias, rows))
        };
        let mlp = |gate_up: &Linear, down: &Linear| {
            let (gate_up, gate_up_bias) = linear(gate_up, std);
            let (down, down_bias) = linear(down, residual_std);
            DenseMlp {
                gate_up,
                gate_up_bias,
                down,
                down_bias,
            }
        };
        let layer = |index: usize| {
            let tensors = config.layer_tensors(index);
            let (qkv, qkv_bias) = linear(&tensors.qkv, std);
            let (output, output_bias) = linear(&tensors.output, residual_std);
            Layer {
                attention_norm: norm(&tensors.attention_norm),
                attention_post_norm: norm(&tensors.attention_post_norm),
                qkv,
                qkv_bias,
                q_norm: norm(&tensors.q_norm),
                k_norm: norm(&tensors.k_norm),
                sinks: bias(tensors.sinks.is_some(), config.heads),
                output,
                output_bias,
                mlp_norm: norm(&tensors.mlp_norm),
                mlp_post_norm: norm(&tensors.mlp_post_norm),
                mlp: match &tensors.mlp {
                    MlpTensors::Dense { gate_up, down } => LayerMlp::Dense(mlp(gate_up, down)),
                    MlpTensors::Experts {
                        router,
                        gate_up,
                        down,
                        shared,
                    } => {
                        let (router, router_bias) = linear(router, std);
                        LayerMlp::Experts(ExpertMlp {
                            router,
                            router_bias,
                            experts: mlp(gate_up, down),
                            shared: shared.as_ref().map(|shared| SharedExpert {
                                mlp: mlp(&shared.gate_up, &shared.down),
                                gate: linear(&shared.gate, std).0,
                            }),
                        })
                    }
                },
            }
        };
        Self {
            embedding: table(),
            layers: (0..config.layers.len()).map(layer).collect(),
            norm: ones(config.hidden_size),
            lm_head: (!config.tie_word_embeddings).then(table),
        }
    }

    /// The output projection, `[vocab, hidden]`.
    pub(crate) fn lm_head(&self) -> Tensor<B, 2> {
        self.lm_head.as_ref().unwrap_or(&self.embedding).val()
    }
}
