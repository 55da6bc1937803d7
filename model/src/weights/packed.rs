//! Matrices that a quantized Hugging Face checkpoint stores as several tensors: integers or small
//! floats, scales, zero points and the order of the columns.
//!
//! Every layout is decoded to the same numbers, `(integer - zero point) * scale` in f32, which is the
//! arithmetic of the published reference implementations. A product of two f32 of which one is a small
//! integer is exact, if the scale is f16 or bf16.

mod decode;
mod find;
mod layout;

use std::sync::OnceLock;

use super::format::Format;
use super::mapped::Bytes;
use super::stored::StoredTensor;
use crate::dtype::Dtype;
use decode::Decoder;
use layout::{Scale, Values, Zeros};

pub(crate) use find::find;

/// A matrix `[rows, columns]` that several tensors describe.
#[derive(Debug, Clone)]
pub(crate) struct PackedMatrix {
    rows: usize,
    columns: usize,
    values: (Values, StoredTensor),
    scale: (Scale, StoredTensor),
    zeros: Option<(Zeros, StoredTensor)>,
    /// The group of each column, if they are not in order.
    order: Option<StoredTensor>,
    /// The format that holds all numbers exactly; it is found at the first use.
    format: OnceLock<Format>,
}

/// The order of the columns names a group that does not exist.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("has column {column} in group {group}, there are {groups} groups")]
pub(crate) struct NoSuchGroup {
    column: usize,
    group: u32,
    groups: usize,
}

/// The files of a checkpoint, of which only the bytes matter here.
type Files<P> = [(P, Bytes)];

impl PackedMatrix {
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.columns]
    }

    /// The tensor with the integers or the small floats.
    pub fn place(&self) -> &StoredTensor {
        &self.values.1
    }

    /// The tensors that it is stored as.
    pub fn parts(&self) -> impl Iterator<Item = &StoredTensor> {
        let zeros = self.zeros.as_ref().map(|(_, tensor)| tensor);
        [&self.values.1, &self.scale.1]
            .into_iter()
            .chain(zeros)
            .chain(&self.order)
    }

    /// How the matrix is stored, for a digest.
    pub fn describe(&self) -> String {
        let zeros = self.zeros.as_ref().map(|(zeros, _)| zeros);
        format!("{:?} {:?} {zeros:?}", self.values.0, self.scale.0)
    }

    /// Bytes in the files.
    pub fn bytes(&self) -> usize {
        self.parts().map(|part| part.bytes.len()).sum()
    }

    /// The format in which [`decode`](Self::decode) returns the matrix: blocks, if they hold exactly
    /// the same numbers, and f32 otherwise.
    pub fn format<P>(&self, files: &Files<P>) -> Format {
        let found = self.format.get_or_init(|| {
            let decoder = Decoder::new(self, files);
            let blocks = decoder.ok().and_then(|decoder| decoder.exact_blocks());
            blocks.map_or(Format::Float(Dtype::F32), Format::Blocks)
        });
        found.clone()
    }

    /// The rows, in [`format`](Self::format).
    ///
    /// # Errors
    /// The order of the columns names a group that does not exist.
    pub fn decode<P>(&self, files: &Files<P>) -> Result<Vec<u8>, NoSuchGroup> {
        let decoder = Decoder::new(self, files)?;
        Ok(match self.format(files) {
            Format::Blocks(format) => decoder.blocks(format),
            _ => decoder.floats(),
        })
    }
}

#[cfg(test)]
mod tests;
