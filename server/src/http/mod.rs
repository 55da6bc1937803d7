//! HTTP: routes, errors, streams.
//!
//! Architecture invariant: JSON of the APIs is known here and nowhere else; the
//! engine is reached through [`generate`] alone.

mod abandoned;
pub mod anthropic;
pub mod auth;
pub mod body;
mod conversation;
mod cors;
#[cfg(test)]
mod documented;
mod embedding;
pub mod error;
pub mod exchange;
pub mod generate;
pub mod metrics;
pub mod observe;
mod offload;
pub mod ollama;
pub mod openai;
mod openapi;
pub mod prompt;
mod record;
pub mod request_id;
pub mod respond;
pub mod routes;
pub mod server;
pub mod sglang;
pub mod shape;
pub mod sse;
mod stall;
pub mod state;
mod status;
pub mod tally;
pub mod tools;
