//! Instruments of transfers of keys and values between prefill and decode servers.

use opentelemetry::KeyValue;
use opentelemetry::metrics::{BoundCounter, BoundHistogram, Meter};

use super::build::{counter, histogram};
use crate::bounds::Bounds;
use crate::records::KvTransfer;

/// They exist from the start, so that rates have a first value.
#[derive(Debug)]
pub(super) struct TransferInstruments {
    bootstrap: BoundHistogram<f64>,
    duration: BoundHistogram<f64>,
    size: BoundHistogram<f64>,
    rate: BoundHistogram<f64>,
    failures: BoundCounter<u64>,
}

impl TransferInstruments {
    pub fn new(meter: &Meter, model: &[KeyValue], bounds: &Bounds) -> Self {
        let bound = |name| histogram(meter, name, bounds).bind(model);
        let failures = counter(meter, "llm.kv_transfer.failures").bind(model);
        failures.add(0);
        Self {
            bootstrap: bound("llm.kv_transfer.bootstrap_time"),
            duration: bound("llm.kv_transfer.duration"),
            size: bound("llm.kv_transfer.size"),
            rate: bound("llm.kv_transfer.rate"),
            failures,
        }
    }

    pub fn record(&self, transfer: &KvTransfer) {
        if let Some(bootstrap) = transfer.bootstrap() {
            self.bootstrap.record(bootstrap.as_secs_f64());
        }
        if transfer.error.is_some() {
            self.failures.add(1);
            return;
        }
        // A decode server that has the whole prompt cached gets no keys and values.
        let Some(duration) = transfer.duration().filter(|_| transfer.bytes > 0) else {
            return;
        };
        let (seconds, bytes) = (duration.as_secs_f64(), transfer.bytes as f64);
        self.duration.record(seconds);
        self.size.record(bytes);
        if seconds > 0.0 {
            self.rate.record(bytes / seconds);
        }
    }
}
