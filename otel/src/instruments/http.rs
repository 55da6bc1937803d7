//! The HTTP server's instruments.

use std::sync::Arc;

use opentelemetry::metrics::{Histogram, Meter, UpDownCounter};
use opentelemetry::{KeyValue, TraceId};

use super::build::{described, histogram};
use crate::bounds::Bounds;
use crate::catalog::{ERROR, METHOD, ROUTE, SCHEME, STATUS};
use crate::exemplars::Exemplars;
use crate::records::HttpOutcome;

/// Instruments of the HTTP server.
#[derive(Clone, Debug)]
pub struct HttpInstruments {
    duration: Histogram<f64>,
    active: UpDownCounter<i64>,
    request_size: Histogram<f64>,
    response_size: Histogram<f64>,
    exemplars: Arc<Exemplars>,
}

fn http_attributes(method: &'static str, route: &'static str) -> Vec<KeyValue> {
    vec![
        KeyValue::new(METHOD, method),
        KeyValue::new(SCHEME, "http"),
        KeyValue::new(ROUTE, route),
    ]
}

impl HttpInstruments {
    pub(super) fn new(meter: &Meter, bounds: &Bounds) -> Self {
        let active = described("http.server.active_requests");
        Self {
            duration: histogram(meter, "http.server.request.duration", bounds),
            active: meter
                .i64_up_down_counter(active.name)
                .with_unit(active.unit)
                .with_description(active.help)
                .build(),
            request_size: histogram(meter, "http.server.request.body.size", bounds),
            response_size: histogram(meter, "http.server.response.body.size", bounds),
            exemplars: Arc::new(Exemplars::new(bounds)),
        }
    }

    /// The exemplars of the buckets of durations.
    pub fn exemplars(&self) -> &Exemplars {
        &self.exemplars
    }

    /// Counts a request that is now active.
    pub fn begin(&self, method: &'static str, route: &'static str) {
        self.active.add(1, &http_attributes(method, route));
    }

    /// Records an exchange that ended, and its trace if it is exported.
    pub fn end(
        &self,
        method: &'static str,
        route: &'static str,
        outcome: &HttpOutcome,
        trace: Option<TraceId>,
    ) {
        let mut attributes = http_attributes(method, route);
        self.active.add(-1, &attributes);
        attributes.push(KeyValue::new(STATUS, i64::from(outcome.status)));
        let (sent, received) = (outcome.response_bytes, outcome.request_bytes);
        self.request_size.record(received as f64, &attributes);
        self.response_size.record(sent as f64, &attributes);
        if let Some(error) = &outcome.error {
            attributes.push(KeyValue::new(ERROR, error.clone()));
        }
        let seconds = outcome.duration.as_secs_f64();
        self.duration.record(seconds, &attributes);
        if let Some(trace) = trace {
            let name = "http.server.request.duration";
            self.exemplars.keep(name, &attributes, seconds, trace);
        }
    }
}
