//! Tensors that have a matrix of all experts of a layer, cut into one for each expert.
//!
//! Most are cut where they lie in their file. GPT-OSS stores floats as `[experts, in, out]` with gates
//! and other rows alternating, and blocks apart from their scales; such parts are put together
//! when they are read.

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::path::PathBuf;

use hearth_shaders::BlockFormat;

use super::error::WeightError;
use super::format::Format;
use super::mapped::Bytes;
use super::stored::StoredTensor;
use super::{Source, Weights};
use crate::config::{ExpertMatrix, ExpertTensors};

/// Elements of a block of GPT-OSS, and its bytes without the scale.
const BLOCK: usize = 32;
const BLOCK_BYTES: usize = BLOCK / 2;

/// A part of one expert that is put together when it is read.
#[derive(Debug, Clone)]
pub(super) enum Gathered {
    /// Elements at regular distances.
    Strided {
        /// The part of the file with one expert.
        from: StoredTensor,
        first: usize,
        /// Elements from one row to the next, and from one column to the next.
        strides: [usize; 2],
        shape: Vec<usize>,
    },
    /// Rows in blocks, whose scales are in a tensor of their own.
    Blocks {
        /// The parts of the files with one expert.
        blocks: StoredTensor,
        scales: StoredTensor,
        first: usize,
        /// Rows from one to the next.
        step: usize,
        shape: Vec<usize>,
    },
}

impl Gathered {
    pub fn format(&self) -> Format {
        match self {
            Self::Strided { from, .. } => from.format.clone(),
            Self::Blocks { .. } => Format::Blocks(BlockFormat::MXFP4),
        }
    }

    pub fn shape(&self) -> &[usize] {
        match self {
            Self::Strided { shape, .. } | Self::Blocks { shape, .. } => shape,
        }
    }

    /// Bytes of the part.
    pub fn length(&self) -> usize {
        let (elements, bytes) = self.format().block();
        self.shape().iter().product::<usize>() / elements * bytes
    }

    /// Where its bytes are in the files, with those of other parts between them.
    pub fn places(&self) -> Vec<&StoredTensor> {
        match self {
            Self::Strided { from, .. } => vec![from],
            Self::Blocks { blocks, scales, .. } => vec![blocks, scales],
        }
    }

    /// The part row by row, in the format [`Self::format`].
    pub fn bytes(&self, files: &[(PathBuf, Bytes)]) -> Vec<u8> {
        let stored = |tensor: &StoredTensor| tensor.bytes_in(files);
        let mut out = Vec::with_capacity(self.length());
        match self {
            Self::Strided {
                from,
                first,
                strides: [row_stride, column_stride],
                shape,
            } => {
                let (bytes, (_, size)) = (stored(from), from.format.block());
                let columns = shape.get(1).copied().unwrap_or(1);
                for row in 0..shape[0] {
                    for column in 0..columns {
                        let at = first + row * row_stride + column * column_stride;
                        out.extend_from_slice(&bytes[at * size..][..size]);
                    }
                }
            }
            Self::Blocks {
                blocks,
                scales,
                first,
                step,
                shape,
            } => {
                let (blocks, scales) = (stored(blocks), stored(scales));
                let of_row = shape[1] / BLOCK;
                for row in 0..shape[0] {
                    let from = (first + row * step) * of_row;
                    for block in from..from + of_row {
                        let pairs = &blocks[block * BLOCK_BYTES..][..BLOCK_BYTES];
                        out.push(scales[block]);
                        out.extend(halves(pairs));
                    }
                }
            }
        }
        out
    }
}

/// From two neighbours in each byte to an element of the first and one of the second half, as GGML
/// has them.
fn halves(pairs: &[u8]) -> impl Iterator<Item = u8> {
    let element = |index: usize| pairs[index / 2] >> (index % 2 * 4) & 0xf;
    (0..BLOCK / 2).map(move |index| element(index) | element(index + BLOCK / 2) << 4)
}

