//! The router's own metrics, under the names of sglang-router where they mean the same.
//!
//! Gauges about workers are set at each scrape from the registry, so that a worker that is gone
//! has no series.

use std::time::Duration;

use prometheus::{
    Encoder, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

/// Labels of the metrics about requests to workers.
const ROUTED: [&str; 5] = [
    "router_type",
    "backend_type",
    "connection_mode",
    "model",
    "endpoint",
];
/// The router speaks HTTP to clients and to workers.
pub const HTTP: &str = "http";

/// Bounds in seconds of the duration of requests.
const DURATIONS: &[f64] = &[
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0,
    300.0, 600.0, 1800.0,
];
/// Bounds in seconds of the time to the first bytes of a stream.
const TTFT: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    30.0, 60.0,
];
/// Bounds in seconds of the time between the pieces of a stream.
const TPOT: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15,
    0.2, 0.3, 0.5, 1.0, 2.5,
];

/// The labels of a request to a worker.
#[derive(Clone, Debug)]
pub struct RouteLabels {
    /// `regular` or `pd`.
    pub backend: &'static str,
    pub model: String,
    pub endpoint: &'static str,
}

impl RouteLabels {
    fn values(&self) -> [&str; 5] {
        [HTTP, self.backend, HTTP, &self.model, self.endpoint]
    }
}

/// All instruments.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub http_requests: IntCounterVec,
    pub http_responses: IntCounterVec,
    pub http_duration: HistogramVec,
    pub http_connections: IntGauge,
    requests: IntCounterVec,
    duration: HistogramVec,
    errors: IntCounterVec,
    upstream_responses: IntCounterVec,
    ttft: HistogramVec,
    tpot: HistogramVec,
    pub queue_waiting: IntGauge,
    pub rejected: IntCounterVec,
    pub selections: IntCounterVec,
    pub worker_errors: IntCounterVec,
    pub health_checks: IntCounterVec,
    retries: IntCounterVec,
    retries_exhausted: IntCounterVec,
    backoff: HistogramVec,
    pub cb_outcomes: IntCounterVec,
    pub cb_transitions: IntCounterVec,
    pub pool_size: IntGaugeVec,
    pub requests_active: IntGaugeVec,
    pub health: IntGaugeVec,
    pub cb_state: IntGaugeVec,
    pub cb_failures: IntGaugeVec,
    pub cb_successes: IntGaugeVec,
}

/// Makes instruments and registers them.
struct Maker(Registry);

impl Maker {
    fn counter(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntCounterVec> {
        let made = IntCounterVec::new(Opts::new(name, help), labels)?;
        self.0.register(Box::new(made.clone()))?;
        Ok(made)
    }

    fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
        let made = IntGaugeVec::new(Opts::new(name, help), labels)?;
        self.0.register(Box::new(made.clone()))?;
        Ok(made)
    }

    fn single(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        let made = IntGauge::new(name, help)?;
        self.0.register(Box::new(made.clone()))?;
        Ok(made)
    }

    fn histogram(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        bounds: &[f64],
    ) -> prometheus::Result<HistogramVec> {
        let options = HistogramOpts::new(name, help).buckets(bounds.to_vec());
        let made = HistogramVec::new(options, labels)?;
        self.0.register(Box::new(made.clone()))?;
        Ok(made)
    }
}

