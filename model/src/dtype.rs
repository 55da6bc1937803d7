//! The floating-point formats that weights come in and that models run in.

use std::fmt;

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

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
        })
    }
}
