//! How the elements of a tensor are stored.

use std::fmt;

use hearth_shaders::BlockFormat;

use crate::dtype::Dtype;

/// How the elements of a tensor are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    Float(Dtype),
    /// Small integers with a scale for each block.
    Blocks(BlockFormat),
    /// Any other format, by the name that the file format has for it.
    Other(String),
}

impl Format {
    pub(super) fn of_safetensors(dtype: safetensors::Dtype) -> Self {
        match dtype {
            safetensors::Dtype::F32 => Format::Float(Dtype::F32),
            safetensors::Dtype::F16 => Format::Float(Dtype::F16),
            safetensors::Dtype::BF16 => Format::Float(Dtype::Bf16),
            other => Format::Other(other.to_string()),
        }
    }

    /// The format that `enum ggml_type` of GGML has at `number`.
    pub(crate) fn of_gguf(number: u32) -> Self {
        match number {
            0 => Format::Float(Dtype::F32),
            1 => Format::Float(Dtype::F16),
            30 => Format::Float(Dtype::Bf16),
            2 => Format::Blocks(BlockFormat::Q4_0),
            3 => Format::Blocks(BlockFormat::Q4_1),
            6 => Format::Blocks(BlockFormat::Q5_0),
            7 => Format::Blocks(BlockFormat::Q5_1),
            8 => Format::Blocks(BlockFormat::Q8_0),
            10 => Format::Blocks(BlockFormat::Q2_K),
            11 => Format::Blocks(BlockFormat::Q3_K),
            12 => Format::Blocks(BlockFormat::Q4_K),
            13 => Format::Blocks(BlockFormat::Q5_K),
            14 => Format::Blocks(BlockFormat::Q6_K),
            20 => Format::Blocks(BlockFormat::IQ4_NL),
            23 => Format::Blocks(BlockFormat::IQ4_XS),
            39 => Format::Blocks(BlockFormat::MXFP4),
            other => {
                const NAMES: [(u32, &str); 17] = [
                    (9, "Q8_1"),
                    (15, "Q8_K"),
                    (16, "IQ2_XXS"),
                    (17, "IQ2_XS"),
                    (18, "IQ3_XXS"),
                    (19, "IQ1_S"),
                    (21, "IQ3_S"),
                    (22, "IQ2_S"),
                    (24, "I8"),
                    (25, "I16"),
                    (26, "I32"),
                    (27, "I64"),
                    (28, "F64"),
                    (29, "IQ1_M"),
                    (34, "TQ1_0"),
                    (35, "TQ2_0"),
                    (40, "NVFP4"),
                ];
                let name = NAMES.iter().find(|(number, _)| *number == other);
                Format::Other(name.map_or(format!("GGUF type {other}"), |(_, name)| (*name).into()))
            }
        }
    }

    /// `(elements, bytes)` of the smallest unit; 0 bytes for formats that are not supported.
    pub(crate) fn block(&self) -> (usize, usize) {
        match self {
            Format::Float(dtype) => (1, dtype.size()),
            Format::Blocks(blocks) => (blocks.elements(), blocks.bytes()),
            Format::Other(_) => (1, 0),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Format::Float(dtype) => dtype.fmt(f),
            Format::Blocks(blocks) => fmt::Debug::fmt(blocks, f),
            Format::Other(name) => f.write_str(name),
        }
    }
}
