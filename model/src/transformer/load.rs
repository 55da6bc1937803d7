//! Loading of the parameters from a checkpoint's weights, by their Hugging Face names.

use std::ops::Range;

use burn::module::Param;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Shape, Tensor, TensorData};
use hearth_shaders::{Kernels, LineBytes, upload};
use rayon::prelude::*;

use super::blocks::{self, Blocks};
use super::parameters::{DenseMlp, ExpertMlp, Layer, LayerMlp, SharedExpert, Transformer};
use super::table::Table;
use crate::config::{Linear, MlpTensors, ModelConfig, Stack};
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
                norms: Norms::of(config, vector),
                device,
                serving: None,
            },
        )
    }

    fn load_with(config: &ModelConfig, loader: &Loader<'_, B>) -> Result<Self, WeightError> {
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        Ok(Self {
            embedding: loader.table(&config.embedding_name(), vocab, hidden)?,
            layers: (0..config.layers.len())
                .map(|index| loader.layer(config, index))
                .collect::<Result<_, _>>()?,
            norm: loader.norm(&(config.norm_name(), hidden))?,
            lm_head: config
                .lm_head_name()
                .map(|name| loader.table(&name, vocab, hidden))
                .transpose()?,
        })
    }
}

/// How parameters are kept that only serve.
#[derive(Clone, Copy)]
pub struct ServedAs {
    /// The type of matrices that are not in blocks.
    pub matrix: Dtype,
    /// The type of norms and biases, and of the activations that blocks are multiplied with.
    pub vector: Dtype,
    /// Which matrices are packed in blocks; the backend must support them.
    pub blocks: Blocks,
    /// Embedding and output projection are split into parts if they have more bytes.
    pub largest: u64,
}

impl<B: Kernels> Transformer<B> {
    /// As [`Transformer::load`], for serving.
    ///
    /// # Errors
    /// As [`Transformer::load`], and a row of values that cannot be packed in blocks.
    pub fn load_for_serving(
        config: &ModelConfig,
        weights: &Weights,
        served: ServedAs,
        device: &B::Device,
    ) -> Result<Self, WeightError> {
        let norms = Norms::of(config, served.vector);
        served.with_loader(weights, norms, device, |loader| {
            Self::load_with(config, loader)
        })
    }
}

impl ServedAs {
    /// The table `name` of the given shape.
    ///
    /// # Errors
    /// As [`Transformer::load_for_serving`].
    pub(super) fn table<B: Kernels>(
        self,
        weights: &Weights,
        name: &str,
        [rows, columns]: [usize; 2],
        device: &B::Device,
    ) -> Result<Table<B>, WeightError> {
        let norms = Norms {
            dtype: self.vector,
            offset: 0.0,
        };
        self.with_loader(weights, norms, device, |loader: &Loader<'_, B>| {
            loader.table(name, rows, columns)
        })
    }

    /// The rows of each part of a table of so many `rows`, where `bytes` returns the bytes of some.
    pub(super) fn rows_of_a_part(self, rows: usize, bytes: impl Fn(usize) -> u64) -> usize {
        let mut in_parts = (1..=rows).map(|parts| rows.div_ceil(parts));
        let found = in_parts.find(|rows| bytes(*rows) <= self.largest);
        found.unwrap_or(1)
    }

    fn with_loader<B: Kernels, T>(
        self,
        weights: &Weights,
        norms: Norms,
        device: &B::Device,
        load: impl FnOnce(&Loader<'_, B>) -> Result<T, WeightError>,
    ) -> Result<T, WeightError> {
        let Self {
            matrix,
            vector,
            blocks,
            ..
        } = self;
        let stacked = |stack: &Stack, within| {
            let formats = blocks.formats::<B>(weights, stack)?;
            Some(blocks::stacked::<B>(
                weights, stack, &formats, within, vector, device,
            ))
        };
        let rows_of_a_part = |name: &str, [rows, columns]: [usize; 2]| {
            self.rows_of_a_part(rows, |rows| {
                blocks.stack_bytes::<B>(weights, &Stack::of(name, rows, columns), matrix)
            })
        };
        load(&Loader::<B> {
            weights,
            matrix,
            vector,
            norms,
            device,
            serving: Some(Serving {
                stacked: &stacked,
                rows_of_a_part: &rows_of_a_part,
            }),
        })
    }
}

/// Stacks several matrices, or a range of their rows, into one matrix in blocks; `None` if they are
/// not to be in blocks.
type StackBlocks<'a, B> =
    &'a dyn Fn(&Stack, Range<usize>) -> Option<Result<Param<Tensor<B, 2>>, WeightError>>;

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
    norms: Norms,
    device: &'a B::Device,
    serving: Option<Serving<'a, B>>,
}

/// How the weights of norms are kept.
#[derive(Clone, Copy)]
struct Norms {
    dtype: Dtype,
    /// A number that is added to those of the checkpoint.
    offset: f32,
}

impl Norms {
    fn of(config: &ModelConfig, vector: Dtype) -> Self {
        match config.norms_from_one {
            // 1 + w has more bits than w.
            true => Self {
                dtype: Dtype::F32,
                offset: 1.0,
            },
            false => Self {
                dtype: vector,
                offset: 0.0,
            },
        }
    }
}

