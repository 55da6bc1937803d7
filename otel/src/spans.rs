//! Spans. They are built from stored times once a request or a step is over, so that
//! nothing is traced on the path of a token.
//!
//! - `recorder`: [`Spans`], the tracer with its options.
//! - `server`: the span of an HTTP exchange.
//! - `request`, `attributes`: the span of a continuation, its parts, events and attributes.
//! - `openinference`: the same continuation in OpenInference's attributes.
//! - `transfer`: the span of a transfer of keys and values.
//! - `client`: the span of a request to another server.
//! - `step`: the span of an engine step.
//! - `step_times`: sums over the steps that a request took part in.

mod attributes;
mod client;
mod openinference;
mod recorder;
mod request;
mod server;
mod step;
mod step_times;
mod transfer;

pub use client::{ClientSpan, Trace};
pub use recorder::{Detail, Spans};
pub use request::RequestSpan;
pub use server::ServerSpan;
pub use step_times::StepTimes;