impl Metrics {
    /// # Errors
    /// Two instruments have the same name.
    #[rustfmt::skip]
    pub fn new() -> prometheus::Result<Self> {
        let make = Maker(Registry::new());
        let build = GaugeVec::new(Opts::new("hearth_router_build_info", "Version of the router"), &["version"])?;
        make.0.register(Box::new(build.clone()))?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        let with = |last: &'static str| [&ROUTED[..], &[last]].concat();
        Ok(Self {
            http_requests: make.counter("smg_http_requests_total", "Requests of clients", &["method", "path"])?,
            http_responses: make.counter("smg_http_responses_total", "Responses to clients", &["status_code", "error_code"])?,
            http_duration: make.histogram("smg_http_request_duration_seconds", "Time from a request to the head of its response", &["method", "path"], DURATIONS)?,
            http_connections: make.single("smg_http_connections_active", "Open connections of clients")?,
            requests: make.counter("smg_router_requests_total", "Requests to route to workers", &with("streaming"))?,
            duration: make.histogram("smg_router_request_duration_seconds", "Time from a request to the last byte of its response", &ROUTED, DURATIONS)?,
            errors: make.counter("smg_router_request_errors_total", "Requests that got an error", &with("error_type"))?,
            upstream_responses: make.counter("smg_router_upstream_responses_total", "Responses of workers", &["router_type", "status_code", "error_code"])?,
            ttft: make.histogram("smg_router_ttft_seconds", "Time from a request to the first bytes of its stream", &ROUTED, TTFT)?,
            tpot: make.histogram("smg_router_tpot_seconds", "Time between two pieces of a stream", &ROUTED, TPOT)?,
            queue_waiting: make.single("smg_http_queue_waiting", "Requests that wait because max_concurrent_requests run")?,
            rejected: make.counter("smg_http_rate_limit_total", "Requests that met the bound of concurrent requests", &["result"])?,
            selections: make.counter("smg_worker_selection_total", "Selections of a worker", &["worker_type", "connection_mode", "model", "policy"])?,
            worker_errors: make.counter("smg_worker_errors_total", "Failed requests to workers", &["worker_type", "connection_mode", "error_type"])?,
            health_checks: make.counter("smg_worker_health_checks_total", "Health checks", &["worker_type", "result"])?,
            retries: make.counter("smg_worker_retries_total", "Attempts after the first", &["worker_type", "endpoint"])?,
            retries_exhausted: make.counter("smg_worker_retries_exhausted_total", "Requests that failed at every attempt", &["worker_type", "endpoint"])?,
            backoff: make.histogram("smg_worker_retry_backoff_seconds", "Pauses between attempts", &["attempt"], DURATIONS)?,
            cb_outcomes: make.counter("smg_worker_cb_outcomes_total", "Outcomes that circuit breakers counted", &["worker", "outcome"])?,
            cb_transitions: make.counter("smg_worker_cb_transitions_total", "State changes of circuit breakers", &["worker", "from", "to"])?,
            pool_size: make.gauge("smg_worker_pool_size", "Registered workers", &["worker_type", "connection_mode", "model"])?,
            requests_active: make.gauge("smg_worker_requests_active", "Requests in flight at a worker", &["worker"])?,
            health: make.gauge("smg_worker_health", "1 if a worker is healthy", &["worker"])?,
            cb_state: make.gauge("smg_worker_cb_state", "Circuit breaker: 0 closed, 1 open, 2 half-open", &["worker"])?,
            cb_failures: make.gauge("smg_worker_cb_consecutive_failures", "Failures since the last success", &["worker"])?,
            cb_successes: make.gauge("smg_worker_cb_consecutive_successes", "Successes since the last failure", &["worker"])?,
            registry: make.0,
        })
    }

    pub fn routed(&self, labels: &RouteLabels, streaming: bool) {
        let streaming = if streaming { "true" } else { "false" };
        let values = with(labels, streaming);
        self.requests.with_label_values(&values).inc();
    }

    pub fn finished(&self, labels: &RouteLabels, took: Duration) {
        let duration = self.duration.with_label_values(&labels.values());
        duration.observe(took.as_secs_f64());
    }

    pub fn error(&self, labels: &RouteLabels, error: &str) {
        let values = with(labels, error);
        self.errors.with_label_values(&values).inc();
    }

    pub fn upstream_response(&self, status: u16, code: &str) {
        let status = status.to_string();
        let values = [HTTP, status.as_str(), code];
        self.upstream_responses.with_label_values(&values).inc();
    }

    /// The histograms of the first bytes of streams, and of the time between their pieces.
    pub fn stream(&self, labels: &RouteLabels) -> (prometheus::Histogram, prometheus::Histogram) {
        let values = labels.values();
        (
            self.ttft.with_label_values(&values),
            self.tpot.with_label_values(&values),
        )
    }

    pub fn retry(&self, worker_type: &str, endpoint: &str, attempt: u32, pause: Duration) {
        let values = [worker_type, endpoint];
        self.retries.with_label_values(&values).inc();
        let attempt = attempt.to_string();
        let backoff = self.backoff.with_label_values(&[attempt.as_str()]);
        backoff.observe(pause.as_secs_f64());
    }

    pub fn exhausted(&self, worker_type: &str, endpoint: &str) {
        let values = [worker_type, endpoint];
        self.retries_exhausted.with_label_values(&values).inc();
    }

    /// All metrics in Prometheus' text format.
    ///
    /// # Errors
    /// The encoder refuses a family.
    pub fn text(&self) -> prometheus::Result<Vec<u8>> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

fn with<'a>(labels: &'a RouteLabels, last: &'a str) -> [&'a str; 6] {
    let [a, b, c, d, e] = labels.values();
    [a, b, c, d, e, last]
}
