//! Telemetry: what Hearth tells about itself, to logs, scrapes and collectors.
//!
//! What is measured is recorded once, in OpenTelemetry instruments ([`catalog`]). A
//! scrape projects them onto the names that people's dashboards have ([`rows`]); OTLP
//! exports them as they are. Spans are built from stored times when it is over.
//!
//! Architecture invariant: the other crates emit `tracing` events and return numbers
//! and times; only this crate decides where they go. Nothing here ever makes a
//! request wait: what cannot be kept up with is dropped and counted.

mod bounds;
pub mod buckets;
pub mod catalog;
mod export;
mod exposition;
mod http_client;
mod instruments;
mod logs;
mod mailbox;
mod page;
mod points;
mod process;
mod records;
pub mod rows;
mod spans;
mod stats_log;
mod telemetry;
mod text;
mod worker;

pub use bounds::CustomBuckets;
pub use export::{OtlpOptions, OtlpProtocol, TelemetryError};
pub use exposition::Vocabulary;
pub use instruments::{
    Ending, EngineFacts, EngineInstruments, EngineSnapshot, GrammarSnapshot, HttpInstruments,
    HttpOutcome, RequestNumbers,
};
pub use logs::{LogError, LogFormat, init_logs};
pub use page::metrics_page;
pub use records::{Clock, Compilation, RequestRecord, RequestTimes, StepRecord};
pub use spans::{Detail, RequestSpan, ServerSpan};
pub use stats_log::StatsLog;
pub use telemetry::{Telemetry, TelemetryOptions};
pub use text::TextFormat;

/// Of a span, to hang others under it.
pub use opentelemetry::trace::SpanContext;
