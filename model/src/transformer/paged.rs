//! The forward pass that serves: a ragged batch of prefill chunks and decode rows
//! over the KV pool.

use burn::module::Param;
use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{DType, Int, Tensor, TensorData};
use hearth_forward::ForwardBatch;
use hearth_shaders::{
    AdapterIndex, AttentionOptions, HeadLayout, Kernels, LowRankStack, QkNorm, RaggedIndex,
    RopeTable, Summation, upload,
};

use super::adapters::{AdapterStacks, Projection};
use super::parameters::{DenseMlp, Layer, LayerMlp, Transformer};
use super::primitive::{indices, primitive, tensor};
use crate::config::{Activation, Mlp, ModelConfig, QkNorms, RopeConfig};
use crate::kv_pool::KvPool;

/// A ragged batch on the device.
pub struct DeviceBatch<B: Backend> {
    /// `[tokens]`
    tokens: IntTensor<B>,
    index: RaggedIndex<B>,
    /// The index with window slots, for layers that attend a window; `None` if they have the slots
    /// of the other layers.
    window_index: Option<RaggedIndex<B>>,
    /// `None` if all tokens are the base model's.
    adapters: Option<AdapterIndex<B>>,
    logit_rows: LogitRows<B>,
    /// `[rows]`: the tokens whose hidden states are returned, if there are any.
    hidden_rows: Option<Tensor<B, 1, Int>>,
}

/// The tokens whose logits are returned, and those at which the device samples.
enum LogitRows<B: Backend> {
    /// `[rows]`, of which the first `returned` are returned. One multiplication computes both
    /// kinds, because each multiplication reads the whole matrix.
    Together { rows: Rows<B>, returned: usize },
    /// `[rows]` in parts, each with as many rows as the device computes logits for at once.
    Apart {
        returned: Vec<Rows<B>>,
        to_sample: Vec<Rows<B>>,
    },
}

/// Some tokens of a batch, and their adapters.
struct Rows<B: Backend> {
    rows: Tensor<B, 1, Int>,
    adapters: Option<AdapterIndex<B>>,
}

impl<B: Backend> Rows<B> {
    /// `slots` has the slot of each token of the batch, or is empty.
    fn upload(rows: &[u32], slots: &[u32], device: &B::Device) -> Self {
        let slots: Vec<u32> = match slots.is_empty() {
            true => Vec::new(),
            false => rows.iter().map(|row| slots[*row as usize]).collect(),
        };
        Self {
            rows: indices(rows, device),
            adapters: AdapterIndex::upload(&slots, device),
        }
    }

    fn in_parts(rows: &[u32], slots: &[u32], at_once: usize, device: &B::Device) -> Vec<Self> {
        let parts = rows.chunks(at_once);
        parts
            .map(|part| Self::upload(part, slots, device))
            .collect()
    }
}

impl<B: Backend> LogitRows<B> {
    fn upload(
        batch: &ForwardBatch,
        slots: &[u32],
        rows_at_once: usize,
        device: &B::Device,
    ) -> Self {
        let (returned, to_sample) = (&batch.logit_rows, &batch.sample_rows);
        let one_kind = returned.is_empty() || to_sample.is_empty();
        if one_kind || returned.len() + to_sample.len() > rows_at_once {
            return Self::Apart {
                returned: Rows::in_parts(returned, slots, rows_at_once, device),
                to_sample: Rows::in_parts(to_sample, slots, rows_at_once, device),
            };
        }
        // Joined on the host, because the device would compile a kernel for each of many lengths.
        Self::Together {
            rows: Rows::upload(&[returned.as_slice(), to_sample].concat(), slots, device),
            returned: returned.len(),
        }
    }
}

/// The results of a batch on the device.
pub struct DeviceOutput<B: Backend> {
    /// `[logit_rows, vocab]` in parts, one below another, because a device binds a limited number
    /// of bytes at once.
    pub logits: Vec<Tensor<B, 2>>,
    /// `[hidden_rows, hidden_size]`
    pub hidden: Option<Tensor<B, 2>>,
    /// `[sample_rows, vocab]` in parts: the logits to sample from.
    pub to_sample: Vec<Tensor<B, 2>>,
}

