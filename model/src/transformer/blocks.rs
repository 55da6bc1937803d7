//! Which matrices are packed in blocks for serving, and how they are packed.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use burn::module::Param;
use burn::tensor::{DType, Tensor, TensorPrimitive};
use hearth_shaders::{BlockFormat, BlockMatrix, Kernels};

use crate::config::ModelConfig;
use crate::dtype::Dtype;
use crate::weights::{Format, Quantization, WeightError, Weights, quantise};

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
    /// blocks only if all matrices of the stack are, in formats that the backend takes together.
    pub(super) fn format<B: Kernels>(self, weights: &Weights, name: &str) -> Option<BlockFormat> {
        let quantized = match self.quantized {
            Quantized::None => None,
            Quantized::Rounded(quantization) => Some(quantization.format(name)),
            Quantized::Stored => {
                let stack = stack(name).into_iter();
                let formats = stack.map(|name| stored_blocks(weights, &name));
                let formats: Option<Vec<BlockFormat>> = formats.collect();
                formats
                    .filter(|formats| B::packs(formats))
                    .and(stored_blocks(weights, name))
            }
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
        let bytes = match self.format::<B>(weights, name) {
            Some(format) => B::packed_bytes(format, rows, columns),
            None => rows * columns * dtype.size(),
        };
        bytes as u64
    }

    /// The formats of quantized blocks that occur among the matrices, of those that GPUs compute
    /// with.
    pub fn integers<B: Kernels>(
        self,
        config: &ModelConfig,
        weights: &Weights,
    ) -> [Option<BlockFormat>; 2] {
        let tensors = config.tensors().into_iter();
        let names = tensors.filter(|(_, shape)| shape.len() == 2);
        let formats: Vec<_> = names
            .filter_map(|(name, _)| self.format::<B>(weights, &name))
            .collect();
        [BlockFormat::Q8_0, BlockFormat::Q4_0]
            .map(|format| formats.contains(&format).then_some(format))
    }

    /// The formats of the quantized matrices as text; `None` if all matrices are in the type that
    /// the model is served in.
    pub fn describe<B: Kernels>(self, config: &ModelConfig, weights: &Weights) -> Option<String> {
        if let Quantized::Rounded(quantization) = self.quantized {
            return Some(quantization.to_string());
        }
        let names = config.tensors().into_iter().map(|(name, _)| name);
        let kinds: BTreeSet<_> = names
            .filter_map(|name| self.format::<B>(weights, &name))
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

/// The format of blocks that `name` is stored in, if it is in blocks.
fn stored_blocks(weights: &Weights, name: &str) -> Option<BlockFormat> {
    match weights.format(name)? {
        Format::Blocks(format) => Some(format),
        _ => None,
    }
}

/// Stacks the matrices `parts` (`[rows, columns]` each, in `formats`) and packs the rows `within` of
/// the stack in blocks, for activations of the type `activations`.
///
/// # Errors
/// A tensor is missing or malformed, or a row has a value that blocks cannot represent.
pub(super) fn stacked<B: Kernels>(
    weights: &Weights,
    parts: &[(String, usize)],
    formats: &[BlockFormat],
    within: Range<usize>,
    columns: usize,
    activations: Dtype,
    device: &B::Device,
) -> Result<Param<Tensor<B, 2>>, WeightError> {
    // The rows of the stack that come from each part.
    let mut before = 0;
    let ranges = parts.iter().map(|(_, rows)| {
        let first = before;
        before += rows;
        (first, within.start.max(first)..within.end.min(before))
    });
    let pieces: Vec<_> = ranges
        .zip(parts.iter().zip(formats))
        .filter(|((_, here), _)| !here.is_empty())
        .collect();
    let sizes: Vec<_> = pieces
        .iter()
        .map(|((_, here), (_, format))| (**format, here.len()))
        .collect();
    let mut matrix = BlockMatrix::zeros(&sizes, columns);
    for ((first, here), ((name, rows), format)) in pieces {
        let to = here.start - within.start..here.end - within.start;
        let from = here.start - first;
        let view = weights.get(name, &[*rows, columns])?;
        let set = if stored_blocks(weights, name) == Some(*format) {
            matrix.set_rows(to, |row| Some(Cow::Borrowed(view.row_bytes(from + row))))
        } else if *format == BlockFormat::Bf16 {
            let encoded = view.to_dtype(Dtype::Bf16);
            let bytes = columns * Dtype::Bf16.size();
            matrix.set_rows(to, |row| {
                Some(Cow::Borrowed(&encoded[(from + row) * bytes..][..bytes]))
            })
        } else {
            matrix.set_rows(to, |row| {
                let mut values = vec![0.0; columns];
                view.row(from + row, &mut values);
                quantise::row(*format, &values).map(Cow::Owned)
            })
        };
        set.map_err(|row| WeightError::NotFinite {
            tensor: name.clone(),
            row: from + row,
        })?;
        drop(view);
        weights.release(name);
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
