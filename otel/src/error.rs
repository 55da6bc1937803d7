//! [`TelemetryError`].

/// Why telemetry could not be started.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// An option or an environment variable has a value that is not understood.
    #[error("{name} must be {bound}, given {given:?}")]
    Setting {
        name: &'static str,
        bound: &'static str,
        given: String,
    },
    /// The exporter refused its settings.
    #[error("OTLP: {0}")]
    Exporter(String),
    /// The source says why.
    #[error("cannot start the telemetry threads")]
    Thread(#[from] std::io::Error),
}