impl<B: Backend> DeviceBatch<B> {
    /// Copies a checked batch to `device`. `carried` are its input ids if these are on the device
    /// already. No tensor of logits will have more than `rows_at_once` rows.
    pub fn upload(
        batch: &ForwardBatch,
        carried: Option<Tensor<B, 1, Int>>,
        layout: HeadLayout,
        summation: Summation,
        rows_at_once: usize,
        device: &B::Device,
    ) -> Self {
        let slots = slots_of_tokens(batch);
        let index = RaggedIndex::upload(
            &batch.positions,
            &batch.write_slots,
            &batch.sequences,
            &batch.slot_table,
            layout,
            summation,
            device,
        );
        let on_device = |values: &[u32]| indices::<B>(values, device).into_primitive();
        let window_index = (!batch.window_table.is_empty()).then(|| RaggedIndex {
            write_slots: on_device(&batch.window_write_slots),
            slot_table: on_device(&batch.window_table),
            ..index.clone()
        });
        Self {
            adapters: AdapterIndex::upload(&slots, device),
            tokens: carried
                .unwrap_or_else(|| indices(&batch.tokens, device))
                .into_primitive(),
            index,
            window_index,
            logit_rows: LogitRows::upload(batch, &slots, rows_at_once, device),
            hidden_rows: (!batch.hidden_rows.is_empty())
                .then(|| indices(&batch.hidden_rows, device)),
        }
    }
}

/// The adapter slot of each token; empty if all are the base model's.
fn slots_of_tokens(batch: &ForwardBatch) -> Vec<u32> {
    if batch.adapters.iter().all(|slot| *slot == 0) {
        return Vec::new();
    }
    let sequences = batch.sequences.iter().zip(&batch.adapters);
    sequences
        .flat_map(|(span, slot)| std::iter::repeat_n(*slot, span.tokens as usize))
        .collect()
}

/// The KV pool and the tables that all forward passes of a model share.
pub struct PagedContext<B: Backend> {
    pub pool: KvPool<B>,
    pub layout: HeadLayout,
    /// In the order of [`ModelConfig::ropes`].
    ropes: Vec<RopeTable<B>>,
    /// For layers that rotate nothing.
    still: RopeTable<B>,
}

impl<B: Kernels> PagedContext<B> {
    /// Positions are below `max_positions`.
    pub fn new(
        config: &ModelConfig,
        pool: KvPool<B>,
        max_positions: usize,
        device: &B::Device,
    ) -> Self {
        let table = |values: Vec<f32>, shape: [usize; 2]| {
            let data = TensorData::new(values, shape);
            primitive(upload::<B, 2>(data, DType::F32, device))
        };
        let rotation = |rope: &RopeConfig| {
            let (cos, sin) = rope.tables(max_positions);
            let half = rope.rotary_dim / 2;
            RopeTable {
                cos: table(cos, [max_positions, half]),
                sin: table(sin, [max_positions, half]),
                rotary_dim: 2 * half,
            }
        };
        Self {
            pool,
            layout: HeadLayout {
                heads: config.heads,
                kv_heads: config.kv_heads,
                head_dim: config.head_dim,
            },
            ropes: config.ropes.iter().map(rotation).collect(),
            still: RopeTable {
                cos: table(vec![1.0], [1, 1]),
                sin: table(vec![0.0], [1, 1]),
                rotary_dim: 0,
            },
        }
    }
}

