//! Loading of the parameters from a checkpoint's weights, by their Hugging Face names.

use std::ops::Range;

use burn::module::Param;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Shape, Tensor, TensorData};
use hearth_shaders::{Kernels, LineBytes, upload};

use super::blocks::{self, Blocks};
use super::parameters::{Layer, Transformer};
use super::table::Table;
use crate::config::ModelConfig;
use crate::dtype::Dtype;
use crate::weights::{WeightError, Weights};

impl<B: Backend> Transformer<B> {
    /// Copies the weights to `device`: matrices as `matrix`, norms and biases as `vector`.
    ///
    /// # Errors
    /// [`WeightError`] names the tensor that is missing or has a wrong shape or type.
    pub fn load(
        config: &ModelConfig,
        weights: &Weights,
        matrix: Dtype,
        vector: Dtype,
        device: &B::Device,
    ) -> Result<Self, WeightError> {
        Self::load_with(
            config,
            &Loader::<B> {
                weights,
                matrix,
                vector,
                device,
                serving: None,
            },
        )
    }

    fn load_with(config: &ModelConfig, loader: &Loader<'_, B>) -> Result<Self, WeightError> {
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        Ok(Self {
            embedding: loader.table("model.embed_tokens.weight", vocab, hidden)?,
            layers: (0..config.layers)
                .map(|index| loader.layer(config, &format!("model.layers.{index}")))
                .collect::<Result<_, _>>()?,
            norm: loader.vector("model.norm.weight", hidden)?,
            lm_head: (!config.tie_word_embeddings)
                .then(|| loader.table("lm_head.weight", vocab, hidden))
                .transpose()?,
        })
    }
}

impl<B: Kernels> Transformer<B> {
    /// As [`Transformer::load`], for serving: the matrices that `blocks` names are packed in
    /// blocks, which the backend must support; embedding and output projection are split into parts
    /// if they have more than `largest` bytes.
    ///
    /// # Errors
    /// As [`Transformer::load`], and a row of values that cannot be packed in blocks.
    pub fn load_for_serving(
        config: &ModelConfig,
        weights: &Weights,
        matrix: Dtype,
        vector: Dtype,
        blocks: Blocks,
        largest: u64,
        device: &B::Device,
    ) -> Result<Self, WeightError> {
        let stacked = |parts: &[(String, usize)], within, columns| {
            let formats = parts
                .iter()
                .map(|(name, _)| blocks.format::<B>(weights, name));
            let formats: Vec<_> = formats.collect::<Option<_>>()?;
            Some(blocks::stacked::<B>(
                weights, parts, &formats, within, columns, vector, device,
            ))
        };
        let rows_of_a_part = |name: &str, [rows, columns]: [usize; 2]| {
            let fits = |rows| {
                let shape = [rows, columns];
                blocks.matrix_bytes::<B>(weights, name, shape, matrix) <= largest
            };
            let mut in_parts = (1..=rows).map(|parts| rows.div_ceil(parts));
            in_parts.find(|rows| fits(*rows)).unwrap_or(1)
        };
        Self::load_with(
            config,
            &Loader::<B> {
                weights,
                matrix,
                vector,
                device,
                serving: Some(Serving {
                    stacked: &stacked,
                    rows_of_a_part: &rows_of_a_part,
                }),
            },
        )
    }
}

/// Stacks several matrices, or a range of their rows, into one matrix in blocks; `None` if they are
/// not to be in blocks.
type StackBlocks<'a, B> = &'a dyn Fn(
    &[(String, usize)],
    Range<usize>,
    usize,
) -> Option<Result<Param<Tensor<B, 2>>, WeightError>>;

/// How matrices are made that only serve.
struct Serving<'a, B: Backend> {
    stacked: StackBlocks<'a, B>,
    /// Rows of each part of a table `[rows, columns]`.
    rows_of_a_part: &'a dyn Fn(&str, [usize; 2]) -> usize,
}

struct Loader<'a, B: Backend> {
    weights: &'a Weights,
    matrix: Dtype,
    vector: Dtype,
    device: &'a B::Device,
    serving: Option<Serving<'a, B>>,
}

