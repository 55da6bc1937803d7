//! Errors of adapters, which name their files, fields and tensors.

use std::path::PathBuf;

use crate::gguf::GgufError;
use crate::weights::WeightError;

/// Why an adapter cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoraError {
    #[error("{0} is neither a directory with an adapter_config.json nor a file *.gguf")]
    NotFound(PathBuf),
    #[error("cannot read {path}: {error}")]
    Io {
        path: PathBuf,
        error: std::io::Error,
    },
    #[error(
        "{path} has more than {most} bytes, more than an adapter of rank {rank} of this model can \
         have"
    )]
    TooLarge {
        path: PathBuf,
        most: u64,
        rank: usize,
    },
    #[error("{path} is not valid JSON: {reason}")]
    Json { path: PathBuf, reason: String },
    #[error("`{field}` in adapter_config.json {reason}")]
    Field { field: String, reason: String },
    #[error("tensor {tensor}: {reason}")]
    Tensor { tensor: String, reason: String },
    #[error("LoRA rank {given} is greater than max_lora_rank {most}.")]
    Rank { given: usize, most: usize },
    #[error(
        "the adapter has {bytes} bytes of whole tables (`modules_to_save`), and no memory is reserved for \
         tables; --max-lora-tables reserves it when the server starts"
    )]
    NoRoomForTables { bytes: usize },
    #[error(
        "an adapter with whole tables (`modules_to_save`) applies alone and with the factor 1; it cannot \
         be scaled or added to others"
    )]
    TablesInSum,
    #[error("no tensor of the adapter belongs to this model")]
    NoMatch,
    #[error("{path}: {error}")]
    Gguf { path: PathBuf, error: GgufError },
    #[error("this adapter is relative to the base model, which cannot be used: {0}")]
    Base(String),
    #[error(transparent)]
    Weights(#[from] WeightError),
}

impl LoraError {
    pub(super) fn field(field: &str, reason: impl Into<String>) -> Self {
        Self::Field {
            field: field.to_owned(),
            reason: reason.into(),
        }
    }

    pub(super) fn tensor(tensor: &str, reason: impl Into<String>) -> Self {
        // Names come from strangers.
        Self::Tensor {
            tensor: tensor.chars().take(200).collect(),
            reason: reason.into(),
        }
    }
}