impl<B: Kernels> Transformer<B> {
    /// Writes the keys and values of every token to the pool, and returns the logits and hidden
    /// states of the rows that `batch` lists. Sequences with an adapter find it in `stacks`.
    pub fn forward_paged(
        &self,
        config: &ModelConfig,
        batch: DeviceBatch<B>,
        stacks: Option<&AdapterStacks<B>>,
        context: &mut PagedContext<B>,
    ) -> DeviceOutput<B> {
        let eps = config.rms_norm_eps;
        let summation = batch.index.summation;
        let adapted = stacks.zip(batch.adapters.as_ref());
        let embedded = match adapted {
            None => self.embedding.embed(batch.tokens),
            Some((stacks, adapters)) => stacks.embed(adapters, batch.tokens, &self.embedding),
        };
        let embedded = match config.embedding_scale {
            1.0 => embedded,
            scale => embedded * scale,
        };
        // The norm before the layer `index`, or the last norm. Where a layer has none, it takes the
        // residual stream itself.
        let norm_before = |index: usize| match self.layers.get(index) {
            Some(layer) => layer.attention_norm.as_ref(),
            None => Some(&self.norm),
        };
        let mut residual = primitive(embedded);
        let mut normed = match norm_before(0) {
            Some(norm) => B::rms_norm(residual.clone(), weight(norm), eps),
            None => residual.clone(),
        };
        for (index, layer) in self.layers.iter().enumerate() {
            let adapted = adapted.map(|(stacks, adapters)| Adapted {
                stacks,
                adapters,
                layer: index,
            });
            let of_window = batch.window_index.as_ref();
            let of_window = of_window.filter(|_| config.layers[index].window.is_some());
            let at = of_window.unwrap_or(&batch.index);
            let mixed = layer.attend(config, index, normed, at, adapted, context);
            let mixed = normed_after(mixed, layer.attention_post_norm.as_ref(), eps);
            (residual, normed) = added(config, residual, mixed, layer.mlp_norm.as_ref());
            let changed = layer.feed_forward(config, index, normed, adapted, summation);
            let changed = normed_after(changed, layer.mlp_post_norm.as_ref(), eps);
            (residual, normed) = added(config, residual, changed, norm_before(index + 1));
        }
        let normed = tensor::<B, 2>(normed);
        let hidden = batch.hidden_rows.map(|rows| normed.clone().select(0, rows));
        let lm_head = self.lm_head.as_ref().unwrap_or(&self.embedding);
        let project = |rows: Rows<B>| {
            let x = normed.clone().select(0, rows.rows);
            let logits = match stacks.zip(rows.adapters) {
                None => lm_head.project(x, summation),
                Some((stacks, adapters)) => stacks.project_logits(&adapters, x, lm_head, summation),
            };
            if !config.scales_logits() {
                return logits;
            }
            let scale = 1.0 / config.logit_divisor;
            tensor(B::scale_and_cap(primitive(logits), scale, config.logit_cap))
        };
        let (logits, to_sample) = match batch.logit_rows {
            LogitRows::Together { rows, returned } => {
                let both = project(rows);
                let [all, _] = both.dims();
                let to_sample = both.clone().narrow(0, returned, all - returned);
                (vec![both.narrow(0, 0, returned)], vec![to_sample])
            }
            LogitRows::Apart {
                returned,
                to_sample,
            } => (
                returned.into_iter().map(project).collect(),
                to_sample.into_iter().map(project).collect(),
            ),
        };
        DeviceOutput {
            logits,
            hidden,
            to_sample,
        }
    }
}

/// The norm of what attention or the MLP returns, where a layer has one.
fn normed_after<B: Kernels>(
    x: FloatTensor<B>,
    norm: Option<&Param<Tensor<B, 1>>>,
    eps: f32,
) -> FloatTensor<B> {
    match norm {
        Some(norm) => B::rms_norm(x, weight(norm), eps),
        None => x,
    }
}

/// The residual stream with `change` added, and its norm, or itself where there is no norm.
fn added<B: Kernels>(
    config: &ModelConfig,
    residual: FloatTensor<B>,
    change: FloatTensor<B>,
    norm: Option<&Param<Tensor<B, 1>>>,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let scale = config.residual_scale;
    if let Some(norm) = norm {
        return B::add_rms_norm(residual, change, scale, weight(norm), config.rms_norm_eps);
    }
    let change = match scale {
        1.0 => tensor::<B, 2>(change),
        scale => tensor::<B, 2>(change) * scale,
    };
    let sum = primitive(tensor::<B, 2>(residual) + change);
    (sum.clone(), sum)
}

