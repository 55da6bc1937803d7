//! The dense forward pass in plain Burn operations: for training, and the
//! reference that the paged pass is compared with.

use std::collections::HashMap;

use burn::tensor::activation::{silu, softmax};
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};

use super::{Layer, Transformer};
use crate::config::ModelConfig;

impl<B: Backend> Transformer<B> {
    /// Logits `[batch, sequence, vocab]` of `tokens` `[batch, sequence]`, every
    /// row starting at position 0. Attention is causal, so padding on the right
    /// changes nothing to its left.
    pub fn forward_dense(&self, config: &ModelConfig, tokens: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        let [batch, sequence] = tokens.dims();
        let hidden = self
            .embedding
            .val()
            .select(0, tokens.reshape([batch * sequence]));
        self.forward_embedded(
            config,
            hidden.reshape([batch, sequence, config.hidden_size]),
        )
    }

    /// [`Self::forward_dense`] from embedded tokens, `[batch, sequence, hidden]`: training
    /// chooses how to embed, because the gradient of a row selection is a serial loop on GPUs.
    pub fn forward_embedded(&self, config: &ModelConfig, hidden: Tensor<B, 3>) -> Tensor<B, 3> {
        let sequence = hidden.dims()[1];
        let device = hidden.device();
        let rope = DenseRope::new(config, sequence, &device);
        // One mask for all layers with the same window: it is large and made on the host.
        let mut masks = HashMap::new();
        let mut hidden = hidden;
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
        linear(
            rms_norm(hidden, self.norm.val(), config.rms_norm_eps),
            self.lm_head(),
            None,
        )
    }
}

impl<B: Backend> Layer<B> {
    fn attention(
        &self,
        config: &ModelConfig,
        x: Tensor<B, 3>,
        rope: &DenseRope<B>,
        mask: Tensor<B, 2>,
    ) -> Tensor<B, 3> {
        let [batch, sequence, _] = x.dims();
        let (heads, kv_heads, dim) = (config.heads, config.kv_heads, config.head_dim);
        let qkv = linear(
            x,
            self.qkv.val(),
            self.qkv_bias.as_ref().map(|bias| bias.val()),
        );
        let part = |from: usize, count: usize| {
            qkv.clone()
                .narrow(2, from * dim, count * dim)
                .reshape([batch, sequence, count, dim])
                .swap_dims(1, 2) // [batch, heads, sequence, head_dim]
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
        let k = repeat_heads(rope.rotate(k), heads / kv_heads);
        let v = repeat_heads(v, heads / kv_heads);
        let scale = 1.0 / (dim as f64).sqrt();
        // Scaling the queries is the same, and they are smaller than the scores.
        let scores = (rope.rotate(q) * scale).matmul(k.transpose());
        let scores = scores + mask.unsqueeze::<4>();
        let mixed = softmax(scores, 3).matmul(v); // [batch, heads, sequence, head_dim]
        let mixed = mixed
            .swap_dims(1, 2)
            .reshape([batch, sequence, heads * dim]);
        linear(
            mixed,
            self.output.val(),
            self.output_bias.as_ref().map(|bias| bias.val()),
        )
    }

    fn mlp(&self, config: &ModelConfig, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let inner = config.intermediate_size;
        let both = linear(
            x,
            self.gate_up.val(),
            self.gate_up_bias.as_ref().map(|bias| bias.val()),
        );
        let gate = both.clone().narrow(2, 0, inner);
        let up = both.narrow(2, inner, inner);
        linear(
            silu(gate) * up,
            self.down.val(),
            self.down_bias.as_ref().map(|bias| bias.val()),
        )
    }
}

/// `x` `[batch, sequence, in]` times `weight` `[out, in]` transposed.
fn linear<B: Backend>(
    x: Tensor<B, 3>,
    weight: Tensor<B, 2>,
    bias: Option<Tensor<B, 1>>,
) -> Tensor<B, 3> {
    let [batch, sequence, input] = x.dims();
    let [output, _] = weight.dims();
    let y = x
        .reshape([batch * sequence, input])
        .matmul(weight.transpose());
    let y = match bias {
        Some(bias) => y + bias.unsqueeze(),
        None => y,
    };
    y.reshape([batch, sequence, output])
}

fn rms_norm<B: Backend, const D: usize>(
    x: Tensor<B, D>,
    weight: Tensor<B, 1>,
    eps: f32,
) -> Tensor<B, D> {
    let variance = x.clone().square().mean_dim(D - 1);
    x / (variance + eps).sqrt() * weight.unsqueeze()
}

/// Repeats each KV head for its group of query heads: `[batch, kv_heads, s, d]`
/// to `[batch, kv_heads * group, s, d]`.
fn repeat_heads<B: Backend>(x: Tensor<B, 4>, group: usize) -> Tensor<B, 4> {
    if group == 1 {
        return x;
    }
    let [batch, kv_heads, sequence, dim] = x.dims();
    x.unsqueeze_dim::<5>(2)
        .repeat_dim(2, group)
        .reshape([batch, kv_heads * group, sequence, dim])
}

/// Additive mask `[sequence, sequence]`: zero where the row may see the column.
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
    Tensor::from_data(TensorData::new(values, [sequence, sequence]), device)
}

/// Rotary embedding by halves (Hugging Face's layout: element `i` pairs with
/// `i + rotary_dim / 2`), for positions `0..sequence`.
struct DenseRope<B: Backend> {
    /// `[sequence, rotary_dim / 2]`
    cos: Tensor<B, 2>,
    sin: Tensor<B, 2>,
    half: usize,
}

impl<B: Backend> DenseRope<B> {
    fn new(config: &ModelConfig, sequence: usize, device: &B::Device) -> Self {
        let (cos, sin) = config.rope.tables(sequence);
        let half = config.rope.rotary_dim / 2;
        let tensor =
            |values: Vec<f32>| Tensor::from_data(TensorData::new(values, [sequence, half]), device);
        Self {
            cos: tensor(cos),
            sin: tensor(sin),
            half,
        }
    }

    /// `x` is `[batch, heads, sequence, head_dim]`; dimensions beyond the rotary
    /// ones pass through.
    fn rotate(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let dim = x.dims()[3];
        let (cos, sin) = (
            self.cos.clone().unsqueeze::<4>(),
            self.sin.clone().unsqueeze::<4>(),
        );
        let first = x.clone().narrow(3, 0, self.half);
        let second = x.clone().narrow(3, self.half, self.half);
        let mut parts = vec![
            first.clone() * cos.clone() - second.clone() * sin.clone(),
            second * cos + first * sin,
        ];
        let rotary = 2 * self.half;
        if dim > rotary {
            parts.push(x.narrow(3, rotary, dim - rotary));
        }
        Tensor::cat(parts, 3)
    }
}
