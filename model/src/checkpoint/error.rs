//! Errors of opening a checkpoint.

use std::path::PathBuf;

use super::generation::GenerationConfigError;
use crate::config::ConfigError;
use crate::gguf::GgufError;
use crate::hub::HubError;
use crate::quantization::QuantizationError;
use crate::tokenizer::TokenizerError;
use crate::weights::WeightError;

/// Errors of opening a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("{path} is neither a directory nor a GGUF file (*.gguf)")]
    NotADirectory { path: PathBuf },
    #[error("{place} has no {file}")]
    MissingFile { place: String, file: String },
    #[error("cannot read {path}: {error}")]
    Io {
        path: PathBuf,
        error: std::io::Error,
    },
    #[error("{place}: {file} is not a JSON object: {reason}")]
    Json {
        place: String,
        file: &'static str,
        reason: String,
    },
    #[error("this binary was built without a model in it ({missing}); give --model")]
    NotEmbedded { missing: &'static str },
    #[error("{place}: {error}")]
    Config { place: String, error: ConfigError },
    #[error("{place}: {error}")]
    Quantization {
        place: String,
        error: QuantizationError,
    },
    #[error("{place}: {error}")]
    Generation {
        place: String,
        error: GenerationConfigError,
    },
    #[error("{place}: {error}")]
    Tokenizer {
        place: String,
        error: TokenizerError,
    },
    #[error("{file}: {error}")]
    Gguf { file: PathBuf, error: GgufError },
    #[error(transparent)]
    Weights(#[from] WeightError),
    #[error(transparent)]
    Hub(#[from] HubError),
}
