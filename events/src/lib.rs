//! KV events: a server publishes which pages of prompts its prefix cache holds, so that a router can
//! send a request where its prefix is.
//!
//! The format is that of vLLM 0.33 (`vllm/distributed/kv_events.py`), which llm-d and Dynamo read, too:
//! batches of events in MessagePack, published over ZeroMQ.
//!
//! - `config`, `endpoint`: `--kv-events-config`.
//! - `event`: the batches; `cached`: events of a prefix cache.
//! - `zmtp`: ZeroMQ's wire protocol, as far as these sockets need it.
//! - `publisher`, with `subscribers`, `replay`, `history` and `pages`: the server's side.
//! - `follow`: the router's side.
//!
//! ZMTP is written out here because both pure Rust libraries were unfit: `zeromq` 0.7 allocates as many
//! bytes as a peer announces, so that 9 bytes from any peer end the process, and does not let the bound
//! of a queue be set; `rzmq` 0.5 brings 24 more crates.
//!
//! **Architecture Invariant.** No engine, no HTTP. Whoever publishes never waits.

mod cached;
mod config;
mod endpoint;
mod event;
mod follow;
mod history;
mod pages;
mod publisher;
mod replay;
mod subscribers;
mod zmtp;

pub use config::{ConfigError, KvEventsConfig, PublisherKind};
pub use endpoint::Endpoint;
pub use event::{
    BlockHash, BlockRemoved, BlockStored, EventBatch, ExtraKey, KvEvent, MEDIUM_DEVICE, MEDIUM_HOST,
};
pub use follow::{Source, Update, follow};
pub use publisher::{Publisher, StartError};