type Matrix<B> = Param<Tensor<B, 2>>;
type Vector<B> = Param<Tensor<B, 1>>;

impl<B: Backend> Loader<'_, B> {
    fn layer(&self, config: &ModelConfig, index: usize) -> Result<Layer<B>, WeightError> {
        let tensors = config.layer_tensors(index);
        let norm =
            |of: &Option<(String, usize)>| of.as_ref().map(|tensor| self.norm(tensor)).transpose();
        let (qkv, qkv_bias) = self.linear(&tensors.qkv)?;
        let (output, output_bias) = self.linear(&tensors.output)?;
        Ok(Layer {
            attention_norm: norm(&tensors.attention_norm)?,
            attention_post_norm: norm(&tensors.attention_post_norm)?,
            qkv,
            qkv_bias,
            q_norm: norm(&tensors.q_norm)?,
            k_norm: norm(&tensors.k_norm)?,
            sinks: tensors
                .sinks
                .map(|sinks| self.stacked_vector(&[sinks]))
                .transpose()?,
            output,
            output_bias,
            mlp_norm: norm(&tensors.mlp_norm)?,
            mlp_post_norm: norm(&tensors.mlp_post_norm)?,
            mlp: match &tensors.mlp {
                MlpTensors::Dense { gate_up, down } => LayerMlp::Dense(self.mlp(gate_up, down)?),
                MlpTensors::Experts {
                    router,
                    gate_up,
                    down,
                    shared,
                } => {
                    let (router, router_bias) = self.linear(router)?;
                    let shared = shared.as_ref().map(|shared| {
                        Ok(SharedExpert {
                            mlp: self.mlp(&shared.gate_up, &shared.down)?,
                            gate: self.linear(&shared.gate)?.0,
                        })
                    });
                    LayerMlp::Experts(ExpertMlp {
                        router,
                        router_bias,
                        experts: self.mlp(gate_up, down)?,
                        shared: shared.transpose()?,
                    })
                }
            },
        })
    }

    fn mlp(&self, gate_up: &Linear, down: &Linear) -> Result<DenseMlp<B>, WeightError> {
        let (gate_up, gate_up_bias) = self.linear(gate_up)?;
        let (down, down_bias) = self.linear(down)?;
        Ok(DenseMlp {
            gate_up,
            gate_up_bias,
            down,
            down_bias,
        })
    }

    /// The matrix and the bias.
    fn linear(&self, of: &Linear) -> Result<(Matrix<B>, Option<Vector<B>>), WeightError> {
        let matrix = self.stacked_matrix(&of.stack())?;
        let bias = of.biases().map(|parts| self.stacked_vector(&parts));
        Ok((matrix, bias.transpose()?))
    }

    fn norm(&self, (name, size): &(String, usize)) -> Result<Vector<B>, WeightError> {
        let Norms { dtype, offset } = self.norms;
        if offset == 0.0 {
            return self.tensor(vec![(name, vec![*size])], Shape::from([*size]), dtype);
        }
        let values = self.weights.get(name, &[*size])?.to_f32();
        self.weights.release(name);
        let values: Vec<f32> = values.iter().map(|value| value + offset).collect();
        let data = TensorData::new(values, [*size]);
        Ok(Param::from_tensor(upload(
            data,
            DType::from(dtype),
            self.device,
        )))
    }

    fn matrix(
        &self,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> Result<Param<Tensor<B, 2>>, WeightError> {
        self.stacked_matrix(&Stack::of(name, rows, columns))
    }

    fn stacked_matrix(&self, stack: &Stack) -> Result<Param<Tensor<B, 2>>, WeightError> {
        let (rows, columns) = (stack.rows(), stack.columns);
        if let Some(serving) = &self.serving
            && let Some(matrix) = (serving.stacked)(stack, 0..rows)
        {
            return matrix;
        }
        let shapes = stack
            .parts
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
            && let Some(matrix) = (serving.stacked)(&Stack::of(name, rows, columns), within.clone())
        {
            return matrix;
        }
        let row = columns * self.matrix.size();
        let mut bytes = LineBytes::for_weights(within.len() * row);
        {
            let view = self.weights.get(name, &[rows, columns])?;
            let all = view.to_dtype(self.matrix);
            copy(&all[within.start * row..within.end * row], &mut bytes);
        }
        self.weights.release(name);
        let shape = Shape::from([within.len(), columns]);
        Ok(self.on_device(bytes, shape, self.matrix))
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
            copy(&part, to);
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

/// Copies bytes of the same length with all threads: one alone does not read as fast as the memory can,
/// and each new page of `to` costs time as well.
fn copy(from: &[u8], to: &mut [u8]) {
    const PIECE: usize = 4 << 20;
    assert_eq!(from.len(), to.len(), "bytes of a tensor");
    let pieces = from.par_chunks(PIECE).zip(to.par_chunks_mut(PIECE));
    pieces.for_each(|(from, to)| to.copy_from_slice(from));
}
