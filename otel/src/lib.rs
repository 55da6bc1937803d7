//! Telemetry: how Hearth reports its state to logs, Prometheus and OTLP collectors.
//!
//! Everything measured is recorded once, in OpenTelemetry instruments. OTLP exports them under
//! their own names; a scrape of `/metrics` projects them onto the names of vLLM and SGLang that
//! existing dashboards query. Spans are built from stored times after a request or a step is over.
//!
//! | module | what it holds |
//! |---|---|
//! | `telemetry`, `options`, `error` | [`Telemetry`], the handle that the server records through, and its options |
//! | [`catalog`] | the table of instruments: name, kind, unit, attributes, help |
//! | `instruments` | the instruments themselves, and the methods that record to them |
//! | [`buckets`], `bounds` | standard bucket bounds of histograms, and configured ones |
//! | [`rows`] | the tables of vLLM's, SGLang's and the process's metrics |
//! | `exposition`, `points`, `text`, `scrape_reader` | the page of `/metrics` |
//! | `records` | times and numbers of steps, requests and HTTP exchanges |
//! | `mailbox`, `outbox`, `worker` | the telemetry thread and its queue |
//! | `flight`, `stall_log` | the latest steps in memory, as a trace, and what is told when the engine hangs |
//! | `spans` | traces of HTTP exchanges, continuations and steps |
//! | `otlp_settings`, `exporters`, `http_client`, `flush` | export over OTLP |
//! | `traces` | [`Traces`], the handle of a process that sends traces and nothing else |
//! | `logs`, `stats_log` | log lines, and the periodic statistics line |
//! | `process` | the operating system's figures of this process |
//!
//! **Architecture Invariant.** The other crates emit `tracing` events and return numbers and
//! times; only this crate decides where they go. Telemetry never makes a request wait: records
//! that it cannot keep up with are dropped and counted.

mod bounds;
pub mod buckets;
pub mod catalog;
mod error;
mod exemplars;
mod exporters;
mod exposition;
mod flight;
mod flush;
mod http_client;
mod instruments;
mod logs;
mod mailbox;
mod options;
mod otlp_settings;
mod outbox;
mod points;
mod process;
mod records;
pub mod rows;
mod scrape_reader;
mod server_address;
mod spans;
mod stall_log;
mod stats_log;
mod telemetry;
mod text;
mod traces;
mod worker;

pub use bounds::CustomBuckets;
pub use error::TelemetryError;
pub use exposition::Vocabulary;
pub use flight::{KEPT as STEPS_KEPT, StepSums};
pub use instruments::{
    Derived, EngineFacts, EngineInstruments, EngineSnapshot, GrammarSnapshot, HttpInstruments,
    RequestNumbers,
};
pub use logs::{BOUNDED, LogError, LogFormat, LogGuard, init_logs, log_panics, print};
pub use options::TelemetryOptions;
pub use otlp_settings::{OtlpOptions, OtlpProtocol};
pub use outbox::StepOutbox;
pub use records::{
    Clock, Compilation, Ending, HttpOutcome, KvTransfer, MessageContent, RequestRecord,
    RequestTimes, StepRecord,
};
pub use server_address::ServerAddress;
pub use spans::{ClientSpan, Detail, RequestSpan, ServerSpan, Trace};
pub use stats_log::StatsLog;
pub use telemetry::Telemetry;
pub use text::TextFormat;
pub use traces::Traces;

/// Identifies a span, as the parent of others.
pub use opentelemetry::trace::SpanContext;
