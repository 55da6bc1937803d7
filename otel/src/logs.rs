//! Log lines on standard error, as text for people or as JSON for collectors.
//!
//! Lines are written by a thread of their own. Those that it cannot write, and those of a kind that
//! comes too often, are dropped and counted: logging never blocks or fails a request.

mod limit;
mod writer;

use std::io::{IsTerminal, stderr, stdout};
use std::sync::OnceLock;
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::FilterExt;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

pub use limit::BOUNDED;
use limit::RateLimit;
use writer::{Stream, Writer};

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
/// Time in which the last lines must be written when the process ends.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("log_level: {given:?} is not a filter such as `info` or `hearth_engine=debug,info`")]
    Filter { given: String },
    #[error("a log writer is already installed")]
    AlreadyInstalled,
    #[error("the thread that writes log lines did not start")]
    Thread(#[source] std::io::Error),
}

/// The log of this process, once it is installed.
static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    writer: Writer,
    limit: RateLimit,
}

/// Writes the last lines when it is dropped. Keep it until the process ends.
#[derive(Debug)]
#[must_use = "the last lines are written when this is dropped"]
pub struct LogGuard(());

impl Drop for LogGuard {
    fn drop(&mut self) {
        if let Some(log) = LOG.get() {
            log.writer.flush(LAST_LINES);
        }
    }
}

/// Installs the process-wide log writer. Call it once, before anything logs.
///
/// # Errors
/// `filter` is not a `tracing` filter, or a writer is already installed.
pub fn init_logs(format: LogFormat, filter: &str) -> Result<LogGuard, LogError> {
    let writer = Writer::start(stdout(), stderr()).map_err(LogError::Thread)?;
    let limit = RateLimit::default();
    let log = Log {
        writer: writer.clone(),
        limit: limit.clone(),
    };
    subscriber(format, filter, limit, writer, stderr().is_terminal())?
        .try_init()
        .map_err(|_| LogError::AlreadyInstalled)?;
    LOG.set(log).map_err(|_| LogError::AlreadyInstalled)?;
    Ok(LogGuard(()))
}

/// Logs panics as errors. The usual message would be written by the thread that panics, which a
/// pipe that nobody reads would block.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let at = panic.location().map(ToString::to_string);
        let message = panic.payload_as_str().unwrap_or("without a message");
        let thread = std::thread::current();
        tracing::error!(
            at,
            thread = thread.name(),
            backtrace = %std::backtrace::Backtrace::capture(),
            "panic: {message}"
        );
    }));
}

/// Prints `text` and a line break on standard output, through the writer of log lines if it is
/// installed. What cannot be written is dropped.
pub fn print(text: &str) {
    let line = format!("{text}\n");
    match LOG.get() {
        Some(log) => log.writer.send(Stream::Output, line.as_bytes()),
        None => {
            use std::io::Write;
            let _ = stdout().lock().write_all(line.as_bytes());
        }
    }
}

/// Log lines that were dropped so far, by reason.
pub(crate) fn dropped_lines() -> [(&'static str, u64); 2] {
    let log = LOG.get();
    [
        ("not_written", log.map_or(0, |log| log.writer.dropped())),
        ("rate_limit", log.map_or(0, |log| log.limit.left_out())),
    ]
}

fn subscriber<W>(
    format: LogFormat,
    filter: &str,
    limit: RateLimit,
    writer: W,
    colour: bool,
) -> Result<Box<dyn tracing::Subscriber + Send + Sync>, LogError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let levels = EnvFilter::try_new(format!("{QUIET},{filter}")).map_err(|_| LogError::Filter {
        given: filter.to_owned(),
    })?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(colour);
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match format {
        LogFormat::Text => Box::new(lines.with_filter(levels.and(limit))),
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true);
            Box::new(lines.with_filter(levels.and(limit)))
        }
    };
    Ok(Box::new(tracing_subscriber::registry().with(layer)))
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
        let subscriber = subscriber(
            format,
            filter,
            RateLimit::default(),
            move || sink.clone(),
            false,
        )
        .unwrap();
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
    fn a_kind_of_warning_is_written_a_bounded_number_of_times() {
        let captured = Captured::default();
        let sink = captured.clone();
        let limit = RateLimit::default();
        let writer = move || sink.clone();
        let subscriber = subscriber(LogFormat::Text, "info", limit.clone(), writer, false).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..1000 {
                tracing::error!(number, "a malformed request");
                tracing::info!(number, "a request");
                tracing::info!(name: BOUNDED, number, "a refused one");
            }
            tracing::warn!("another kind");
        });
        let text = String::from_utf8(captured.0.lock().unwrap().clone()).unwrap();
        let of = |message: &str| text.lines().filter(|line| line.contains(message)).count();
        assert_eq!(of("a malformed request"), 100);
        assert_eq!(of("a request"), 1000);
        assert_eq!(of("a refused one"), 100);
        assert_eq!(of("another kind"), 1);
        assert_eq!(limit.left_out(), 1800);
    }

    #[test]
    fn an_invalid_filter_is_quoted_in_the_error() {
        let error = init_logs(LogFormat::Text, "info=loud=").unwrap_err();
        assert!(error.to_string().contains("info=loud="), "{error}");
    }
}
