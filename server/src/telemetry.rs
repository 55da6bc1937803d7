//! From the configuration to the exporters of metrics and traces.

use std::time::Duration;

use anyhow::{Result, bail};
use hearth_otel::{Detail, OtlpOptions, Telemetry, TelemetryOptions};

use crate::config::Config;

/// Starts the exporters that the configuration asks for.
///
/// # Errors
/// A setting of the configuration or an `OTEL_*` variable is invalid.
pub fn start(config: &Config) -> Result<Telemetry> {
    let detailed = config.detailed_traces()?;
    let telemetry = Telemetry::start(TelemetryOptions {
        version: env!("CARGO_PKG_VERSION"),
        vocabularies: config.vocabularies()?,
        show_hidden: config.shown_version()?,
        buckets: config.buckets()?,
        otlp: OtlpOptions {
            endpoint: config.otlp_endpoint.clone(),
            protocol: config.otlp_protocol.map(Into::into),
        },
        detailed,
        message_content: config.trace_message_content,
        stats_log: config.log_stats.into(),
        stats_interval: Duration::from_secs(config.log_stats_interval),
        decode_log_interval: config.decode_log_interval,
        metrics: !config.disable_metrics,
        stall_dir: config.stall_trace_dir.clone(),
        ..TelemetryOptions::default()
    })?;
    if detailed.is_some_and(|detail| detail != Detail::default()) && !telemetry.traces() {
        bail!(
            "--collect-detailed-traces needs somewhere to send them: --otlp-endpoint, or \
             OTEL_EXPORTER_OTLP_ENDPOINT"
        );
    }
    Ok(telemetry)
}
