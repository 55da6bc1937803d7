//! The elements of one tensor as they lie in its file.

use std::borrow::Cow;

use super::format::Format;
use crate::dtype::Dtype;

/// Values that are decoded at a time: a whole number of blocks, and few beside a whole tensor.
const PIECE: usize = 1 << 12;

/// The order of the rows of each head in GGUF's `llama`: rows that are rotated together lie next
/// to each other. Hugging Face has the first row of each pair in the first half of the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadOrder {
    pub head_dim: usize,
    /// The number of rows at the start of a head that come in pairs.
    pub rotary_dim: usize,
}

impl HeadOrder {
    /// The index in the file of the row that Hugging Face has at `row`.
    fn source(self, row: usize) -> usize {
        let (head, at) = (row / self.head_dim, row % self.head_dim);
        let half = self.rotary_dim / 2;
        let at = match at {
            at if at < half => 2 * at,
            at if at < 2 * half => 2 * (at - half) + 1,
            at => at,
        };
        head * self.head_dim + at
    }
}

/// One tensor: row-major little-endian elements or blocks, not necessarily aligned.
#[derive(Debug, Clone)]
pub struct TensorView<'a> {
    pub format: Format,
    pub shape: Vec<usize>,
    /// Borrowed from the file where there is one.
    pub bytes: Cow<'a, [u8]>,
    /// The order of the rows of each head, if that is not Hugging Face's.
    pub heads: Option<HeadOrder>,
}

impl TensorView<'_> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as f32, which holds every f16 and bf16 exactly.
    pub fn to_f32(&self) -> Vec<f32> {
        let bytes = self.to_dtype(Dtype::F32);
        let words = bytes.as_chunks::<4>().0.iter();
        words.map(|word| f32::from_le_bytes(*word)).collect()
    }

    /// The elements rounded to `dtype`, as bytes and with the rows in Hugging Face's order;
    /// borrowed if the file has them so.
    pub fn to_dtype(&self, dtype: Dtype) -> Cow<'_, [u8]> {
        if self.format == Format::Float(dtype) && self.heads.is_none() {
            return Cow::Borrowed(&self.bytes);
        }
        let mut encoded = vec![0; self.len() * dtype.size()];
        let mut values = [0.0; PIECE];
        // Without reordering, all elements are treated as one row.
        let row: usize = match self.heads {
            Some(_) => self.shape[1..].iter().product(),
            None => self.len(),
        };
        let row_bytes = self.bytes_of(row);
        for (to, out) in encoded
            .chunks_exact_mut((row * dtype.size()).max(1))
            .enumerate()
        {
            let from = self.heads.map_or(to, |heads| heads.source(to));
            let bytes = &self.bytes[from * row_bytes..][..row_bytes];
            let pieces = bytes.chunks(self.bytes_of(PIECE));
            for (bytes, out) in pieces.zip(out.chunks_mut(PIECE * dtype.size())) {
                let values = &mut values[..out.len() / dtype.size()];
                self.decode(bytes, values);
                dtype.encode_into(values.iter().copied(), out);
            }
        }
        Cow::Owned(encoded)
    }

    /// The stored bytes of a row, in Hugging Face's order; rows are whole blocks in every file.
    pub fn row_bytes(&self, row: usize) -> &[u8] {
        let bytes = self.bytes_of(self.shape[1..].iter().product());
        let from = self.heads.map_or(row, |heads| heads.source(row));
        &self.bytes[from * bytes..][..bytes]
    }

    /// The elements of a row as f32.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        self.decode(self.row_bytes(row), out);
    }

    fn bytes_of(&self, elements: usize) -> usize {
        let (per_block, bytes) = self.format.block();
        elements / per_block * bytes
    }

    fn decode(&self, bytes: &[u8], values: &mut [f32]) {
        match &self.format {
            Format::Float(dtype) => dtype.decode(bytes, values),
            Format::Blocks(blocks) => blocks.decode(bytes, values),
            // `Weights::get` gives out none.
            Format::Other(name) => unreachable!("a tensor of type {name}"),
        }
    }
}
