//! Ollama's API, which many tools for local models use.

pub mod embed;
pub mod generate;
pub mod model;
pub(super) mod options;
pub(super) mod request;
mod stream;
