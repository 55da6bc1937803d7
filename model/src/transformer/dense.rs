//! The dense forward pass in plain Burn operations: for training, and the
//! reference that the paged pass is compared with.

use std::collections::HashMap;

use burn::module::Param;
use burn::tensor::activation::{gelu_approximate, silu, softmax};
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};

use super::parameters::{DenseMlp, Layer, LayerMlp, Transformer};
use crate::config::{Activation, Mlp, ModelConfig, QkNorms, RopeConfig};

impl<B: Backend> Transformer<B> {
    /// Logits `[batch, sequence, vocab]` of `tokens` `[batch, sequence]`, every
    /// row starting at position 0. Attention is causal, so padding on the right
    /// changes nothing to its left.
    pub fn forward_dense(&self, config: &ModelConfig, tokens: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        let [batch, sequence] = tokens.dims();
        let rows = batch * sequence;
        let embedded = self.embedding.val().select(0, tokens.reshape([rows]));
        let hidden = self.hidden_dense(config, embedded, sequence);
        self.logits_dense(config, hidden)
            .reshape([batch, sequence, config.vocab_size])
    }

    /// Hidden states after the final norm, `[rows, hidden]`, of embedded tokens `[rows, hidden]`
    /// that are whole sequences of `sequence` tokens one after another. The caller embeds them,
    /// because training needs a differentiable form that is fast on GPUs: the gradient of a row
    /// selection is a serial loop there.
    pub fn hidden_dense(
        &self,
        config: &ModelConfig,
        embedded: Tensor<B, 2>,
        sequence: usize,
    ) -> Tensor<B, 2> {
        let device = embedded.device();
        let ropes: Vec<_> = config
            .ropes
            .iter()
            .map(|rope| DenseRope::new(rope, config.head_dim, sequence, &device))
            .collect();
        // One mask for all layers with the same window, because a mask is large and made on the
        // host.
        let mut masks = HashMap::new();
        let norm = |x: Tensor<B, 2>, norm: &Option<Param<Tensor<B, 1>>>| match norm {
            Some(norm) => rms_norm(x, norm.val(), config.rms_norm_eps),
            None => x,
        };
        let scaled = |x: Tensor<B, 2>, by: f32| if by == 1.0 { x } else { x * by };
        let mut hidden = scaled(embedded, config.embedding_scale);
        for (layer, of) in self.layers.iter().zip(&config.layers) {
            let mask = masks
                .entry(of.window)
                .or_insert_with(|| causal_mask(sequence, of.window, &device))
                .clone();
            let rope = of.rope.map(|rope| &ropes[rope]);
            let normed = norm(hidden.clone(), &layer.attention_norm);
            let mixed = layer.attention(config, normed, rope, sequence, mask);
            let mixed = norm(mixed, &layer.attention_post_norm);
            hidden = hidden + scaled(mixed, config.residual_scale);
            let normed = norm(hidden.clone(), &layer.mlp_norm);
            let changed = match &layer.mlp {
                LayerMlp::Dense(mlp) => mlp.apply(config.activation, normed),
                LayerMlp::Experts(mlp) => {
                    let Mlp::Experts(experts) = &of.mlp else {
                        unreachable!("the parameters were made for another description");
                    };
                    mlp.apply(experts, normed)
                }
            };
            let changed = norm(changed, &layer.mlp_post_norm);
            hidden = hidden + scaled(changed, config.residual_scale);
        }
        rms_norm(hidden, self.norm.val(), config.rms_norm_eps)
    }

    /// Logits `[rows, vocab]` of final hidden states `[rows, hidden]`. Training computes them only
    /// for the rows that it learns from.
    pub fn logits_dense(&self, config: &ModelConfig, hidden: Tensor<B, 2>) -> Tensor<B, 2> {
        let mut logits = linear(hidden, self.lm_head(), None);
        if config.logit_divisor != 1.0 {
            logits = logits / config.logit_divisor;
        }
        bounded(logits, config.logit_cap)
    }
}

