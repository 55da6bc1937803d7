//! The forward pass that serves: a ragged batch of prefill chunks and decode rows
//! over the KV pool.

use burn::module::Param;
use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{DType, Int, Tensor, TensorData};
use hearth_forward::ForwardBatch;
use hearth_shaders::{HeadLayout, Kernels, QkNorm, RaggedIndex, RopeTable, Summation, upload};

use super::parameters::{Layer, Transformer};
use super::primitive::{indices, primitive, tensor};
use crate::config::ModelConfig;
use crate::kv_pool::KvPool;

/// A ragged batch on the device.
pub struct DeviceBatch<B: Backend> {
    /// `[tokens]`
    tokens: IntTensor<B>,
    index: RaggedIndex<B>,
    logit_rows: LogitRows<B>,
    /// `[rows]`: the tokens whose hidden states are returned, if there are any.
    hidden_rows: Option<Tensor<B, 1, Int>>,
}

/// The tokens whose logits are returned, and those at which the device samples.
enum LogitRows<B: Backend> {
    /// `[rows]`, of which the first `returned` are returned. One multiplication computes both
    /// kinds, because each multiplication reads the whole matrix.
    Together {
        rows: Tensor<B, 1, Int>,
        returned: usize,
    },
    /// `[rows]` in parts, each with as many rows as the device computes logits for at once.
    Apart {
        returned: Vec<Tensor<B, 1, Int>>,
        to_sample: Vec<Tensor<B, 1, Int>>,
    },
}

impl<B: Backend> LogitRows<B> {
    fn upload(batch: &ForwardBatch, rows_at_once: usize, device: &B::Device) -> Self {
        let (returned, to_sample) = (&batch.logit_rows, &batch.sample_rows);
        let one_kind = returned.is_empty() || to_sample.is_empty();
        if one_kind || returned.len() + to_sample.len() > rows_at_once {
            return Self::Apart {
                returned: in_parts(returned, rows_at_once, device),
                to_sample: in_parts(to_sample, rows_at_once, device),
            };
        }
        // Joined on the host, because the device would compile a kernel for each of many lengths.
        Self::Together {
            rows: indices(&[returned.as_slice(), to_sample].concat(), device),
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
        Self {
            tokens: carried
                .unwrap_or_else(|| indices(&batch.tokens, device))
                .into_primitive(),
            index: RaggedIndex::upload(
                &batch.positions,
                &batch.write_slots,
                &batch.sequences,
                &batch.slot_table,
                layout,
                summation,
                device,
            ),
            logit_rows: LogitRows::upload(batch, rows_at_once, device),
            hidden_rows: (!batch.hidden_rows.is_empty())
                .then(|| indices(&batch.hidden_rows, device)),
        }
    }
}

fn in_parts<B: Backend>(
    rows: &[u32],
    at_once: usize,
    device: &B::Device,
) -> Vec<Tensor<B, 1, Int>> {
    let parts = rows.chunks(at_once);
    parts.map(|part| indices(part, device)).collect()
}

/// The KV pool and the tables that all forward passes of a model share.
pub struct PagedContext<B: Backend> {
    pub pool: KvPool<B>,
    pub layout: HeadLayout,
    rope: RopeTable<B>,
}

impl<B: Kernels> PagedContext<B> {
    /// Positions are below `max_positions`.
    pub fn new(
        config: &ModelConfig,
        pool: KvPool<B>,
        max_positions: usize,
        device: &B::Device,
    ) -> Self {
        let (cos, sin) = config.rope.tables(max_positions);
        let half = config.rope.rotary_dim / 2;
        let table = |values: Vec<f32>| {
            let data = TensorData::new(values, [max_positions, half]);
            primitive(upload::<B, 2>(data, DType::F32, device))
        };
        Self {
            pool,
            layout: HeadLayout {
                heads: config.heads,
                kv_heads: config.kv_heads,
                head_dim: config.head_dim,
            },
            rope: RopeTable {
                cos: table(cos),
                sin: table(sin),
                rotary_dim: 2 * half,
            },
        }
    }
}

impl<B: Kernels> Transformer<B> {
    /// Writes the keys and values of every token to the pool, and returns the logits and hidden
    /// states of the rows that `batch` lists.
    pub fn forward_paged(
        &self,
        config: &ModelConfig,
        batch: DeviceBatch<B>,
        context: &mut PagedContext<B>,
    ) -> DeviceOutput<B> {
        let eps = config.rms_norm_eps;
        let summation = batch.index.summation;
        let mut residual = primitive(self.embedding.embed(batch.tokens));
        let first = self
            .layers
            .first()
            .map_or(&self.norm, |layer| &layer.attention_norm);
        let mut normed = B::rms_norm(residual.clone(), weight(first), eps);
        for (index, layer) in self.layers.iter().enumerate() {
            let next = self
                .layers
                .get(index + 1)
                .map_or(&self.norm, |next| &next.attention_norm);
            let mixed = layer.attend(config, index, normed, &batch.index, context);
            (residual, normed) = B::add_rms_norm(residual, mixed, weight(&layer.mlp_norm), eps);
            let changed = layer.feed_forward(normed, summation);
            (residual, normed) = B::add_rms_norm(residual, changed, weight(next), eps);
        }
        let normed = tensor::<B, 2>(normed);
        let hidden = batch.hidden_rows.map(|rows| normed.clone().select(0, rows));
        let lm_head = self.lm_head.as_ref().unwrap_or(&self.embedding);
        let project = |rows| lm_head.project(normed.clone().select(0, rows), summation);
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

impl<B: Kernels> Layer<B> {
    fn attend(
        &self,
        config: &ModelConfig,
        index: usize,
        x: FloatTensor<B>,
        at: &RaggedIndex<B>,
        context: &mut PagedContext<B>,
    ) -> FloatTensor<B> {
        let layout = context.layout;
        let qkv_bias = self.qkv_bias.as_ref().map(weight);
        let qkv = B::project(x, weight(&self.qkv), qkv_bias, at.summation);
        let norm = self
            .q_norm
            .as_ref()
            .zip(self.k_norm.as_ref())
            .map(|(q, k)| QkNorm {
                q: weight(q),
                k: weight(k),
                eps: config.rms_norm_eps,
            });
        let (k_pool, v_pool) = context.pool.layer(index);
        let q = B::rope_and_store(
            qkv,
            layout,
            norm.as_ref(),
            &context.rope,
            at,
            k_pool,
            v_pool,
        );
        let mixed = B::paged_attention(q, layout, at, config.sliding_window[index], k_pool, v_pool);
        B::project(
            mixed,
            weight(&self.output),
            self.output_bias.as_ref().map(weight),
            at.summation,
        )
    }

    fn feed_forward(&self, x: FloatTensor<B>, summation: Summation) -> FloatTensor<B> {
        let gated = B::project_gated(
            x,
            weight(&self.gate_up),
            self.gate_up_bias.as_ref().map(weight),
            summation,
        );
        let down_bias = self.down_bias.as_ref().map(weight);
        B::project(gated, weight(&self.down), down_bias, summation)
    }
}

fn weight<B: Backend, const D: usize>(parameter: &Param<Tensor<B, D>>) -> FloatTensor<B> {
    primitive(parameter.val())
}
