//! The dense forward pass in plain Burn operations: for training, and the
//! reference that the paged pass is compared with.

use std::collections::HashMap;

use burn::tensor::activation::{silu, softmax};
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};

use super::parameters::{Layer, Transformer};
use crate::config::ModelConfig;

impl<B: Backend> Transformer<B> {
    /// Logits `[batch, sequence, vocab]` of `tokens` `[batch, sequence]`, every
    /// row starting at position 0. Attention is causal, so padding on the right
    /// changes nothing to its left.
    pub fn forward_dense(&self, config: &ModelConfig, tokens: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        let [batch, sequence] = tokens.dims();
        let rows = batch * sequence;
        let embedded = self.embedding.val().select(0, tokens.reshape([rows]));
        let hidden = self.hidden_dense(config, embedded, sequence);
        self.logits_dense(hidden)
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
        let rope = DenseRope::new(config, sequence, &device);
        // One mask for all layers with the same window, because a mask is large and made on the
        // host.
        let mut masks = HashMap::new();
        let mut hidden = embedded;
        for (layer, window) in self.layers.iter().zip(&config.sliding_window) {
            let mask = masks
                .entry(*window)
                .or_insert_with(|| causal_mask(sequence, *window, &device))
                .clone();
            let normed = rms_norm(
                hidden.clone(),
                layer.attention_norm.val(),
                config.rms_norm_eps,
            );
            hidden = hidden + layer.attention(config, normed, &rope, mask);
            let normed = rms_norm(hidden.clone(), layer.mlp_norm.val(), config.rms_norm_eps);
            hidden = hidden + layer.mlp(config, normed);
        }
        rms_norm(hidden, self.norm.val(), config.rms_norm_eps)
    }

    /// Logits `[rows, vocab]` of final hidden states `[rows, hidden]`. Training computes them only
    /// for the rows that it learns from.
    pub fn logits_dense(&self, hidden: Tensor<B, 2>) -> Tensor<B, 2> {
        linear(hidden, self.lm_head(), None)
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
        rope: &DenseRope<B>,
        mask: Tensor<B, 2>,
    ) -> Tensor<B, 2> {
        let [rows, _] = x.dims();
        let (heads, kv_heads, dim) = (config.heads, config.kv_heads, config.head_dim);
        let (group, sequence) = (heads / kv_heads, rope.sequence);
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
            q = rms_norm(q, q_norm.val(), config.rms_norm_eps);
            k = rms_norm(k, k_norm.val(), config.rms_norm_eps);
        }
        // Scaling the queries is the same as scaling the scores, and they are fewer.
        let q = rope.rotate(q, heads) * (1.0 / (dim as f64).sqrt());
        let k = rope.rotate(k, kv_heads);
        // `[batch, kv_heads, group, sequence, head_dim]`; keys and values have a group of one.
        let by_head = |x: Tensor<B, 2>, group: usize| {
            x.reshape([batch, sequence, kv_heads, group, dim])
                .permute([0, 2, 3, 1, 4])
        };
        let scores = by_head(q, group).matmul(by_head(k, 1).swap_dims(3, 4));
        let scores = scores.reshape([batch * heads, sequence * sequence]) + mask;
        let weights = softmax(scores.reshape([batch * heads * sequence, sequence]), 1);
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

    /// `x` is `[rows, hidden]`.
    fn mlp(&self, config: &ModelConfig, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let inner = config.intermediate_size;
        let half = |from: usize| {
            let weight = self.gate_up.val().narrow(0, from, inner);
            let bias = self.gate_up_bias.as_ref();
            let bias = bias.map(|bias| bias.val().narrow(0, from, inner));
            linear(x.clone(), weight, bias)
        };
        linear(
            silu(half(0)) * half(inner),
            self.down.val(),
            self.down_bias.as_ref().map(|bias| bias.val()),
        )
    }
}

/// `x` `[rows, in]` times `weight` `[out, in]` transposed.
fn linear<B: Backend>(
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
    fn new(config: &ModelConfig, sequence: usize, device: &B::Device) -> Self {
        let (cos, sin) = config.rope.tables(sequence);
        let (half, dim) = (config.rope.rotary_dim / 2, config.head_dim);
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
