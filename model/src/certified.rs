//! The ledger of what was compared with a reference (docs/CERTIFIED.md), which a test writes.

use std::fmt;

const LEDGER: &str = include_str!("../../docs/CERTIFIED.md");

/// The kind of files that a model is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Packaging {
    /// Hugging Face's directories.
    Safetensors,
    Gguf,
}

impl fmt::Display for Packaging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Safetensors => "safetensors",
            Self::Gguf => "GGUF",
        })
    }
}

/// True if models of the class `class_name` in such files are in the ledger.
pub fn is_certified(class_name: &str, packaging: Packaging) -> bool {
    let row = format!("| `{class_name}` | {packaging} |");
    LEDGER.lines().any(|line| line.starts_with(&row))
}