/// A tensor with one or two matrices of all experts of a layer.
struct Merged<'a> {
    layer: &'a ExpertTensors,
    matrices: &'a [ExpertMatrix],
    /// Rows and columns of one matrix of one expert.
    shape: [usize; 2],
    interleaved: bool,
}

impl Merged<'_> {
    /// Rows of one expert.
    fn rows(&self) -> usize {
        self.matrices.len() * self.shape[0]
    }

    /// Each matrix, its first row among those of an expert, and the rows from one to the next.
    fn parts(&self) -> impl Iterator<Item = (ExpertMatrix, usize, usize)> {
        let (count, rows, interleaved) = (self.matrices.len(), self.shape[0], self.interleaved);
        let parts = self.matrices.iter().enumerate();
        parts.map(move |(index, matrix)| match interleaved {
            true => (*matrix, index, count),
            false => (*matrix, index * rows, 1),
        })
    }
}

impl Weights {
    /// Cuts the tensors that have all experts of a layer, if there are any.
    ///
    /// # Errors
    /// Such a tensor has a shape or a format that contradicts `layer`.
    pub(crate) fn split_experts(&mut self, layer: &ExpertTensors) -> Result<(), WeightError> {
        let (gate, up, down) = (ExpertMatrix::Gate, ExpertMatrix::Up, ExpertMatrix::Down);
        let (inner, outer) = ([layer.width, layer.hidden], [layer.hidden, layer.width]);
        for (name, matrices, shape) in [
            ("gate_up_proj", vec![gate, up], inner),
            ("gate_proj", vec![gate], inner),
            ("up_proj", vec![up], inner),
            ("down_proj", vec![down], outer),
        ] {
            let name = format!("{}.{name}", layer.merged);
            // Parameters of modules have no suffix. Files that are not Hugging Face's have one, and there
            // nothing alternates.
            for (suffixes, interleaved) in [
                (["", "_bias"], layer.interleaved),
                ([".weight", ".bias"], false),
            ] {
                let merged = Merged {
                    layer,
                    matrices: &matrices,
                    shape,
                    interleaved,
                };
                let [matrix, bias] = suffixes.map(|suffix| format!("{name}{suffix}"));
                self.split_matrix(&matrix, &merged)?;
                self.split_biases(&bias, &merged)?;
                self.split_blocks(&matrix, &merged)?;
            }
        }
        Ok(())
    }

    fn split_matrix(&mut self, name: &str, merged: &Merged<'_>) -> Result<(), WeightError> {
        let (layer, [_, columns]) = (merged.layer, merged.shape);
        let shape = match merged.interleaved {
            true => [layer.experts, columns, merged.rows()],
            false => [layer.experts, merged.rows(), columns],
        };
        let Some(all) = self.take_experts(name, &shape)? else {
            return Ok(());
        };
        let (elements, bytes) = all.format.block();
        // Elements of blocks cannot be put into another order.
        if bytes == 0 || merged.interleaved && elements > 1 {
            return Err(self.unsupported(name, &all));
        }
        if !columns.is_multiple_of(elements) {
            return Err(WeightError::CutBlock {
                tensor: name.to_owned(),
                block: elements,
                columns,
            });
        }
        for (expert, one) in slices(&all, layer.experts).enumerate() {
            for (matrix, first, step) in merged.parts() {
                let name = format!("{}.weight", layer.name(expert, matrix));
                let shape = merged.shape.to_vec();
                if merged.interleaved {
                    let part = Gathered::Strided {
                        from: one.clone(),
                        first,
                        strides: [step, merged.rows()],
                        shape,
                    };
                    self.add_gathered(name, part);
                } else {
                    self.add_slice(name, &one, first * columns, shape);
                }
            }
        }
        Ok(())
    }

