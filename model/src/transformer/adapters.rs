//! The slots for adapters on the device, and their changes of each matrix.

use std::ops::Range;

use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{DType, Int, Tensor, TensorData};
use hearth_forward::{AdaptedMatrix, Adapter, LayerMatrix, LowRank};
use hearth_shaders::{AdapterIndex, Kernels, LowRankStack, Summation, indices, upload};

use super::load::ServedAs;
use super::own_tables::{OwnTables, table_bytes};
use super::primitive::{primitive, tensor};
use super::table::Table;
use crate::config::{Mlp, ModelConfig};
use crate::dtype::Dtype;
use crate::load_options::AdapterSlots;

/// The changes of all matrices by the adapters in all slots. Memory for the largest rank, and for the
/// whole tables of some slots, is taken at the start, so that loading an adapter cannot run out of it.
pub struct AdapterStacks<B: Backend> {
    layers: Vec<LayerStacks<B>>,
    /// Its `a` is a table, `[slots * vocab, rank]`.
    embedding: LowRankStack<B>,
    lm_head: LowRankStack<B>,
    own_embedding: OwnTables<B>,
    own_lm_head: OwnTables<B>,
    slots: usize,
    rank: usize,
    vocab: usize,
    dtype: Dtype,
}

struct LayerStacks<B: Backend> {
    qkv: LowRankStack<B>,
    output: LowRankStack<B>,
    /// `None` in a layer with experts, which are not adapted.
    gate_up: Option<LowRankStack<B>>,
    down: Option<LowRankStack<B>>,
}

/// The projections of a layer that are one matrix here.
#[derive(Clone, Copy)]
pub(super) enum Projection {
    Qkv,
    Output,
    GateUp,
    Down,
}

/// The columns of `a` and the widths of the slices of one stack.
struct StackShape {
    input: usize,
    slices: Vec<usize>,
}

impl StackShape {
    fn output(&self) -> usize {
        self.slices.iter().sum()
    }

    /// Bytes of one slot.
    fn bytes(&self, rank: usize, dtype: Dtype) -> u64 {
        let a = self.slices.len() * rank * self.input;
        let b = (rank + 1) * self.output();
        ((a + b) * dtype.size() + self.output() * Dtype::F32.size()) as u64
    }
}

/// The shape of a projection of the layer `index`; `None` for the MLP of a layer with experts.
fn shape_of(config: &ModelConfig, index: usize, projection: Projection) -> Option<StackShape> {
    let inner = match (&config.layers[index].mlp, projection) {
        (Mlp::Dense { width }, _) => *width,
        (Mlp::Experts(_), Projection::Qkv | Projection::Output) => 0,
        (Mlp::Experts(_), Projection::GateUp | Projection::Down) => return None,
    };
    let hidden = config.hidden_size;
    let (q, kv) = (
        config.heads * config.head_dim,
        config.kv_heads * config.head_dim,
    );
    let (input, slices) = match projection {
        Projection::Qkv => (hidden, vec![q, kv, kv]),
        Projection::Output => (q, vec![hidden]),
        Projection::GateUp => (hidden, vec![inner, inner]),
        Projection::Down => (inner, vec![hidden]),
    };
    Some(StackShape { input, slices })
}

/// The projection that has a matrix, and the slice of it.
fn place_of(matrix: LayerMatrix) -> (Projection, usize) {
    match matrix {
        LayerMatrix::Query => (Projection::Qkv, 0),
        LayerMatrix::Key => (Projection::Qkv, 1),
        LayerMatrix::Value => (Projection::Qkv, 2),
        LayerMatrix::Output => (Projection::Output, 0),
        LayerMatrix::Gate => (Projection::GateUp, 0),
        LayerMatrix::Up => (Projection::GateUp, 1),
        LayerMatrix::Down => (Projection::Down, 0),
    }
}

const PROJECTIONS: [Projection; 4] = [
    Projection::Qkv,
    Projection::Output,
    Projection::GateUp,
    Projection::Down,
];

/// The input and the output of a matrix of a layer that exists; `None` if the layer lacks the matrix.
pub(crate) fn matrix_shape(config: &ModelConfig, matrix: AdaptedMatrix) -> Option<[usize; 2]> {
    Some(match matrix {
        AdaptedMatrix::Embedding => [config.vocab_size, config.hidden_size],
        AdaptedMatrix::LmHead => [config.hidden_size, config.vocab_size],
        AdaptedMatrix::Layer(layer, matrix) => {
            let (projection, slice) = place_of(matrix);
            let shape = shape_of(config, layer as usize, projection)?;
            [shape.input, shape.slices[slice]]
        }
    })
}

