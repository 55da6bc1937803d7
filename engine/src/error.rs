//! Why an engine does not start.

use std::error::Error;

use hearth_forward::ExecutorLimits;

use crate::config::ConfigError;
use crate::limits::context_limit;

/// The executor could not be built: a file is missing, the memory does not suffice, or there
/// is no device.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BuildError(Box<dyn Error + Send + Sync>);

impl BuildError {
    pub fn new(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}

/// Why [`Engine::spawn`](crate::Engine::spawn) started no engine.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error("building the model panicked: {0}")]
    BuildPanicked(String),
    #[error(
        "the context must be at least 2 tokens long, one of a prompt and one of its output, got {}: \
         max_model_len is {}, and the KV cache has room for {} tokens",
        context_limit(*.0), .0.max_model_len, .0.kv_slots
    )]
    NoRoom(ExecutorLimits),
    #[error("the model's vocabulary must be at least 1 token large, got 0")]
    NoVocabulary,
    #[error("the draft model's vocabulary must have the {target} tokens of the model, not {draft}")]
    DraftVocabulary { target: usize, draft: usize },
    #[error("drafts are to come from a draft model, and there is none")]
    NoDraftModel,
    #[error("cannot start the engine thread")]
    Thread(#[from] std::io::Error),
}
