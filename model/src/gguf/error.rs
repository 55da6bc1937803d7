//! Errors of GGUF files.

use crate::config::ConfigError;

/// An error in a GGUF file. It names the key or the byte.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GgufError {
    #[error("not a valid GGUF file: {reason}, at byte {at}")]
    Corrupt { at: usize, reason: String },
    #[error("GGUF version {given} is not supported; supported: 2 and 3, little-endian")]
    Version { given: String },
    #[error("{key} is missing")]
    Missing { key: String },
    #[error("{key} must be {bound}, got {given}")]
    Invalid {
        key: String,
        bound: String,
        given: String,
    },
    #[error("{key} = {given} is not supported; supported: {supported}")]
    Unsupported {
        key: String,
        given: String,
        supported: String,
    },
    #[error("its metadata, as a {0}")]
    Config(#[from] ConfigError),
}
