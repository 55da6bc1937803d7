//! Telemetry: what Hearth tells about itself. Today: log lines.
//!
//! Architecture invariant: the other crates emit `tracing` events and spans and
//! return numbers; only this crate decides where they go.

mod logs;

pub use logs::{LogError, LogFormat, init_logs};