impl<B: Backend> Loader<'_, B> {
    fn layer(&self, config: &ModelConfig, prefix: &str) -> Result<Layer<B>, WeightError> {
        let (hidden, inner, dim) = (
            config.hidden_size,
            config.intermediate_size,
            config.head_dim,
        );
        let (q, kv) = (config.heads * dim, config.kv_heads * dim);
        let name = |suffix: &str| format!("{prefix}.{suffix}");
        let qkv = |suffix: &str| {
            [("q", q), ("k", kv), ("v", kv)]
                .map(|(part, rows)| (name(&format!("self_attn.{part}_proj.{suffix}")), rows))
        };
        let gate_up = |suffix: &str| {
            ["gate", "up"].map(|part| (name(&format!("mlp.{part}_proj.{suffix}")), inner))
        };
        let optional = |present: bool, suffix: &str, size: usize| {
            present
                .then(|| self.vector(&name(suffix), size))
                .transpose()
        };
        let (bias, mlp_bias) = (config.attention_bias, config.mlp_bias);
        Ok(Layer {
            attention_norm: self.vector(&name("input_layernorm.weight"), hidden)?,
            qkv: self.stacked_matrix(&qkv("weight"), hidden)?,
            qkv_bias: bias
                .qkv
                .then(|| self.stacked_vector(&qkv("bias")))
                .transpose()?,
            q_norm: optional(config.qk_norm, "self_attn.q_norm.weight", dim)?,
            k_norm: optional(config.qk_norm, "self_attn.k_norm.weight", dim)?,
            output: self.matrix(&name("self_attn.o_proj.weight"), hidden, q)?,
            output_bias: optional(bias.output, "self_attn.o_proj.bias", hidden)?,
            mlp_norm: self.vector(&name("post_attention_layernorm.weight"), hidden)?,
            gate_up: self.stacked_matrix(&gate_up("weight"), hidden)?,
            gate_up_bias: mlp_bias
                .then(|| self.stacked_vector(&gate_up("bias")))
                .transpose()?,
            down: self.matrix(&name("mlp.down_proj.weight"), hidden, inner)?,
            down_bias: optional(mlp_bias, "mlp.down_proj.bias", hidden)?,
        })
    }

    fn matrix(
        &self,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> Result<Param<Tensor<B, 2>>, WeightError> {
        self.stacked_matrix(&[(name.to_owned(), rows)], columns)
    }

    fn stacked_matrix(
        &self,
        parts: &[(String, usize)],
        columns: usize,
    ) -> Result<Param<Tensor<B, 2>>, WeightError> {
        let rows: usize = parts.iter().map(|(_, rows)| rows).sum();
        if let Some(serving) = &self.serving
            && let Some(matrix) = (serving.stacked)(parts, 0..rows, columns)
        {
            return matrix;
        }
        let shapes = parts
            .iter()
            .map(|(name, rows)| (name.as_str(), vec![*rows, columns]));
        self.tensor(shapes.collect(), Shape::from([rows, columns]), self.matrix)
    }

    fn table(&self, name: &str, rows: usize, columns: usize) -> Result<Table<B>, WeightError> {
        let rows_of_a_part = self.serving.as_ref().map_or(rows, |serving| {
            (serving.rows_of_a_part)(name, [rows, columns])
        });
        if rows_of_a_part == rows {
            return Ok(Table::of(vec![self.matrix(name, rows, columns)?], rows));
        }
        let parts = (0..rows)
            .step_by(rows_of_a_part)
            .map(|from| from..(from + rows_of_a_part).min(rows));
        let parts: Result<Vec<_>, _> = parts
            .map(|within| self.rows(name, rows, within, columns))
            .collect();
        Ok(Table::of(parts?, rows_of_a_part))
    }

    /// The rows `within` of the matrix `name` `[rows, columns]`.
    fn rows(
        &self,
        name: &str,
        rows: usize,
        within: Range<usize>,
        columns: usize,
    ) -> Result<Param<Tensor<B, 2>>, WeightError> {
        if let Some(serving) = &self.serving
            && let Some(matrix) =
                (serving.stacked)(&[(name.to_owned(), rows)], within.clone(), columns)
        {
            return matrix;
        }
        let row = columns * self.matrix.size();
        let mut bytes = LineBytes::for_weights(within.len() * row);
        {
            let view = self.weights.get(name, &[rows, columns])?;
            let all = view.to_dtype(self.matrix);
            bytes.copy_from_slice(&all[within.start * row..within.end * row]);
        }
        self.weights.release(name);
        let shape = Shape::from([within.len(), columns]);
        Ok(self.on_device(bytes, shape, self.matrix))
    }

    fn vector(&self, name: &str, size: usize) -> Result<Param<Tensor<B, 1>>, WeightError> {
        self.stacked_vector(&[(name.to_owned(), size)])
    }

    fn stacked_vector(
        &self,
        parts: &[(String, usize)],
    ) -> Result<Param<Tensor<B, 1>>, WeightError> {
        let size: usize = parts.iter().map(|(_, size)| size).sum();
        let shapes = parts
            .iter()
            .map(|(name, size)| (name.as_str(), vec![*size]));
        self.tensor(shapes.collect(), Shape::from([size]), self.vector)
    }

    /// The named tensors one after another, which stacks row-major rows.
    fn tensor<const D: usize>(
        &self,
        parts: Vec<(&str, Vec<usize>)>,
        shape: Shape,
        dtype: Dtype,
    ) -> Result<Param<Tensor<B, D>>, WeightError> {
        let mut bytes = LineBytes::for_weights(shape.num_elements() * dtype.size());
        let mut rest = &mut bytes[..];
        for (name, shape) in parts {
            let view = self.weights.get(name, &shape)?;
            let part = view.to_dtype(dtype);
            let to = rest.split_off_mut(..part.len());
            let to = to.expect("the parts fill the shape");
            to.copy_from_slice(&part);
            drop(part);
            drop(view);
            self.weights.release(name);
        }
        Ok(self.on_device(bytes, shape, dtype))
    }

    fn on_device<const D: usize>(
        &self,
        bytes: LineBytes,
        shape: Shape,
        dtype: Dtype,
    ) -> Param<Tensor<B, D>> {
        let dtype = DType::from(dtype);
        let data = TensorData::from_bytes(bytes.into_bytes(), shape, dtype);
        Param::from_tensor(upload(data, dtype, self.device))
    }
}
