//! SGLang's own API, which its front-end language, its load generator and its router use.

pub mod adapters;
pub mod control;
pub mod encode;
pub mod generate;
mod input;
pub mod loads;
mod meta;
pub mod model;
mod prompts;
pub(super) mod request;
pub(super) mod sampling;
pub mod score;
pub mod server_info;
pub mod tokens;
