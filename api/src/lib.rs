//! The HTTP server: five APIs over one internal request.
//!
//! - [`routes`] is the table of all paths; [`server`] opens the port and starts the workers, and
//!   `middleware/` is what a request passes before its handler.
//! - `openai/`, `sglang/`, `anthropic/`, `ollama/` and `llama_server/` are the dialects. Each reads its
//!   own JSON, makes a [`Job`](generate::Job) of it, and writes the [`Update`](generate::Update)s of that
//!   job in its own words. They never import each other: `fields/` has the request fields that
//!   they share.
//! - [`generate`] gives a job to the engine. `prompt`, `conversation` and `offload` make token ids
//!   out of text; `tool_plan`, [`tools`], [`reasoning`] and [`reader`] find tool calls and
//!   reasoning in the text that comes back; [`grammars`] holds what an output must follow.
//! - [`programs`] runs programs of the front-end language beside the engine.
//! - [`live`] lets people watch the server; `page/` is the page in the browser that draws it.
//! - [`adapters`] holds the adapters (LoRA) that requests may select.
//! - `exchange`, `record`, `tally` and [`telemetry`] measure.
//! - [`disaggregation`] carries keys and values between a prefill server and a decode server.
//! - [`served`] is what this crate needs of a model.
//!
//! **Architecture Invariant.** The JSON of the APIs is known here and nowhere else, the engine is
//! reached through [`generate`] alone, and no tensor library is a dependency: a model is a
//! [`Served`](served::Served), whose text goes through the [`TextCodec`](served::TextCodec) trait.

pub mod adapters;
mod anthropic;
mod body;
mod body_memory;
pub mod channels;
pub mod clients;
pub mod config;
mod content;
mod conversation;
mod debug;
mod dialect;
pub mod disaggregation;
#[cfg(test)]
mod documented;
mod embedding;
mod error;
mod exchange;
mod fields;
pub mod generate;
pub mod grammars;
pub mod live;
mod llama_server;
mod metrics;
mod middleware;
pub mod numbers;
mod offload;
mod ollama;
mod openai;
mod openapi;
mod page;
pub mod programs;
pub mod prompt;
pub mod reader;
pub mod reasoning;
mod record;
mod respond;
pub mod routes;
pub mod secret;
pub mod served;
pub mod server;
mod sglang;
#[cfg(test)]
mod siblings;
mod sse;
mod stall;
pub mod state;
mod status;
mod tally;
pub mod telemetry;
pub mod tls;
mod tool_plan;
pub mod tools;
