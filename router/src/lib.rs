//! A router for inference servers that speak SGLang's and OpenAI's HTTP API.
//!
//! In regular mode each request goes to one worker, which a policy selects. In prefill/decode mode
//! (PD) the same request goes to a prefill and a decode worker at once, and the client gets the
//! decode worker's response. The wire format between router and workers is that of SGLang's router.
//!
//! - `config`, `secret`: the settings.
//! - `worker`, `breaker`, `health`, `registry`, `control`: what is known about the workers.
//! - `policy`, `prompt`, `select`: which worker gets a request.
//! - `kv_events`, `kv_index`, `token_prompt`: what workers have cached, and what a prompt is in tokens.
//! - `queue`, `retry`: how many requests run, and how often one is tried.
//! - `headers`, `upstream`, `relay`, `sse`: requests to workers, and their responses.
//! - `dispatch`: regular mode. `pd`, with `body`, `defaults`, `bootstrap`, `request_id` and `merge`:
//!   PD mode.
//! - `stored`: which worker keeps a stored response.
//! - `metrics`, `exposition`: `/metrics` and `/engine_metrics`. `traced`: the span of an exchange.
//! - `simulated`: a policy alone, for simulations.
//! - `state`, `handlers`, `routes`, `middleware`, `server`: the HTTP server.
//!
//! **Architecture Invariant.** This crate knows workers by their HTTP API alone, and nothing of the
//! engine. It does not parse the events of a stream, except those whose content it has to change.

mod body;
mod bootstrap;
mod breaker;
pub mod config;
mod control;
mod defaults;
mod dispatch;
mod error;
mod exposition;
mod handlers;
mod headers;
mod health;
mod kv_events;
mod kv_index;
mod merge;
mod metrics;
mod middleware;
mod pd;
mod policy;
mod prompt;
mod queue;
mod registry;
mod relay;
mod request_id;
mod retry;
mod routes;
pub mod secret;
mod select;
pub mod server;
pub mod simulated;
mod sse;
mod state;
mod stored;
mod token_prompt;
mod traced;
mod upstream;
mod worker;

pub use config::{ConfigError, KvEventsMode, OtlpProtocol, PolicyKind, RouterConfig};
pub use secret::ApiKey;
pub use server::{BindError, Running, bind};
