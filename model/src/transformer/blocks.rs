//! Which matrices are packed in blocks while they serve, and how they get there.

use std::collections::BTreeSet;
use std::ops::Range;

use burn::module::Param;
use burn::tensor::{DType, Tensor, TensorPrimitive};
use hearth_shaders::{BlockFormat, BlockMatrix, Kernels};
use rayon::prelude::*;

use crate::config::ModelConfig;
use crate::dtype::Dtype;
use crate::weights::{BlockType, Format, Quantization, WeightError, Weights, quantise};

/// Rows that are rounded before they are put in their places.
const ROWS: usize = 512;

/// Which matrices are in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    pub quantized: Quantized,
    /// All others are packed in bf16.
    pub bf16: bool,
}

/// Which matrices are in blocks of small integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantized {
    /// None: whatever is stored in them is dequantised.
    None,
    /// Those that are stored in blocks which kernels compute with.
    Stored,
    /// All of them.
    Rounded(Quantization),
}

impl Blocks {
    /// The blocks that the matrix `name` is in, if it is. Matrices that are stacked with others
    /// are in blocks only if all are in the same.
    pub(super) fn format(self, weights: &Weights, name: &str) -> Option<BlockFormat> {
        let quantized = match self.quantized {
            Quantized::None => None,
            Quantized::Rounded(quantization) => Some(quantization.format(name)),
            Quantized::Stored => stored(weights, name),
        };
        quantized.or(self.bf16.then_some(BlockFormat::Bf16))
    }

    /// Bytes that the parameters take.
    pub fn weight_bytes<B: Kernels>(
        self,
        config: &ModelConfig,
        weights: &Weights,
        dtype: Dtype,
    ) -> u64 {
        let tensors = config.tensors().into_iter();
        let bytes = tensors.map(|(name, shape)| match shape.as_slice() {
            [rows, columns] => self.matrix_bytes::<B>(weights, &name, [*rows, *columns], dtype),
            _ => (shape.iter().product::<usize>() * dtype.size()) as u64,
        });
        bytes.sum()
    }

    /// Bytes that a matrix takes whose rows are in what the tensor `name` is in.
    pub fn matrix_bytes<B: Kernels>(
        self,
        weights: &Weights,
        name: &str,
        [rows, columns]: [usize; 2],
        dtype: Dtype,
    ) -> u64 {
        let bytes = match self.format(weights, name) {
            Some(format) => B::packed_bytes(format, rows, columns),
            None => rows * columns * dtype.size(),
        };
        bytes as u64
    }

    /// The blocks of integers that matrices are in.
    pub fn integers(self, config: &ModelConfig, weights: &Weights) -> [Option<BlockFormat>; 2] {
        let tensors = config.tensors().into_iter();
        let names = tensors.filter(|(_, shape)| shape.len() == 2);
        let formats: Vec<_> = names
            .filter_map(|(name, _)| self.format(weights, &name))
            .collect();
        [BlockFormat::Q8_0, BlockFormat::Q4_0]
            .map(|format| formats.contains(&format).then_some(format))
    }

    /// What the matrices are in, for people; `None` when they are in what the model is served in.
    pub fn describe(self, config: &ModelConfig, weights: &Weights) -> Option<String> {
        if let Quantized::Rounded(quantization) = self.quantized {
            return Some(quantization.to_string());
        }
        let names = config.tensors().into_iter().map(|(name, _)| name);
        let kinds: BTreeSet<_> = names
            .filter_map(|name| self.format(weights, &name))
            .filter(|format| *format != BlockFormat::Bf16)
            .map(|format| format!("{format:?}"))
            .collect();
        (!kinds.is_empty()).then(|| kinds.into_iter().collect::<Vec<_>>().join(", "))
    }
}