// Tensors are flattened to two dimensions with whole rows wherever something is broadcast over
// them, because only then are the operations of the CPU backend vectorised, and a training step
// consists of these operations.
impl<B: Backend> Layer<B> {
    /// `x` is `[rows, hidden]`, `mask` `[1, sequence * sequence]`.
    fn attention(
        &self,
        config: &ModelConfig,
        x: Tensor<B, 2>,
        rope: Option<&DenseRope<B>>,
        sequence: usize,
        mask: Tensor<B, 2>,
    ) -> Tensor<B, 2> {
        let [rows, _] = x.dims();
        let (heads, kv_heads, dim) = (config.heads, config.kv_heads, config.head_dim);
        let group = heads / kv_heads;
        let batch = rows / sequence;
        let stacked = self.qkv.val();
        let bias = self.qkv_bias.as_ref().map(|bias| bias.val());
        // `[rows * count, head_dim]`
        let part = |from: usize, count: usize| {
            let (from, size) = (from * dim, count * dim);
            let weight = stacked.clone().narrow(0, from, size);
            let bias = bias.clone().map(|bias| bias.narrow(0, from, size));
            linear(x.clone(), weight, bias).reshape([rows * count, dim])
        };
        let (mut q, mut k, v) = (
            part(0, heads),
            part(heads, kv_heads),
            part(heads + kv_heads, kv_heads),
        );
        if let (Some(q_norm), Some(k_norm)) = (&self.q_norm, &self.k_norm) {
            // `[rows, all heads]`, or a row for each head.
            let normed = |x: Tensor<B, 2>, norm: &Param<Tensor<B, 1>>, heads: usize| {
                let width = match config.qk_norms {
                    QkNorms::Projections => heads * dim,
                    QkNorms::None | QkNorms::Heads => dim,
                };
                let shape = x.dims();
                let x = x.reshape([rows * heads * dim / width, width]);
                rms_norm(x, norm.val(), config.rms_norm_eps).reshape(shape)
            };
            q = normed(q, q_norm, heads);
            k = normed(k, k_norm, kv_heads);
        }
        if let Some(rope) = rope {
            (q, k) = (rope.rotate(q, heads), rope.rotate(k, kv_heads));
        }
        // Scaling the queries is the same as scaling the scores, and they are fewer.
        let q = q * config.attention_scale;
        // `[batch, kv_heads, group, sequence, head_dim]`; keys and values have a group of one.
        let by_head = |x: Tensor<B, 2>, group: usize| {
            x.reshape([batch, sequence, kv_heads, group, dim])
                .permute([0, 2, 3, 1, 4])
        };
        let scores = by_head(q, group).matmul(by_head(k, 1).swap_dims(3, 4));
        let scores = scores.reshape([batch * heads, sequence * sequence]);
        let scores = bounded(scores, config.attention_cap) + mask;
        let scores = scores.reshape([batch * heads * sequence, sequence]);
        let weights = match &self.sinks {
            None => softmax(scores, 1),
            // The sink of a head is one more column, whose weight is dropped.
            Some(sinks) => {
                let sinks: Tensor<B, 2> = sinks.val().reshape([heads, 1]).repeat_dim(1, sequence);
                let sinks = sinks.reshape([1, heads * sequence]).repeat_dim(0, batch);
                let sinks = sinks.reshape([batch * heads * sequence, 1]);
                softmax(Tensor::cat(vec![scores, sinks], 1), 1).narrow(1, 0, sequence)
            }
        };
        let mixed = weights
            .reshape([batch, kv_heads, group, sequence, sequence])
            .matmul(by_head(v, 1))
            .permute([0, 3, 1, 2, 4])
            .reshape([rows, heads * dim]);
        linear(
            mixed,
            self.output.val(),
            self.output_bias.as_ref().map(|bias| bias.val()),
        )
    }
}

impl<B: Backend> DenseMlp<B> {
    /// `x` is `[rows, hidden]`.
    pub(super) fn apply(&self, activation: Activation, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let inner = self.gate_up.dims()[0] / 2;
        let half = |from: usize| {
            let weight = self.gate_up.val().narrow(0, from, inner);
            let bias = self.gate_up_bias.as_ref();
            let bias = bias.map(|bias| bias.val().narrow(0, from, inner));
            linear(x.clone(), weight, bias)
        };
        let gates = match activation {
            Activation::Silu => silu(half(0)),
            Activation::GeluTanh => gelu_approximate(half(0)),
        };
        linear(
            gates * half(inner),
            self.down.val(),
            self.down_bias.as_ref().map(|bias| bias.val()),
        )
    }
}

