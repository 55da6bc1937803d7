//! The forward pass that serves: a ragged batch of prefill chunks and decode rows
//! over the KV pool.

use burn::module::Param;
use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{DType, Int, Tensor, TensorData, TensorPrimitive};
use hearth_forward::SequenceSpan;
use hearth_shaders::{HeadLayout, Kernels, QkNorm, RaggedIndex, RopeTable, Summation, upload};

use super::{Layer, Transformer};
use crate::config::ModelConfig;
use crate::kv_pool::KvPool;
use crate::runner::Batch;

/// A ragged batch on the device.
pub struct DeviceBatch<B: Backend> {
    /// `[tokens]`
    tokens: IntTensor<B>,
    index: RaggedIndex<B>,
    logit_rows: LogitRows<B>,
    /// `[rows]`: the tokens whose hidden states are wanted, if any.
    hidden_rows: Option<Tensor<B, 1, Int>>,
}

/// The tokens whose logits are wanted, and those after which one is chosen.
enum LogitRows<B: Backend> {
    /// `[rows]`, of which the first `wanted` are wanted: one product for both, as it reads all of
    /// the matrix.
    Together {
        rows: Tensor<B, 1, Int>,
        wanted: usize,
    },
    /// `[rows]` in parts, each as many as have logits at once.
    Apart {
        wanted: Vec<Tensor<B, 1, Int>>,
        to_choose: Vec<Tensor<B, 1, Int>>,
    },
}

impl<B: Backend> LogitRows<B> {
    fn upload(batch: &Batch<'_>, rows_at_once: usize, device: &B::Device) -> Self {
        let (wanted, to_choose) = (batch.logit_rows, batch.choice_rows);
        let none = wanted.is_empty() || to_choose.is_empty();
        if none || wanted.len() + to_choose.len() > rows_at_once {
            return Self::Apart {
                wanted: in_parts(wanted, rows_at_once, device),
                to_choose: in_parts(to_choose, rows_at_once, device),
            };
        }
        // Here and not on the device, which compiles a kernel for each of many lengths.
        Self::Together {
            rows: indices(&[wanted, to_choose].concat(), device),
            wanted: wanted.len(),
        }
    }
}

/// What was wanted of a batch, where anything was.
pub struct DeviceOutputs<B: Backend> {
    /// `[logit_rows, vocab]` in parts, one below another: a device binds only so much at once.
    pub logits: Vec<Tensor<B, 2>>,
    /// `[hidden_rows, hidden_size]`
    pub hidden: Option<Tensor<B, 2>>,
    /// `[choice_rows, vocab]` in parts: logits to choose from.
    pub to_choose: Vec<Tensor<B, 2>>,
}

impl<B: Backend> DeviceBatch<B> {
    /// Copies a checked batch to `device`, where its input ids may be already, `carried`. Of logits
    /// no tensor has more than `rows_at_once` rows.
    pub fn upload(
        batch: &Batch<'_>,
        carried: Option<Tensor<B, 1, Int>>,
        layout: HeadLayout,
        summation: Summation,
        rows_at_once: usize,
        device: &B::Device,
    ) -> Self {
        let spans: Vec<SequenceSpan> = batch
            .sequences
            .iter()
            .map(|sequence| SequenceSpan {
                context: sequence.context,
                tokens: sequence.tokens,
                first_slot: sequence.first_slot,
            })
            .collect();
        Self {
            tokens: carried
                .unwrap_or_else(|| indices(batch.tokens, device))
                .into_primitive(),
            index: RaggedIndex::upload(
                batch.positions,
                batch.write_slots,
                &spans,
                batch.slot_table,
                layout,
                summation,
                device,
            ),
            logit_rows: LogitRows::upload(batch, rows_at_once, device),
            hidden_rows: (!batch.hidden_rows.is_empty())
                .then(|| indices(batch.hidden_rows, device)),
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

pub(crate) fn indices<B: Backend>(values: &[u32], device: &B::Device) -> Tensor<B, 1, Int> {
    Tensor::from_primitive(hearth_shaders::indices::<B>(values, device))
}

/// What every forward of a model shares.
pub struct PagedContext<B: Backend> {
    pub pool: KvPool<B>,
    pub layout: HeadLayout,
    rope: RopeTable<B>,
}

impl<B: Kernels> PagedContext<B> {
    /// `pool` holds the KV; positions run below `max_positions`.
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
    /// What `batch` wants; every token's keys and values are in the pool afterwards.
    pub fn forward_paged(
        &self,
        config: &ModelConfig,
        batch: DeviceBatch<B>,
        context: &mut PagedContext<B>,
    ) -> DeviceOutputs<B> {
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
        let (logits, to_choose) = match batch.logit_rows {
            LogitRows::Together { rows, wanted } => {
                let both = project(rows);
                let [all, _] = both.dims();
                let to_choose = both.clone().narrow(0, wanted, all - wanted);
                (vec![both.narrow(0, 0, wanted)], vec![to_choose])
            }
            LogitRows::Apart { wanted, to_choose } => (
                wanted.into_iter().map(project).collect(),
                to_choose.into_iter().map(project).collect(),
            ),
        };
        DeviceOutputs {
            logits,
            hidden,
            to_choose,
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

pub(crate) fn primitive<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}

pub(crate) fn tensor<B: Backend, const D: usize>(primitive: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(primitive))
}
