//! The engine: scheduler, continuous batching, sampling, stop conditions.
//!
//! One thread owns the scheduler and the prefix cache, another one the executor, which runs one
//! forward pass after another while the first thread prepares the next. Callers hold an
//! [`EngineHandle`] and read [`Generation`]s. Tokens become text outside of those threads, in
//! [`output`].
//!
//! The modules, in the order in which a request meets them:
//!
//! | module | what it does |
//! |---|---|
//! | `request`, `sampling::params`, `pooling` | what a caller asks for, and the events that come back |
//! | `engine`, `config`, `policy`, `error`, `limits` | starts an engine; the handle checks and submits requests |
//! | `generation` | a request as its caller sees it: a stream of events |
//! | `inbox`, `request_id`, `command` | where callers, operators and the engine thread meet |
//! | `step` | the engine thread's loop: schedule, submit, overlap, complete |
//! | `active` | a request's tokens, sampler and grammar while it is in the engine |
//! | `queue` | waiting requests, in the order of the policy |
//! | `scheduler` | which requests start, run, are preempted and finish |
//! | `adapters` | which adapters are in the slots of the device |
//! | `kv`, `running` | the slots of a running request, and the prefix cache they come from |
//! | `batch`, `slot_table` | the ragged batch of one forward pass |
//! | `device` | the device thread, which drives the executor |
//! | [`constraint`] | grammars, evaluated on threads of their own |
//! | `sampling` | from a row of logits to a token and its log-probabilities |
//! | [`output`] | from tokens to text, stop strings included; on the caller's side |
//! | `speculation` | drafts of the next tokens, and which of them are worth their rows |
//! | `transfer` | reading and writing the KV of a request, for prefill/decode disaggregation |
//! | `stats`, `picture`, `events`, `reports`, `cache_events`, `cache_reports` | what operators and observers see |
//!
//! **Architecture Invariant.** The engine names no tensor library and no HTTP library; it
//! drives a model through [`hearth_forward::Executor`] only.

mod active;
mod adapters;
mod batch;
mod cache_events;
mod cache_reports;
mod command;
mod config;
pub mod constraint;
mod device;
mod engine;
mod error;
mod events;
mod generation;
mod inbox;
mod kv;
mod limits;
pub mod output;
mod picture;
mod policy;
mod pooling;
mod queue;
mod reports;
mod request;
mod request_id;
mod running;
mod sampling;
mod scheduler;
mod slot_table;
mod speculation;
mod stats;
mod step;
mod submission_time;
mod transfer;

pub use cache_events::CacheObserver;
pub use command::{AbortTarget, CacheInUse, EngineStopped, PauseMode, Pending};
pub use config::{ConfigError, EngineConfig};
pub use engine::{BuildDraftModel, Engine, EngineHandle, EngineHold, EngineWatch, ShutdownOutcome};
pub use error::{BuildError, SpawnError};
pub use events::{Occupancy, StepObserver, StepReport};
pub use generation::Generation;
pub use hearth_forward::Adapter;
pub use hearth_radix::{
    CacheChange, CachedEdge, EvictionPolicy, HostWritePolicy, NodeState, Outline, OutlinedNode,
    PageChange, PageSizeError, Tier,
};
pub use picture::{CachedPrefix, MOST_RUNNING, Picture, RunningRequest};
pub use policy::SchedulePolicy;
pub use pooling::Pooling;
pub use request::{DraftCounts, Event, FinishReason, Request, SubmitError, TokenEvent, Usage};
pub use sampling::params::{ParamError, SamplingParams};
pub use sampling::{logprobs, params, sampler};
pub use speculation::{DraftMethod, DraftModel, MAX_DRAFT, Speculation, SpeculationError};
pub use stats::{EngineStats, KvStats};
pub use transfer::{RemoteOutput, RemoteToken, Transfer, TransferError, TransferId};
