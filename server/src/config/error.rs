//! [`ConfigError`].

use std::path::PathBuf;

use hearth_engine::SpeculationError;

/// Why the configuration could not be resolved.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file that `--config` names is missing.
    #[error("configuration file {0} does not exist")]
    NoFile(PathBuf),
    /// A layer has an unknown key or a value of the wrong type.
    #[error("configuration: {0}")]
    Layer(String),
    /// A value is out of bounds.
    #[error("configuration: `{field}` must be {bound}, given {given}")]
    Bound {
        field: &'static str,
        bound: &'static str,
        given: String,
    },
    /// A value of the speculation is out of bounds.
    #[error("configuration: `{field}`: {error}")]
    Speculation {
        field: &'static str,
        error: SpeculationError,
    },
}
