//! What can go wrong when a checkpoint is opened.

use std::path::PathBuf;

use super::generation::GenerationConfigError;
use crate::config::ConfigError;
use crate::gguf::GgufError;
use crate::hub::HubError;
use crate::tokenizer::TokenizerError;
use crate::weights::WeightError;

/// What can go wrong when a checkpoint is opened.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("{path} is neither a directory nor a GGUF file (*.gguf)")]
    NotADirectory { path: PathBuf },
    #[error("{place} has no {file}")]
    MissingFile { place: String, file: String },
    #[error("cannot read {path}: {source}")]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{place}: {file} is not a JSON object: {reason}")]
    Json {
        place: String,
        file: &'static str,
        reason: String,
    },
    #[error("this binary was built without a model in it ({missing}); give --model")]
    NotEmbedded { missing: &'static str },
    #[error("{place}: {source}")]
    Config { place: String, source: ConfigError },
    #[error("{place}: {source}")]
    Generation {
        place: String,
        source: GenerationConfigError,
    },
    #[error("{place}: {source}")]
    Tokenizer {
        place: String,
        source: TokenizerError,
    },
    #[error("{file}: {source}")]
    Gguf { file: PathBuf, source: GgufError },
    #[error(transparent)]
    Weights(#[from] WeightError),
    #[error(transparent)]
    Hub(#[from] HubError),
}
