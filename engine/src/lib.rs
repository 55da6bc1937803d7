//! The engine: scheduler, continuous batching, sampling, stop conditions.
//!
//! One thread owns the scheduler and the prefix cache, another the executor, which runs
//! forward after forward while the first prepares the next; callers hold an
//! [`EngineHandle`] and read [`Generation`]s. Text is made of tokens outside those threads,
//! by [`output`].
//!
//! **Architecture invariant.** The engine names no tensor library and no HTTP
//! library; the model is behind [`Executor`].
mod active;
mod admission;
mod batch;
pub mod command;
pub mod config;
pub mod constraint;
pub mod detokenize;
mod device;
pub mod engine;
pub mod events;
pub mod executor;
mod inbox;
mod kv;
pub mod logprobs;
mod nucleus;
pub mod output;
pub mod params;
pub mod penalties;
pub mod pooling;
mod queue;
pub mod request;
pub mod rng;
pub mod sampler;
mod scheduler;
mod softmax;
pub mod stats;
mod step;
pub mod stop;
mod topk;

pub use command::{AbortTarget, CacheInUse, EngineStopped, PauseMode, Pending};
pub use config::{ConfigError, EngineConfig};
pub use engine::{Engine, EngineHandle, EngineWatch, ShutdownOutcome, SpawnError};
pub use events::{StepObserver, StepReport};
pub use executor::{
    BuildError, Choice, Choices, Executor, ExecutorError, ExecutorLimits, ForwardBatch, LogitEdit,
    Logits, Sequence, TokenChoice,
};
pub use hearth_forward::{CopyDirection, KvCopy};
pub use hearth_radix::{EvictionPolicy, HostWritePolicy, PageSizeError};
pub use params::{ParamError, SamplingParams};
pub use pooling::Pooling;
pub use queue::SchedulePolicy;
pub use request::{Event, FinishReason, Generation, Request, SubmitError, TokenEvent, Usage};
pub use stats::{EngineStats, KvStats};
