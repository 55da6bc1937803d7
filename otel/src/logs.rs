//! Log lines on standard error, as text for people or as JSON for collectors.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// `2026-11-20T23:00:00Z  INFO hearth_server::serve: ready in_ms=120`
    Text,
    /// One JSON object per line, fields at the top level.
    Json,
}

/// Raises the level of crates whose `info` lines interest only their developers. The given
/// filter comes after it and overrides it.
const QUIET: &str = "actix_server=warn";

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("log_level: {given:?} is not a filter such as `info` or `hearth_engine=debug,info`")]
    Filter { given: String },
    #[error("a log writer is already installed")]
    AlreadyInstalled,
}

/// Installs the process-wide log writer. Call it once, before anything logs.
///
/// # Errors
/// `filter` is not a `tracing` filter, or a writer is already installed.
pub fn init_logs(format: LogFormat, filter: &str) -> Result<(), LogError> {
    subscriber(format, filter, stderr, stderr().is_terminal())?
        .try_init()
        .map_err(|_| LogError::AlreadyInstalled)
}

fn subscriber<W>(
    format: LogFormat,
    filter: &str,
    writer: W,
    colour: bool,
) -> Result<Box<dyn tracing::Subscriber + Send + Sync>, LogError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_new(format!("{QUIET},{filter}")).map_err(|_| LogError::Filter {
        given: filter.to_owned(),
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(colour);
    Ok(match format {
        LogFormat::Text => Box::new(builder.finish()),
        LogFormat::Json => Box::new(builder.json().flatten_event(true).finish()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn lines(format: LogFormat, filter: &str) -> String {
        let captured = Captured::default();
        let sink = captured.clone();
        let subscriber = subscriber(format, filter, move || sink.clone(), false).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(prompt_tokens = 7, "request finished");
            tracing::debug!("detail");
        });
        let bytes = captured.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn json_lines_are_objects_with_the_fields_at_the_top_level() {
        let line = lines(LogFormat::Json, "info");
        let value: serde_json::Value = serde_json::from_str(line.trim()).unwrap();
        assert_eq!(value["prompt_tokens"], 7);
        assert_eq!(value["message"], "request finished");
    }

    #[test]
    fn the_filter_decides_what_is_written() {
        assert_eq!(lines(LogFormat::Text, "info").lines().count(), 1);
        assert_eq!(lines(LogFormat::Text, "debug").lines().count(), 2);
        assert_eq!(lines(LogFormat::Text, "off"), "");
    }

    #[test]
    fn an_invalid_filter_is_quoted_in_the_error() {
        let error = init_logs(LogFormat::Text, "info=loud=").unwrap_err();
        assert!(error.to_string().contains("info=loud="), "{error}");
    }
}