/// Bytes of the whole tables of [`AdapterStacks`]: an embedding and an output projection for each slot
/// with room for them.
pub fn own_table_bytes<B: Kernels>(
    config: &ModelConfig,
    slots: AdapterSlots,
    served: ServedAs,
) -> u64 {
    2 * slots.tables as u64 * table_bytes::<B>(config, served)
}

/// Bytes of the low-rank changes in the slots of [`AdapterStacks`], and of the largest tensor among
/// them.
pub fn adapter_bytes(config: &ModelConfig, slots: usize, rank: usize, dtype: Dtype) -> [u64; 2] {
    let (vocab, hidden) = (config.vocab_size as u64, config.hidden_size as u64);
    let [rank64, slots64, size] = [rank, slots, dtype.size()].map(|value| value as u64);
    let layers = 0..config.layers.len();
    let shapes: Vec<StackShape> = layers
        .flat_map(|layer| PROJECTIONS.map(|projection| shape_of(config, layer, projection)))
        .flatten()
        .collect();
    let layers: u64 = shapes.iter().map(|shape| shape.bytes(rank, dtype)).sum();
    let tables = size * (2 * rank64 * (vocab + hidden) + vocab + hidden) + 4 * (vocab + hidden);
    let widest = shapes.iter().map(|shape| {
        let rows = shape.slices.len() * shape.input;
        rows.max(shape.output()) as u64
    });
    let widest = widest.max().unwrap_or(0).max(vocab);
    [
        slots64 * (layers + tables),
        slots64 * widest * (size * rank64).max(4),
    ]
}

impl<B: Kernels> AdapterStacks<B> {
    /// Empty slots, with numbers that are kept as `served` says.
    pub fn new(
        config: &ModelConfig,
        slots: AdapterSlots,
        served: ServedAs,
        device: &B::Device,
    ) -> Self {
        let own = || OwnTables::new(config, slots.tables, served, device);
        let AdapterSlots { slots, rank, .. } = slots;
        let dtype = served.matrix;
        let empty = |shape: StackShape, rows_of_a: usize, columns_of_a: usize| {
            let full = |rows: usize, columns: usize, value: f32, dtype: Dtype| {
                // In one dimension, because CubeCL would pad the rows on CUDA.
                let options = (device, DType::from(dtype));
                let full = Tensor::<B, 1>::full([rows * columns], value, options);
                primitive(full.reshape([rows, columns]))
            };
            let zeros = |rows: usize, columns: usize| full(rows, columns, 0.0, dtype);
            // Zeros of rank 1 change nothing, but have the kernels run when the model is warmed up.
            let ranks = vec![1; slots * shape.slices.len()];
            LowRankStack {
                a: zeros(slots * rows_of_a, columns_of_a),
                b: zeros(slots * rank, shape.output()),
                bias: zeros(slots, shape.output()),
                scale: full(slots, shape.output(), 1.0, Dtype::F32),
                ranks: indices::<B>(&ranks, device),
                host_ranks: ranks,
                biased: vec![false; slots],
                scaled: vec![false; slots],
                slices: shape.slices,
                rank,
            }
        };
        let linear = |shape: StackShape| {
            let (rows, columns) = (shape.slices.len() * rank, shape.input);
            empty(shape, rows, columns)
        };
        let layer = |index| {
            let [qkv, output, gate_up, down] =
                PROJECTIONS.map(|projection| shape_of(config, index, projection).map(linear));
            LayerStacks {
                qkv: qkv.expect("every layer has attention"),
                output: output.expect("every layer has attention"),
                gate_up,
                down,
            }
        };
        let table = |input, output| StackShape {
            input,
            slices: vec![output],
        };
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        Self {
            layers: (0..config.layers.len()).map(layer).collect(),
            embedding: empty(table(vocab, hidden), vocab, rank),
            lm_head: linear(table(hidden, vocab)),
            own_embedding: own(),
            own_lm_head: own(),
            slots,
            rank,
            vocab,
            dtype,
        }
    }

    pub fn slots(&self) -> usize {
        self.slots
    }

    /// The first slots, which have room for whole tables.
    pub fn table_slots(&self) -> usize {
        self.own_embedding.slots()
    }

