//! The floating-point formats that weights come in and that models run in.

use std::fmt;

use burn::tensor::DType;
use half::{bf16, f16};
use hearth_forward::TableNumbers;

/// A floating-point format of weights, activations or KV entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
}

impl Dtype {
    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }

    /// The little-endian bytes of `values`, each rounded to this format.
    pub fn encode(self, values: impl ExactSizeIterator<Item = f32>) -> Vec<u8> {
        let mut bytes = vec![0; values.len() * self.size()];
        self.encode_into(values, &mut bytes);
        bytes
    }

    /// As [`Dtype::encode`], but into the start of `bytes`.
    pub fn encode_into(self, values: impl Iterator<Item = f32>, bytes: &mut [u8]) {
        // In place and by fixed widths: collecting byte by byte takes minutes for a large model.
        match self {
            Dtype::F32 => {
                for (slot, value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                    *slot = value.to_le_bytes();
                }
            }
            Dtype::F16 => {
                for (slot, value) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                    *slot = f16::from_f32(value).to_le_bytes();
                }
            }
            Dtype::Bf16 => {
                for (slot, value) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                    *slot = bf16::from_f32(value).to_le_bytes();
                }
            }
        }
    }

    /// Decodes elements of this format, as many as both slices have room for.
    pub fn decode(self, bytes: &[u8], values: &mut [f32]) {
        match self {
            Dtype::F32 => {
                for (word, value) in bytes.as_chunks::<4>().0.iter().zip(values) {
                    *value = f32::from_le_bytes(*word);
                }
            }
            Dtype::F16 => {
                for (word, value) in bytes.as_chunks::<2>().0.iter().zip(values) {
                    *value = f16::from_le_bytes(*word).to_f32();
                }
            }
            Dtype::Bf16 => {
                for (word, value) in bytes.as_chunks::<2>().0.iter().zip(values) {
                    *value = bf16::from_le_bytes(*word).to_f32();
                }
            }
        }
    }

    /// Parses the names that `config.json` (`bfloat16`) and command lines (`bf16`) use.
    pub fn parse(name: &str) -> Option<Dtype> {
        match name.strip_prefix("torch.").unwrap_or(name) {
            "float32" | "float" | "f32" | "fp32" => Some(Dtype::F32),
            "float16" | "half" | "f16" | "fp16" => Some(Dtype::F16),
            "bfloat16" | "bf16" => Some(Dtype::Bf16),
            _ => None,
        }
    }
}

impl From<Dtype> for DType {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::Bf16 => DType::BF16,
        }
    }
}

impl From<TableNumbers> for Dtype {
    fn from(numbers: TableNumbers) -> Self {
        match numbers {
            TableNumbers::F32 => Dtype::F32,
            TableNumbers::F16 => Dtype::F16,
            TableNumbers::Bf16 => Dtype::Bf16,
        }
    }
}

impl From<Dtype> for TableNumbers {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => TableNumbers::F32,
            Dtype::F16 => TableNumbers::F16,
            Dtype::Bf16 => TableNumbers::Bf16,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_configs_and_command_lines_are_understood() {
        assert_eq!(Dtype::parse("bfloat16"), Some(Dtype::Bf16));
        assert_eq!(Dtype::parse("torch.float16"), Some(Dtype::F16));
        assert_eq!(Dtype::parse("float8_e4m3fn"), None);
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            assert_eq!(Dtype::parse(&dtype.to_string()), Some(dtype));
        }
    }

    #[test]
    fn values_are_encoded_little_endian_and_rounded() {
        let encode = |dtype: Dtype| dtype.encode([1.0, -2.0].into_iter());
        assert_eq!(encode(Dtype::F32), [0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]);
        assert_eq!(encode(Dtype::F16), [0, 0x3c, 0, 0xc0]);
        assert_eq!(encode(Dtype::Bf16), [0x80, 0x3f, 0, 0xc0]);
        // A tie goes to the even neighbour.
        assert_eq!(
            Dtype::Bf16.encode([1.0 + 1.0 / 256.0].into_iter()),
            [0x80, 0x3f]
        );
    }
}
