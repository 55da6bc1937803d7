//! The settings, under the names of sglang-router's flags.
//!
//! - `check`: the bounds.
//! - `keys`: the names of all settings.
//! - `workers`: the workers that the settings name.

mod check;
mod keys;
mod workers;

use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};

pub use check::ConfigError;
pub use workers::{PrefillUrl, worker_url};

use crate::secret::ApiKey;

/// How a worker is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    Random,
    RoundRobin,
    /// Takes two random workers and selects the one with fewer requests in flight.
    PowerOfTwo,
    /// The worker that was last sent the longest prefix of the prompt.
    CacheAware,
}

impl PolicyKind {
    /// The policy's name in flags and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::RoundRobin => "round_robin",
            Self::PowerOfTwo => "power_of_two",
            Self::CacheAware => "cache_aware",
        }
    }
}

/// Says whether the KV events of workers are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvEventsMode {
    /// The events of workers that say in `/server_info` where they publish them.
    Auto,
    Off,
}

/// The protocol of the collector that traces go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OtlpProtocol {
    /// Protobuf over HTTP.
    Http,
    Grpc,
}

impl From<OtlpProtocol> for hearth_otel::OtlpProtocol {
    fn from(protocol: OtlpProtocol) -> Self {
        match protocol {
            OtlpProtocol::Http => Self::Http,
            OtlpProtocol::Grpc => Self::Grpc,
        }
    }
}

