//! Which matrices are packed in blocks for serving, and how they are packed.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use burn::module::Param;
use burn::tensor::{DType, Tensor, TensorPrimitive};
use hearth_shaders::{BlockFormat, BlockMatrix, GROUP_ROWS, Kernels};

use crate::config::{ModelConfig, Packing, Stack};
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
    /// The formats of the matrices of `stack`, if they are in blocks. They are only if all of them
    /// are, in formats that the backend takes together.
    pub(crate) fn formats<B: Kernels>(
        self,
        weights: &Weights,
        stack: &Stack,
    ) -> Option<Vec<BlockFormat>> {
        let names = stack.parts.iter().map(|(name, _)| name.as_str());
        let quantized: Option<Vec<BlockFormat>> = match self.quantized {
            Quantized::None => None,
            Quantized::Rounded(quantization) => {
                Some(names.map(|name| quantization.format(name)).collect())
            }
            Quantized::Stored => {
                let formats: Option<Vec<_>> =
                    names.map(|name| stored_blocks(weights, name)).collect();
                formats.filter(|formats| B::packs(formats))
            }
        };
        let formats = quantized.or_else(|| {
            self.bf16
                .then(|| vec![BlockFormat::Bf16; stack.parts.len()])
        });
        formats.filter(|formats| match stack.packing {
            Packing::Each => true,
            Packing::Never => false,
            Packing::Experts(rows) => {
                let same = formats.iter().all(|format| *format == formats[0]);
                same && rows.is_multiple_of(GROUP_ROWS)
            }
        })
    }

    /// True if experts that are stored in blocks, or were to be rounded to them, become floats: the
    /// backend does not compute with their format, or with so many rows.
    pub fn dequantises_experts<B: Kernels>(self, config: &ModelConfig, weights: &Weights) -> bool {
        let rounded = matches!(self.quantized, Quantized::Rounded(_));
        config.stacks().into_iter().any(|stack| {
            let stored = || {
                let mut names = stack.parts.iter().map(|(name, _)| name);
                names.any(|name| stored_blocks(weights, name).is_some())
            };
            matches!(stack.packing, Packing::Experts(_))
                && (rounded || stored())
                && self.formats::<B>(weights, &stack).is_none()
        })
    }

    /// Bytes of all parameters on the device.
    pub fn weight_bytes<B: Kernels>(
        self,
        config: &ModelConfig,
        weights: &Weights,
        dtype: Dtype,
    ) -> u64 {
        let stacks = config.stacks().into_iter();
        let matrices = stacks.map(|stack| self.stack_bytes::<B>(weights, &stack, dtype));
        matrices.sum::<u64>() + (config.vector_elements() * dtype.size()) as u64
    }

    /// Bytes of the matrices of `stack`.
    pub fn stack_bytes<B: Kernels>(self, weights: &Weights, stack: &Stack, dtype: Dtype) -> u64 {
        let rows = stack.parts.iter().map(|(_, rows)| *rows);
        let bytes: usize = match self.formats::<B>(weights, stack) {
            Some(formats) => rows
                .zip(formats)
                .map(|(rows, format)| B::packed_bytes(format, rows, stack.columns))
                .sum(),
            None => stack.rows() * stack.columns * dtype.size(),
        };
        bytes as u64
    }

    /// The formats of blocks of small integers that occur among the matrices, each once.
    pub fn integers<B: Kernels>(self, config: &ModelConfig, weights: &Weights) -> Vec<BlockFormat> {
        let occurring = self.all_formats::<B>(config, weights);
        BlockFormat::integers()
            .filter(|format| occurring.contains(format))
            .collect()
    }

    /// The formats of the quantized matrices as text; `None` if all matrices are in the type that
    /// the model is served in.
    pub fn describe<B: Kernels>(self, config: &ModelConfig, weights: &Weights) -> Option<String> {
        if let Quantized::Rounded(quantization) = self.quantized {
            return Some(quantization.to_string());
        }
        let formats = self.all_formats::<B>(config, weights).into_iter();
        let kinds: BTreeSet<_> = formats
            .filter(|format| *format != BlockFormat::Bf16)
            .map(|format| format!("{format:?}"))
            .collect();
        (!kinds.is_empty()).then(|| kinds.into_iter().collect::<Vec<_>>().join(", "))
    }

    /// The formats of all matrices that are in blocks.
    fn all_formats<B: Kernels>(self, config: &ModelConfig, weights: &Weights) -> Vec<BlockFormat> {
        let stacks = config.stacks().into_iter();
        let formats = stacks.filter_map(|stack| self.formats::<B>(weights, &stack));
        formats.flatten().collect()
    }
}

/// The format of blocks that `name` is stored in, if it is in blocks.
fn stored_blocks(weights: &Weights, name: &str) -> Option<BlockFormat> {
    match weights.format(name)? {
        Format::Blocks(format) => Some(format),
        _ => None,
    }
}

/// Packs the rows `within` of `stack`, whose matrices are in `formats`, in blocks, for activations of
/// the type `activations`.
///
/// # Errors
/// A tensor is missing or malformed, or a row has a value that blocks cannot represent.
pub(super) fn stacked<B: Kernels>(
    weights: &Weights,
    stack: &Stack,
    formats: &[BlockFormat],
    within: Range<usize>,
    activations: Dtype,
    device: &B::Device,
) -> Result<Param<Tensor<B, 2>>, WeightError> {
    let Stack { parts, columns, .. } = stack;
    let columns = *columns;
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
