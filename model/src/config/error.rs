//! Errors in a `config.json`.

/// Errors in a `config.json`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    #[error("config.json is not a JSON object: {0}")]
    Json(String),
    #[error("config.json: architecture {given} is not supported; supported: {supported}")]
    UnsupportedArchitecture { given: String, supported: String },
    #[error("config.json: {field} = {given:?} is not supported; supported: {supported}")]
    UnsupportedRope {
        field: String,
        given: String,
        supported: &'static str,
    },
    #[error("config.json: {field} is missing")]
    Missing { field: String },
    #[error("config.json: {field} must be {bound}, got {given}")]
    Invalid {
        field: String,
        bound: String,
        given: String,
    },
}
