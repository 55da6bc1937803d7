//! The place of one tensor in its file.

use std::ops::Range;

use super::format::Format;
use super::mapped::Bytes;
use super::view::HeadOrder;

/// One tensor as a file stores it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StoredTensor {
    /// Index of the file that has the tensor.
    pub file: usize,
    pub format: Format,
    /// Row-major.
    pub shape: Vec<usize>,
    /// In the file.
    pub bytes: Range<usize>,
    /// The order of the rows of each head, if that is not Hugging Face's.
    pub heads: Option<HeadOrder>,
}

impl StoredTensor {
    /// Its bytes in the files of its checkpoint.
    pub fn bytes_in<'a, P>(&self, files: &'a [(P, Bytes)]) -> &'a [u8] {
        &files[self.file].1.as_slice()[self.bytes.clone()]
    }
}
