//! Instruments that exist before the model is loaded: those of the process and of HTTP.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;

use super::build::observed;
use super::http::HttpInstruments;
use crate::bounds::Bounds;
use crate::catalog::DROP_REASON;
use crate::logs::dropped_lines;
use crate::process::{self, ProcessStats};

/// How long values of `/proc` are reused, so that one scrape reads it once.
const FRESH: Duration = Duration::from_millis(50);

/// Builds the instruments that exist before the model is loaded. `dropped` returns the
/// number of records that telemetry has dropped.
pub fn server_instruments(
    meter: &Meter,
    bounds: &Bounds,
    dropped: Arc<dyn Fn() -> u64 + Send + Sync>,
) -> HttpInstruments {
    let cache = Mutex::new(None::<(Instant, Option<ProcessStats>)>);
    let stats = Arc::new(move || {
        let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
        match *cache {
            Some((at, stats)) if at.elapsed() < FRESH => stats,
            _ => {
                let stats = process::stats();
                *cache = Some((Instant::now(), stats));
                stats
            }
        }
    });
    let of_process = |name, value: fn(&ProcessStats) -> f64| {
        let stats = Arc::clone(&stats);
        observed(meter, name, move || {
            let value = stats().map(|stats| (Vec::new(), value(&stats)));
            value.into_iter().collect()
        });
    };
    of_process("process.cpu.time", |stats| stats.cpu_seconds);
    of_process("process.memory.usage", |stats| stats.resident_bytes as f64);
    of_process("process.memory.virtual", |stats| stats.virtual_bytes as f64);
    of_process("process.unix.file_descriptor.count", |stats| {
        stats.open_fds as f64
    });
    of_process("process.thread.count", |stats| stats.threads as f64);
    of_process("hearth.process.file_descriptor.limit", |stats| {
        stats.max_fds as f64
    });
    let started = Instant::now();
    observed(meter, "process.uptime", move || {
        vec![(Vec::new(), started.elapsed().as_secs_f64())]
    });
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64());
    observed(meter, "hearth.process.start_time", move || {
        vec![(Vec::new(), since_epoch)]
    });
    observed(meter, "hearth.telemetry.dropped", move || {
        vec![(Vec::new(), dropped() as f64)]
    });
    observed(meter, "hearth.log.dropped", || {
        let lines = dropped_lines().map(|(reason, count)| {
            let reason = KeyValue::new(DROP_REASON, reason);
            (vec![reason], count as f64)
        });
        lines.into()
    });
    HttpInstruments::new(meter, bounds)
}