impl<B: Kernels> Layer<B> {
    fn attend(
        &self,
        config: &ModelConfig,
        index: usize,
        x: FloatTensor<B>,
        at: &RaggedIndex<B>,
        adapted: Option<Adapted<'_, B>>,
        context: &mut PagedContext<B>,
    ) -> FloatTensor<B> {
        let layout = context.layout;
        let qkv_bias = self.qkv_bias.as_ref().map(weight);
        let sum = at.summation;
        let mut qkv = project(x, &self.qkv, qkv_bias, sum, Projection::Qkv, adapted);
        let mut norm = self
            .q_norm
            .as_ref()
            .zip(self.k_norm.as_ref())
            .map(|(q, k)| QkNorm {
                q: weight(q),
                k: weight(k),
                eps: config.rms_norm_eps,
            });
        if config.qk_norms == QkNorms::Projections
            && let Some(norm) = norm.take()
        {
            qkv = B::norm_projections(qkv, layout, &norm);
        }
        let layer = &config.layers[index];
        let rope = layer
            .rope
            .map_or(&context.still, |rope| &context.ropes[rope]);
        let (k_pool, v_pool) = context.pool.layer(index);
        let q = B::rope_and_store(qkv, layout, norm.as_ref(), rope, at, k_pool, v_pool);
        let options = AttentionOptions {
            window: layer.window,
            scale: config.attention_scale,
            cap: config.attention_cap,
            sinks: self.sinks.as_ref().map(weight),
        };
        let mixed = B::paged_attention(q, layout, at, &options, k_pool, v_pool);
        let bias = self.output_bias.as_ref().map(weight);
        project(mixed, &self.output, bias, sum, Projection::Output, adapted)
    }

    fn feed_forward(
        &self,
        config: &ModelConfig,
        index: usize,
        x: FloatTensor<B>,
        adapted: Option<Adapted<'_, B>>,
        summation: Summation,
    ) -> FloatTensor<B> {
        match (&self.mlp, &config.layers[index].mlp) {
            (LayerMlp::Experts(mlp), Mlp::Experts(experts)) => {
                mlp.feed_forward(experts, x, summation)
            }
            (LayerMlp::Dense(mlp), _) => mlp.feed_forward(config.activation, x, adapted, summation),
            _ => unreachable!("the parameters were made for another description"),
        }
    }
}

impl<B: Kernels> DenseMlp<B> {
    pub(super) fn feed_forward(
        &self,
        activation: Activation,
        x: FloatTensor<B>,
        adapted: Option<Adapted<'_, B>>,
        summation: Summation,
    ) -> FloatTensor<B> {
        let bias = self.gate_up_bias.as_ref().map(weight);
        let gated = match adapted {
            // The changes come before the activation, so it cannot be part of the product.
            Some(adapted) if adapted.changed(Projection::GateUp).is_some() => {
                let (gate_up, adapted) = (&self.gate_up, Some(adapted));
                let gate_up = project(x, gate_up, bias, summation, Projection::GateUp, adapted);
                B::gate(gate_up, activation)
            }
            _ => B::project_gated(x, weight(&self.gate_up), bias, activation, summation),
        };
        let bias = self.down_bias.as_ref().map(weight);
        project(
            gated,
            &self.down,
            bias,
            summation,
            Projection::Down,
            adapted,
        )
    }
}

/// The adapters of a batch, at one layer.
pub(super) struct Adapted<'a, B: Backend> {
    stacks: &'a AdapterStacks<B>,
    adapters: &'a AdapterIndex<B>,
    layer: usize,
}

// Derived, they would ask for a backend that can be copied.
impl<B: Backend> Clone for Adapted<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for Adapted<'_, B> {}

impl<'a, B: Kernels> Adapted<'a, B> {
    /// The changes of a projection, if an adapter of the batch changes it.
    fn changed(self, projection: Projection) -> Option<&'a LowRankStack<B>> {
        let stack = self.stacks.stack(self.layer, projection)?;
        stack.changes(self.adapters).then_some(stack)
    }
}

/// The product of `x` with `matrix`, with the changes of the adapters.
fn project<B: Kernels>(
    x: FloatTensor<B>,
    matrix: &Param<Tensor<B, 2>>,
    bias: Option<FloatTensor<B>>,
    summation: Summation,
    projection: Projection,
    adapted: Option<Adapted<'_, B>>,
) -> FloatTensor<B> {
    let changed =
        adapted.and_then(|adapted| Some((adapted.changed(projection)?, adapted.adapters)));
    match changed {
        None => B::project(x, weight(matrix), bias, summation),
        Some((stack, adapters)) => {
            B::project_changed(x, weight(matrix), bias, summation, stack, adapters)
        }
    }
}

fn weight<B: Backend, const D: usize>(parameter: &Param<Tensor<B, D>>) -> FloatTensor<B> {
    primitive(parameter.val())
}
