//! HTTP: routes, errors, streams.
//!
//! Architecture invariant: JSON of the APIs is known here and nowhere else; the
//! engine is reached through [`generate`] alone.

pub mod body;
pub mod error;
pub mod generate;
mod offload;
pub mod openai;
pub mod prompt;
pub mod request_id;
pub mod respond;
pub mod routes;
pub mod server;
pub mod sse;
pub mod state;
mod status;
pub mod tally;
