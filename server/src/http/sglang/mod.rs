//! SGLang's own API, as its front-end language, its load generator and its router ask it.

pub mod control;
pub mod encode;
pub mod generate;
mod input;
mod meta;
pub mod model;
mod prompts;
pub(super) mod request;
pub(super) mod sampling;
pub mod score;
pub mod tokens;
