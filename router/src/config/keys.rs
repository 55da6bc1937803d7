//! The names of all settings.

use super::RouterConfig;

impl RouterConfig {
    /// Every key that a file or the environment may set.
    pub const KEYS: &'static [&'static str] = &[
        "host",
        "port",
        "worker_urls",
        "pd_disaggregation",
        "prefill",
        "decode",
        "policy",
        "prefill_policy",
        "decode_policy",
        "cache_threshold",
        "balance_abs_threshold",
        "balance_rel_threshold",
        "max_tree_size",
        "kv_events",
        "max_payload_size",
        "request_timeout_secs",
        "shutdown_grace_period_secs",
        "max_concurrent_requests",
        "queue_size",
        "queue_timeout_secs",
        "decode_alone_timeout_secs",
        "retry_max_retries",
        "retry_initial_backoff_ms",
        "retry_max_backoff_ms",
        "retry_backoff_multiplier",
        "retry_jitter_factor",
        "disable_retries",
        "cb_failure_threshold",
        "cb_success_threshold",
        "cb_timeout_duration_secs",
        "cb_window_duration_secs",
        "disable_circuit_breaker",
        "health_failure_threshold",
        "health_success_threshold",
        "health_check_timeout_secs",
        "health_check_interval_secs",
        "health_check_endpoint",
        "disable_health_check",
        "worker_startup_check_interval",
        "worker_startup_timeout_secs",
        "prometheus_host",
        "prometheus_port",
        "api_key",
        "tls_cert",
        "tls_key",
        "http_workers",
        "log_level",
        "otlp_endpoint",
        "otlp_protocol",
    ];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{OtlpProtocol, PolicyKind};
    use crate::secret::ApiKey;

    #[test]
    fn the_list_of_keys_is_complete() {
        let full = RouterConfig {
            prefill_policy: Some(PolicyKind::Random),
            decode_policy: Some(PolicyKind::Random),
            api_key: Some(ApiKey::new("a")),
            tls_cert: Some("a".into()),
            tls_key: Some("a".into()),
            otlp_endpoint: Some("a".to_owned()),
            otlp_protocol: Some(OtlpProtocol::Grpc),
            ..RouterConfig::default()
        };
        let value = serde_json::to_value(full).unwrap();
        let mut keys: Vec<&str> = value
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let mut listed = RouterConfig::KEYS.to_vec();
        keys.sort_unstable();
        listed.sort_unstable();
        assert_eq!(keys, listed);
    }
}
