//! One tensor's elements, as they lie in the file.

use std::borrow::Cow;

use half::{bf16, f16};

use crate::dtype::Dtype;

/// One tensor: row-major little-endian elements, not necessarily aligned.
#[derive(Debug, Clone)]
pub struct TensorView<'a> {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// `shape.product() * dtype.size()` bytes; borrowed from the file where there is one.
    pub bytes: Cow<'a, [u8]>,
}

impl TensorView<'_> {
    /// Elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The elements as f32, which holds every f16 and bf16 exactly.
    pub fn to_f32(&self) -> Vec<f32> {
        let pairs = || self.bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
        match self.dtype {
            Dtype::F32 => self
                .bytes
                .chunks_exact(4)
                .map(|quad| f32::from_le_bytes([quad[0], quad[1], quad[2], quad[3]]))
                .collect(),
            Dtype::F16 => pairs()
                .map(|pair| f16::from_le_bytes(pair).to_f32())
                .collect(),
            Dtype::Bf16 => pairs()
                .map(|pair| bf16::from_le_bytes(pair).to_f32())
                .collect(),
        }
    }

    /// The bytes of the elements rounded to `dtype`; borrowed when they are in it already.
    pub fn to_dtype(&self, dtype: Dtype) -> Cow<'_, [u8]> {
        if dtype == self.dtype {
            return Cow::Borrowed(&self.bytes);
        }
        Cow::Owned(dtype.encode(self.to_f32().into_iter()))
    }
}