/// The settings of a router. Durations are in seconds where the name does not say otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouterConfig {
    /// Address to listen on.
    pub host: String,
    /// TCP port; 0 selects a free one.
    pub port: u16,
    /// URLs of the workers in regular mode.
    #[serde(deserialize_with = "words")]
    pub worker_urls: Vec<String>,
    /// Send each request to a prefill and a decode worker.
    pub pd_disaggregation: bool,
    /// Prefill workers: each URL may be followed by its bootstrap port or `none`.
    #[serde(deserialize_with = "words")]
    pub prefill: Vec<String>,
    /// URLs of the decode workers.
    #[serde(deserialize_with = "words")]
    pub decode: Vec<String>,
    /// How workers are selected.
    pub policy: PolicyKind,
    /// How prefill workers are selected. Default: `policy`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_policy: Option<PolicyKind>,
    /// How decode workers are selected. Default: `policy`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_policy: Option<PolicyKind>,
    /// `cache_aware`: the share of the prompt above which a matching prefix decides.
    pub cache_threshold: f64,
    /// `cache_aware`: loads are unequal if they differ by more than this number of requests ...
    pub balance_abs_threshold: usize,
    /// ... and the largest load is more than this multiple of the smallest.
    pub balance_rel_threshold: f64,
    /// `cache_aware`: most characters and token ids to remember, for all workers together.
    pub max_tree_size: usize,
    /// `cache_aware`: follow what workers say that they have cached.
    pub kv_events: KvEventsMode,
    /// Largest request body in bytes.
    pub max_payload_size: usize,
    /// Longest time from a request to the last byte of its response.
    pub request_timeout_secs: f64,
    /// Time that requests may take to finish after a signal.
    pub shutdown_grace_period_secs: f64,
    /// Most requests at the same time; -1 means no bound.
    pub max_concurrent_requests: i64,
    /// Most requests that wait when `max_concurrent_requests` run.
    pub queue_size: usize,
    /// Longest time that a request waits there.
    pub queue_timeout_secs: f64,
    /// In prefill/decode mode: how long decode is waited for after the last prefill worker failed,
    /// because it may compute the prompt itself; 0 means not at all.
    pub decode_alone_timeout_secs: f64,
    /// Most attempts at a request.
    pub retry_max_retries: u32,
    /// Pause before the second attempt, in milliseconds.
    pub retry_initial_backoff_ms: u64,
    /// Longest pause between attempts, in milliseconds.
    pub retry_max_backoff_ms: u64,
    /// Factor from each pause to the next.
    pub retry_backoff_multiplier: f64,
    /// Share by which a pause is randomly longer or shorter.
    pub retry_jitter_factor: f64,
    /// Try each request once.
    pub disable_retries: bool,
    /// Failures within the window that open a worker's circuit breaker.
    pub cb_failure_threshold: u32,
    /// Successes that close a half-open circuit breaker.
    pub cb_success_threshold: u32,
    /// Time until an open circuit breaker is half-open.
    pub cb_timeout_duration_secs: f64,
    /// Time for which a failure counts.
    pub cb_window_duration_secs: f64,
    /// Ignore failures of requests in the selection of workers.
    pub disable_circuit_breaker: bool,
    /// Health checks in a row that must fail to make a worker unhealthy.
    pub health_failure_threshold: u32,
    /// Health checks in a row that must succeed to make a worker healthy again.
    pub health_success_threshold: u32,
    /// Longest time of a health check.
    pub health_check_timeout_secs: f64,
    /// Time between health checks.
    pub health_check_interval_secs: f64,
    /// Path of the health check.
    pub health_check_endpoint: String,
    /// Take every worker to be healthy.
    pub disable_health_check: bool,
    /// Time between the health checks of a worker that has not answered any yet ...
    pub worker_startup_check_interval: f64,
    /// ... for at most this time.
    pub worker_startup_timeout_secs: f64,
    /// Address of the listener that serves `/metrics` alone.
    pub prometheus_host: String,
    /// Its port; 0 means no such listener.
    pub prometheus_port: u16,
    /// Key that clients must send, and that the router sends to workers. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<ApiKey>,
    /// PEM file with the certificate chain. Default: plain HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the private key of `tls_cert`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// Number of threads that serve HTTP.
    pub http_workers: usize,
    /// A `tracing` filter, which the process that runs the router applies.
    pub log_level: String,
    /// Where that process sends traces. Default: the environment's, or nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_endpoint: Option<String>,
    /// Its protocol. Default: the environment's, or HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_protocol: Option<OtlpProtocol>,
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 30000,
            worker_urls: Vec::new(),
            pd_disaggregation: false,
            prefill: Vec::new(),
            decode: Vec::new(),
            policy: PolicyKind::CacheAware,
            prefill_policy: None,
            decode_policy: None,
            cache_threshold: 0.3,
            balance_abs_threshold: 64,
            balance_rel_threshold: 1.5,
            max_tree_size: 1 << 26,
            kv_events: KvEventsMode::Auto,
            max_payload_size: 512 << 20,
            request_timeout_secs: 1800.0,
            shutdown_grace_period_secs: 180.0,
            max_concurrent_requests: -1,
            queue_size: 100,
            queue_timeout_secs: 60.0,
            decode_alone_timeout_secs: 60.0,
            retry_max_retries: 5,
            retry_initial_backoff_ms: 50,
            retry_max_backoff_ms: 30_000,
            retry_backoff_multiplier: 1.5,
            retry_jitter_factor: 0.2,
            disable_retries: false,
            cb_failure_threshold: 10,
            cb_success_threshold: 3,
            cb_timeout_duration_secs: 60.0,
            cb_window_duration_secs: 120.0,
            disable_circuit_breaker: false,
            health_failure_threshold: 3,
            health_success_threshold: 2,
            health_check_timeout_secs: 5.0,
            health_check_interval_secs: 60.0,
            health_check_endpoint: "/health".to_owned(),
            disable_health_check: false,
            worker_startup_check_interval: 1.0,
            worker_startup_timeout_secs: 1800.0,
            prometheus_host: "127.0.0.1".to_owned(),
            prometheus_port: 29000,
            api_key: None,
            tls_cert: None,
            tls_key: None,
            http_workers: 2,
            log_level: "info".to_owned(),
            otlp_endpoint: None,
            otlp_protocol: None,
        }
    }
}

impl RouterConfig {
    /// The policy of prefill workers.
    pub fn prefill_policy(&self) -> PolicyKind {
        self.prefill_policy.unwrap_or(self.policy)
    }

    /// The policy of decode workers.
    pub fn decode_policy(&self) -> PolicyKind {
        self.decode_policy.unwrap_or(self.policy)
    }
}

/// A list of words, or one text with words between spaces or commas, as an environment variable
/// has them.
fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a list of texts, or one text")]
    enum Given {
        One(String),
        Many(Vec<String>),
    }
    let texts = match Given::deserialize(deserializer)? {
        Given::One(text) => vec![text],
        Given::Many(texts) => texts,
    };
    let words = texts
        .iter()
        .flat_map(|text| text.split([' ', ',']))
        .filter(|word| !word.is_empty());
    Ok(words.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_from_one_text_too() {
        let mut value = serde_json::to_value(RouterConfig::default()).unwrap();
        value["prefill"] = "http://a:1 8998,http://b:2".into();
        value["worker_urls"] = serde_json::json!(["http://a:1", "http://b:2 http://c:3"]);
        let config: RouterConfig = serde_json::from_value(value).unwrap();
        assert_eq!(config.prefill, ["http://a:1", "8998", "http://b:2"]);
        assert_eq!(config.worker_urls.len(), 3);
    }
}