    /// Puts `adapter` into `slot`, counted from 0. After an error the slot changes nothing.
    ///
    /// # Errors
    /// The adapter is not one of this model, or its rank is too large.
    pub fn load(
        &mut self,
        config: &ModelConfig,
        slot: usize,
        adapter: &Adapter,
        device: &B::Device,
    ) -> Result<(), String> {
        if slot >= self.slots {
            return Err(format!("adapter slot {} of {}", slot + 1, self.slots));
        }
        let checked = self
            .check(config, adapter)
            .and_then(|()| self.load_tables(slot, adapter, device))
            .inspect_err(|_| self.forget_tables(slot));
        let changes = match &checked {
            Ok(()) => &adapter.changes[..],
            Err(_) => &[],
        };
        let of = |matrix: AdaptedMatrix| changes.iter().find(|change| change.matrix == matrix);
        let (rank, dtype, vocab) = (self.rank, self.dtype, self.vocab);
        let write = |stack: &mut LowRankStack<B>, changes: &[Option<&LowRank>]| {
            write_slot(stack, slot, changes, rank, dtype, device);
        };
        for (index, layer) in (0..).zip(&mut self.layers) {
            let of = |matrix| of(AdaptedMatrix::Layer(index, matrix));
            use LayerMatrix::{Down, Gate, Key, Output, Query, Up, Value};
            write(&mut layer.qkv, &[Query, Key, Value].map(of));
            write(&mut layer.output, &[of(Output)]);
            if let Some(gate_up) = &mut layer.gate_up {
                write(gate_up, &[Gate, Up].map(of));
            }
            if let Some(down) = &mut layer.down {
                write(down, &[of(Down)]);
            }
        }
        write(&mut self.lm_head, &[of(AdaptedMatrix::LmHead)]);
        let embedding = of(AdaptedMatrix::Embedding);
        if let Some(change) = embedding {
            let mut table = Vec::with_capacity(vocab * rank);
            for row in change.a.chunks_exact(change.rank) {
                table.extend_from_slice(row);
                table.resize(table.len() + rank - change.rank, 0.0);
            }
            let rows = slot * vocab..(slot + 1) * vocab;
            assign::<B>(&mut self.embedding.a, rows, table, rank, dtype, device);
        }
        write_output(&mut self.embedding, slot, &[embedding], rank, dtype, device);
        checked
    }

    fn load_tables(
        &mut self,
        slot: usize,
        adapter: &Adapter,
        device: &B::Device,
    ) -> Result<(), String> {
        let of = |matrix| adapter.tables.iter().find(|table| table.matrix == matrix);
        let [embedding, lm_head] = [AdaptedMatrix::Embedding, AdaptedMatrix::LmHead].map(of);
        self.own_embedding.load(slot, embedding, device)?;
        self.own_lm_head.load(slot, lm_head, device)
    }

    fn forget_tables(&mut self, slot: usize) {
        self.own_embedding.forget(slot);
        self.own_lm_head.forget(slot);
    }

    fn check(&self, config: &ModelConfig, adapter: &Adapter) -> Result<(), String> {
        let rank = adapter.rank();
        if rank > self.rank {
            return Err(format!("an adapter of rank {rank}, beyond {}", self.rank));
        }
        for change in &adapter.changes {
            let LowRank {
                matrix,
                rank,
                bias,
                scale,
                ..
            } = change;
            if let AdaptedMatrix::Layer(layer, _) = matrix
                && *layer as usize >= config.layers.len()
            {
                return Err(format!("an adapter of layer {layer}"));
            }
            let Some([input, output]) = matrix_shape(config, *matrix) else {
                return Err(format!("an adapter of {matrix:?}, which the model lacks"));
            };
            let fits = change.a.len() == rank * input
                && change.b.len() == rank * output
                && [bias, scale]
                    .iter()
                    .all(|values| values.is_empty() || values.len() == output);
            if !fits || *rank == 0 {
                return Err(format!("an adapter of another shape of {matrix:?}"));
            }
        }
        Ok(())
    }

    /// The changes of a projection of a layer; `None` where it is not adapted.
    pub(super) fn stack(&self, layer: usize, projection: Projection) -> Option<&LowRankStack<B>> {
        let layer = &self.layers[layer];
        match projection {
            Projection::Qkv => Some(&layer.qkv),
            Projection::Output => Some(&layer.output),
            Projection::GateUp => layer.gate_up.as_ref(),
            Projection::Down => layer.down.as_ref(),
        }
    }

    /// `x` times the transpose of the output projection, which is `base` but for adapters with one of their
    /// own, with the changes of the rows' adapters.
    pub(super) fn project_logits(
        &self,
        index: &AdapterIndex<B>,
        x: Tensor<B, 2>,
        base: &Table<B>,
        summation: Summation,
    ) -> Tensor<B, 2> {
        let logits = self.own_lm_head.project(index, x.clone(), base, summation);
        tensor(apply(&self.lm_head, index, primitive(x), primitive(logits)))
    }

