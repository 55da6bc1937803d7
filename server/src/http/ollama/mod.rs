//! Ollama's API, which tools for local models speak.

pub mod generate;
pub mod model;
pub(super) mod options;
pub(super) mod request;
mod stream;