    fn split_blocks(&mut self, name: &str, merged: &Merged<'_>) -> Result<(), WeightError> {
        let (layer, [_, columns]) = (merged.layer, merged.shape);
        let (blocks, scales) = (format!("{name}_blocks"), format!("{name}_scales"));
        let shape = [layer.experts, merged.rows(), columns / BLOCK, BLOCK_BYTES];
        let Some(all) = self.take_experts(&blocks, &shape)? else {
            return Ok(());
        };
        let Some(all_scales) = self.take_experts(&scales, &shape[..3])? else {
            return Err(self.missing(&scales));
        };
        for (name, tensor) in [(&blocks, &all), (&scales, &all_scales)] {
            let byte = tensor.bytes.len() == tensor.shape.iter().product::<usize>();
            if !byte {
                return Err(self.unsupported(name, tensor));
            }
        }
        if !columns.is_multiple_of(BLOCK) {
            return Err(WeightError::CutBlock {
                tensor: blocks,
                block: BLOCK,
                columns,
            });
        }
        let experts = slices(&all, layer.experts).zip(slices(&all_scales, layer.experts));
        for (expert, (blocks, scales)) in experts.enumerate() {
            for (matrix, first, step) in merged.parts() {
                let part = Gathered::Blocks {
                    blocks: blocks.clone(),
                    scales: scales.clone(),
                    first,
                    step,
                    shape: merged.shape.to_vec(),
                };
                self.add_gathered(format!("{}.weight", layer.name(expert, matrix)), part);
            }
        }
        Ok(())
    }

    fn split_biases(&mut self, name: &str, merged: &Merged<'_>) -> Result<(), WeightError> {
        let layer = merged.layer;
        let Some(all) = self.take_experts(name, &[layer.experts, merged.rows()])? else {
            return Ok(());
        };
        if !matches!(all.format, Format::Float(_)) {
            return Err(self.unsupported(name, &all));
        }
        for (expert, one) in slices(&all, layer.experts).enumerate() {
            for (matrix, first, step) in merged.parts() {
                let part = Gathered::Strided {
                    from: one.clone(),
                    first,
                    strides: [step, 0],
                    shape: vec![merged.shape[0]],
                };
                self.add_gathered(format!("{}.bias", layer.name(expert, matrix)), part);
            }
        }
        Ok(())
    }

    /// Removes the tensor `name`, if there is one, which must have the shape `expected`.
    fn take_experts(
        &mut self,
        name: &str,
        expected: &[usize],
    ) -> Result<Option<StoredTensor>, WeightError> {
        let Source::Files { entries, .. } = &mut self.source else {
            return Ok(None);
        };
        let bare = name.strip_prefix("model.").unwrap_or(name);
        let Some(stored) = entries.remove(name).or_else(|| entries.remove(bare)) else {
            return Ok(None);
        };
        self.expect_shape(name, &stored, &stored.shape, expected)?;
        Ok(Some(stored))
    }

    /// The elements of `from` from `first` on.
    fn add_slice(&mut self, name: String, from: &StoredTensor, first: usize, shape: Vec<usize>) {
        let (elements, bytes) = from.format.block();
        let length = shape.iter().product::<usize>() / elements * bytes;
        let start = from.bytes.start + first / elements * bytes;
        if let Source::Files { entries, .. } = &mut self.source {
            let slice = StoredTensor {
                shape,
                bytes: start..start + length,
                ..from.clone()
            };
            entries.insert(name, slice);
        }
    }

    fn add_gathered(&mut self, name: String, part: Gathered) {
        if let Source::Files { gathered, .. } = &mut self.source {
            gathered.insert(name, part);
        }
    }
}

/// The parts of `all`, whose first dimension is the experts.
fn slices(all: &StoredTensor, experts: usize) -> impl Iterator<Item = StoredTensor> {
    let length = all.bytes.len() / experts;
    let range = move |expert: usize| -> Range<usize> {
        let start = all.bytes.start + expert * length;
        start..start + length
    };
    (0..experts).map(move |expert| StoredTensor {
        shape: all.shape[1..].to_vec(),
        bytes: range(expert),
        ..all.clone()
    })
}
