//! The place of one tensor in its file.

use std::ops::Range;

use super::format::Format;
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