    /// The rows `ids` of the embedding, which is `base` but for adapters with one of their own, with the
    /// changes of the rows' adapters.
    pub(super) fn embed(
        &self,
        index: &AdapterIndex<B>,
        ids: IntTensor<B>,
        base: &Table<B>,
    ) -> Tensor<B, 2> {
        let embedded = self.own_embedding.embed(index, ids.clone(), base);
        if !self.embedding.changes(index) {
            return embedded;
        }
        // Rows of the base model read a row of the first slot, and do nothing with it.
        let slots = Tensor::<B, 1, Int>::from_primitive(index.slots.clone());
        let first = slots.clamp_min(0) * self.vocab as i32;
        let ids = Tensor::<B, 1, Int>::from_primitive(ids) + first;
        let h = B::embed(self.embedding.a.clone(), ids.into_primitive());
        let y = primitive(embedded);
        tensor(B::expand(y, h, &self.embedding, index))
    }
}

fn apply<B: Kernels>(
    stack: &LowRankStack<B>,
    index: &AdapterIndex<B>,
    x: FloatTensor<B>,
    y: FloatTensor<B>,
) -> FloatTensor<B> {
    if !stack.changes(index) {
        return y;
    }
    let h = B::shrink(x, stack, index);
    B::expand(y, h, stack, index)
}

/// Writes the changes of all slices of one stack, or that there are none.
fn write_slot<B: Kernels>(
    stack: &mut LowRankStack<B>,
    slot: usize,
    changes: &[Option<&LowRank>],
    rank: usize,
    dtype: Dtype,
    device: &B::Device,
) {
    if let Some(input) = changes.iter().flatten().next().map(|c| c.a.len() / c.rank) {
        let mut a = vec![0.0; changes.len() * rank * input];
        for (change, slice) in changes.iter().zip(a.chunks_exact_mut(rank * input)) {
            if let Some(change) = change {
                slice[..change.a.len()].copy_from_slice(&change.a);
            }
        }
        let height = changes.len() * rank;
        let rows = slot * height..(slot + 1) * height;
        assign::<B>(&mut stack.a, rows, a, input, dtype, device);
    }
    write_output(stack, slot, changes, rank, dtype, device);
}

/// Writes `b`, the bias, the scale and the ranks of one slot.
fn write_output<B: Kernels>(
    stack: &mut LowRankStack<B>,
    slot: usize,
    changes: &[Option<&LowRank>],
    rank: usize,
    dtype: Dtype,
    device: &B::Device,
) {
    let slices = stack.slices.len();
    let before = stack.host_ranks[slot * slices..][..slices].to_vec();
    let ranks: Vec<u32> = changes
        .iter()
        .map(|change| change.map_or(0, |change| change.rank as u32))
        .collect();
    let changed = ranks.iter().any(|rank| *rank > 0);
    if changed {
        let output = stack.slices.iter().sum::<usize>();
        let (mut b, mut bias) = (vec![0.0; rank * output], vec![0.0; output]);
        let mut scale = vec![1.0; output];
        let mut from = 0;
        for (change, width) in changes.iter().zip(&stack.slices) {
            if let Some(change) = change {
                for (row, values) in change.b.chunks_exact(*width).enumerate() {
                    b[row * output + from..][..*width].copy_from_slice(values);
                }
                bias[from..][..change.bias.len()].copy_from_slice(&change.bias);
                scale[from..][..change.scale.len()].copy_from_slice(&change.scale);
            }
            from += width;
        }
        stack.biased[slot] = changes.iter().flatten().any(|c| !c.bias.is_empty());
        stack.scaled[slot] = changes.iter().flatten().any(|c| !c.scale.is_empty());
        let rows = slot * rank..(slot + 1) * rank;
        let b = B::packed_low_rank(b, output);
        assign::<B>(&mut stack.b, rows, b, output, dtype, device);
        let row = slot..slot + 1;
        assign::<B>(&mut stack.bias, row.clone(), bias, output, dtype, device);
        assign::<B>(&mut stack.scale, row, scale, output, Dtype::F32, device);
    }
    if ranks != before {
        stack.host_ranks[slot * slices..][..slices].copy_from_slice(&ranks);
        stack.ranks = indices::<B>(&stack.host_ranks, device);
    }
}

/// Overwrites the `rows` of `to`, in place where nothing else refers to it.
fn assign<B: Kernels>(
    to: &mut FloatTensor<B>,
    rows: Range<usize>,
    values: Vec<f32>,
    columns: usize,
    dtype: Dtype,
    device: &B::Device,
) {
    let shape = [rows.len(), columns];
    let values = upload::<B, 2>(TensorData::new(values, shape), DType::from(dtype), device);
    // The tensor is taken out, so that there is one reference to its memory.
    let nothing = Tensor::<B, 2>::zeros([1, 1], (device, DType::from(dtype)));
    let all = tensor::<B, 2>(std::mem::replace(to, primitive(nothing)));
    *to = primitive(all.slice_assign([rows, 0..columns], values));
}