/// `x` `[rows, in]` times `weight` `[out, in]` transposed.
pub(super) fn linear<B: Backend>(
    x: Tensor<B, 2>,
    weight: Tensor<B, 2>,
    bias: Option<Tensor<B, 1>>,
) -> Tensor<B, 2> {
    let y = x.matmul(weight.transpose());
    match bias {
        Some(bias) => y + bias.unsqueeze(),
        None => y,
    }
}

/// `cap * tanh(x / cap)`
fn bounded<B: Backend>(x: Tensor<B, 2>, cap: Option<f32>) -> Tensor<B, 2> {
    match cap {
        Some(cap) => (x / cap).tanh() * cap,
        None => x,
    }
}

/// `x` is `[rows, width]`, `weight` `[width]`.
fn rms_norm<B: Backend>(x: Tensor<B, 2>, weight: Tensor<B, 1>, eps: f32) -> Tensor<B, 2> {
    let variance = x.clone().square().mean_dim(1);
    x / (variance + eps).sqrt() * weight.unsqueeze()
}

/// Additive mask `[1, sequence * sequence]`: zero where the row may see the column.
fn causal_mask<B: Backend>(
    sequence: usize,
    window: Option<u32>,
    device: &B::Device,
) -> Tensor<B, 2> {
    let window = window.map_or(sequence, |window| window as usize);
    let visible = |row: usize, column: usize| column <= row && row - column < window;
    // A large finite value: minus infinity turns into NaN in the backward pass.
    let values: Vec<f32> = (0..sequence)
        .flat_map(|row| (0..sequence).map(move |column| (row, column)))
        .map(|(row, column)| if visible(row, column) { 0.0 } else { -1e9 })
        .collect();
    Tensor::from_data(TensorData::new(values, [1, sequence * sequence]), device)
}

/// Rotary embedding by halves (Hugging Face's layout: element `i` pairs with
/// `i + rotary_dim / 2`), for positions `0..sequence`.
struct DenseRope<B: Backend> {
    /// `[sequence, head_dim]`, with ones beyond the rotary dimensions.
    cos: Tensor<B, 2>,
    /// `[sequence, head_dim]`, with zeros beyond the rotary dimensions.
    sin: Tensor<B, 2>,
    /// `[head_dim, head_dim]`: multiplication by it puts minus the second half before the first.
    /// A product with a signed permutation is exact, and faster than slicing and concatenation.
    turn: Tensor<B, 2>,
    sequence: usize,
}

impl<B: Backend> DenseRope<B> {
    fn new(rope: &RopeConfig, dim: usize, sequence: usize, device: &B::Device) -> Self {
        let (cos, sin) = rope.tables(sequence);
        let half = rope.rotary_dim / 2;
        let widen = |table: &[f32], beyond: f32| {
            let mut wide = Vec::with_capacity(sequence * dim);
            for row in table.chunks_exact(half) {
                wide.extend_from_slice(row);
                wide.extend_from_slice(row);
                wide.resize(wide.len() + dim - 2 * half, beyond);
            }
            Tensor::from_data(TensorData::new(wide, [sequence, dim]), device)
        };
        let mut turn = vec![0.0; dim * dim];
        for i in 0..half {
            turn[(i + half) * dim + i] = -1.0;
            turn[i * dim + i + half] = 1.0;
        }
        Self {
            cos: widen(&cos, 1.0),
            sin: widen(&sin, 0.0),
            turn: Tensor::from_data(TensorData::new(turn, [dim, dim]), device),
            sequence,
        }
    }

    /// `x` is `[batch * sequence * count, head_dim]`, `count` heads at each position.
    fn rotate(&self, x: Tensor<B, 2>, count: usize) -> Tensor<B, 2> {
        let [rows, dim] = x.dims();
        let width = self.sequence * count * dim;
        let batch = rows * dim / width;
        let for_each_head = |table: &Tensor<B, 2>| {
            let table: Tensor<B, 3> = table.clone().unsqueeze_dim(1);
            table.repeat_dim(1, count).reshape([1, width])
        };
        let turned = x.clone().matmul(self.turn.clone());
        let rotated = x.reshape([batch, width]) * for_each_head(&self.cos)
            + turned.reshape([batch, width]) * for_each_head(&self.sin);
        rotated.reshape([rows, dim])
    }
}
