//! The server's telemetry settings.

use std::path::PathBuf;
use std::time::Duration;

use crate::bounds::CustomBuckets;
use crate::exposition::Vocabulary;
use crate::otlp_settings::OtlpOptions;
use crate::spans::Detail;
use crate::stats_log::StatsLog;

/// The options of [`Telemetry`](crate::Telemetry).
#[derive(Clone, Debug)]
pub struct TelemetryOptions {
    /// Version of the server, for `service.version`.
    pub version: &'static str,
    /// Vocabularies that `/metrics` shows, in this order.
    pub vocabularies: Vec<Vocabulary>,
    /// Shows deprecated metrics that this version of vLLM, `(major, minor)`, still had.
    pub show_hidden: Option<(u32, u32)>,
    /// Bucket bounds that replace the standard ones of some families.
    pub buckets: CustomBuckets,
    pub otlp: OtlpOptions,
    /// Records a trace for each engine step, with this much detail.
    pub detailed: Option<Detail>,
    /// Spans have the content of messages; the environment can ask for it, too.
    pub message_content: bool,
    pub stats_log: StatsLog,
    /// Interval of vLLM's statistics line.
    pub stats_interval: Duration,
    /// Decode steps between two of SGLang's statistics lines.
    pub decode_log_interval: u64,
    /// False if nothing is recorded: neither metrics, nor the steps that `/debug/trace` shows, nor
    /// log lines with statistics. Traces of requests do not depend on it.
    pub metrics: bool,
    /// Where a trace of the latest steps is written when the engine hangs.
    pub stall_dir: Option<PathBuf>,
    /// An engine that has work and finishes no step for this long hangs.
    pub stall_after: Duration,
}

impl Default for TelemetryOptions {
    fn default() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            vocabularies: vec![Vocabulary::Vllm, Vocabulary::Otel],
            show_hidden: None,
            buckets: CustomBuckets::default(),
            otlp: OtlpOptions::default(),
            detailed: None,
            message_content: false,
            stats_log: StatsLog::Off,
            stats_interval: Duration::from_secs(10),
            decode_log_interval: 40,
            metrics: true,
            stall_dir: None,
            stall_after: Duration::from_secs(30),
        }
    }
}
