//! Programs of the front-end language beside the engine: the in-process back end, and
//! `POST /v1/programs`, which runs a graph that was traced elsewhere.

mod answer;
mod backend;
pub(crate) mod request;
pub(crate) mod route;
mod text;

pub use backend::EngineBackend;