/// The names of the matrices that `name` is stacked with, its own among them.
fn stack(name: &str) -> Vec<String> {
    for (parts, place) in [
        (["q", "k", "v"].as_slice(), "self_attn."),
        (&["gate", "up"], "mlp."),
    ] {
        let cut = name.split_once(place).and_then(|(layer, rest)| {
            let (part, rest) = rest.split_once("_proj.")?;
            parts.contains(&part).then_some((layer, rest))
        });
        if let Some((layer, rest)) = cut {
            let names = parts.iter();
            return names
                .map(|part| format!("{layer}{place}{part}_proj.{rest}"))
                .collect();
        }
    }
    vec![name.to_owned()]
}

/// The blocks that `name` and all that it is stacked with are stored in.
fn stored(weights: &Weights, name: &str) -> Option<BlockFormat> {
    let mut formats = stack(name).into_iter().map(|name| kept(weights, &name));
    let first = formats.next()??;
    formats.all(|other| other == Some(first)).then_some(first)
}

/// The blocks that `name` is stored in, if kernels compute with them.
fn kept(weights: &Weights, name: &str) -> Option<BlockFormat> {
    match weights.format(name)? {
        Format::Blocks(BlockType::Q8_0) => Some(BlockFormat::Q8_0),
        Format::Blocks(BlockType::Q4_0) => Some(BlockFormat::Q4_0),
        _ => None,
    }
}

/// The matrices `parts` `[rows, columns]`, one below another, in blocks: of their rows those
/// `within`. They are multiplied with activations in `activations`.
pub(super) fn stacked<B: Kernels>(
    weights: &Weights,
    parts: &[(String, usize)],
    within: Range<usize>,
    columns: usize,
    format: BlockFormat,
    activations: Dtype,
    device: &B::Device,
) -> Result<Param<Tensor<B, 2>>, WeightError> {
    let mut matrix = BlockMatrix::zeros(format, within.len(), columns);
    // Rows of the parts before.
    let mut before = 0;
    for (name, rows) in parts {
        let here = within.start.max(before)..within.end.min(before + rows);
        if here.is_empty() {
            before += rows;
            continue;
        }
        let (from, to) = (here.start - before, here.end - before);
        let first = here.start - within.start;
        let view = weights.get(name, &[*rows, columns])?;
        if kept(weights, name) == Some(format) {
            for row in from..to {
                matrix.set_row(first + row - from, view.row_bytes(row));
            }
        } else if format == BlockFormat::Bf16 {
            let encoded = view.to_dtype(Dtype::Bf16);
            let encoded = encoded.chunks_exact(columns * Dtype::Bf16.size());
            for (row, bytes) in encoded.enumerate().take(to).skip(from) {
                matrix.set_row(first + row - from, bytes);
            }
        } else {
            for start in (from..to).step_by(ROWS) {
                let rounded = (start..(start + ROWS).min(to)).into_par_iter().map(|row| {
                    let mut values = vec![0.0; columns];
                    view.row(row, &mut values);
                    quantise::row(format, &values)
                });
                for (row, blocks) in rounded.collect::<Vec<_>>().into_iter().enumerate() {
                    let blocks = blocks.ok_or_else(|| WeightError::NotFinite {
                        tensor: name.clone(),
                        row: start + row,
                    })?;
                    matrix.set_row(first + start - from + row, &blocks);
                }
            }
        }
        drop(view);
        weights.release(name);
        before += rows;
    }
    let matrix = B::packed(matrix, DType::from(activations), device);
    let matrix = TensorPrimitive::Float(matrix);
    Ok(Param::from_tensor(Tensor::from_primitive(matrix)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacked_matrices_know_each_other() {
        assert_eq!(
            stack("model.layers.7.self_attn.k_proj.weight"),
            ["q", "k", "v"].map(|part| format!("model.layers.7.self_attn.{part}_proj.weight"))
        );
        assert_eq!(
            stack("model.layers.0.mlp.up_proj.weight"),
            ["gate", "up"].map(|part| format!("model.layers.0.mlp.{part}_proj.weight"))
        );
        for alone in [
            "model.layers.0.mlp.down_proj.weight",
            "model.layers.0.self_attn.o_proj.weight",
            "lm_head.weight",
        ] {
            assert_eq!(stack(alone), [alone]);
        }
    }
}
