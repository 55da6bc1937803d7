//! Which matrices are packed in blocks for serving, and how they are packed.

use std::collections::BTreeSet;
use std::ops::Range;

use burn::module::Param;
use burn::tensor::{DType, Tensor, TensorPrimitive};
use hearth_shaders::{BlockFormat, BlockMatrix, Kernels};
use rayon::prelude::*;

use crate::config::ModelConfig;
use crate::dtype::Dtype;
use crate::weights::{BlockType, Format, Quantization, WeightError, Weights, quantise};

/// Rows that are rounded in parallel before they are put in their places.
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
    /// No matrices: those that are stored in blocks are dequantised.
    None,
    /// The matrices that are stored in a format of blocks which kernels compute with.
    Stored,
    /// All matrices, rounded when they are loaded.
    Rounded(Quantization),
}

impl Blocks {
    /// The format of the blocks of the matrix `name`, if it is in blocks. Stacked matrices are in
    /// blocks only if all matrices of the stack have the same format.
    pub(super) fn format(self, weights: &Weights, name: &str) -> Option<BlockFormat> {
        let quantized = match self.quantized {
            Quantized::None => None,
            Quantized::Rounded(quantization) => Some(quantization.format(name)),
            Quantized::Stored => stored_stack(weights, name),
        };
        quantized.or(self.bf16.then_some(BlockFormat::Bf16))
    }

    /// Bytes of all parameters on the device.
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

    /// Bytes of a matrix whose rows are in the format of the tensor `name`.
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

    /// The formats of quantized blocks that occur among the matrices.
    pub fn integers(self, config: &ModelConfig, weights: &Weights) -> [Option<BlockFormat>; 2] {
        let tensors = config.tensors().into_iter();
        let names = tensors.filter(|(_, shape)| shape.len() == 2);
        let formats: Vec<_> = names
            .filter_map(|(name, _)| self.format(weights, &name))
            .collect();
        [BlockFormat::Q8_0, BlockFormat::Q4_0]
            .map(|format| formats.contains(&format).then_some(format))
    }

    /// The formats of the quantized matrices as text; `None` if all matrices are in the type that
    /// the model is served in.
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

/// The names of all matrices of the stack that `name` belongs to.
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

/// The format of blocks that all matrices of the stack of `name` are stored in, if they share one.
fn stored_stack(weights: &Weights, name: &str) -> Option<BlockFormat> {
    let mut formats = stack(name)
        .into_iter()
        .map(|name| stored_blocks(weights, &name));
    let first = formats.next()??;
    formats.all(|other| other == Some(first)).then_some(first)
}

/// The format of blocks that `name` is stored in, if kernels compute with it.
fn stored_blocks(weights: &Weights, name: &str) -> Option<BlockFormat> {
    match weights.format(name)? {
        Format::Blocks(BlockType::Q8_0) => Some(BlockFormat::Q8_0),
        Format::Blocks(BlockType::Q4_0) => Some(BlockFormat::Q4_0),
        _ => None,
    }
}

/// Stacks the matrices `parts` (`[rows, columns]` each) and packs the rows `within` of the stack in
/// blocks, for activations of the type `activations`.
///
/// # Errors
/// A tensor is missing or malformed, or a row has a value that blocks cannot represent.
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
    // Rows of the preceding parts.
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
        if stored_blocks(weights, name) == Some(format) {
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
    fn all_matrices_of_a_stack_are_named() {
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
