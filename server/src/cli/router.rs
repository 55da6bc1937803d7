//! Arguments of `router`. The names are those of sglang-router.

use std::path::PathBuf;

use clap::{ArgAction, Args};
use hearth_router::ApiKey;
use serde::Serialize;

use super::flags::FileArgs;

const POLICIES: [&str; 4] = ["random", "round_robin", "power_of_two", "cache_aware"];

#[derive(Debug, Args)]
pub struct RouterArgs {
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub flags: Box<RouterFlags>,
    /// Print the resolved configuration as TOML and exit
    #[arg(long)]
    pub print_config: bool,
}

/// Flags that set the configuration of the router. A flag that is not given is not serialised.
#[derive(Debug, Default, Args, Serialize)]
pub struct RouterFlags {
    /// URLs of the workers
    #[arg(long, num_args = 1.., value_name = "URL")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub worker_urls: Vec<String>,
    /// Send each request to a prefill and a decode worker
    #[arg(long, action = ArgAction::SetTrue)]
    #[serde(skip_serializing_if = "is_false")]
    pub pd_disaggregation: bool,
    /// URL of a prefill worker, and the port of its bootstrap server or `none`; may be repeated
    #[arg(long, num_args = 1..=2, value_names = ["URL", "PORT|none"])]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefill: Vec<String>,
    /// URL of a decode worker; may be repeated
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub decode: Vec<String>,
    /// How workers are selected [default: cache_aware]
    #[arg(long, value_parser = POLICIES)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// How prefill workers are selected [default: --policy]
    #[arg(long, value_parser = POLICIES)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_policy: Option<String>,
    /// How decode workers are selected [default: --policy]
    #[arg(long, value_parser = POLICIES)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_policy: Option<String>,
    /// cache_aware: share of the prompt above which a matching prefix decides [default: 0.3]
    #[arg(long, value_name = "SHARE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_threshold: Option<f64>,
    /// cache_aware: difference of requests in flight above which loads are balanced first
    /// [default: 64]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balance_abs_threshold: Option<usize>,
    /// cache_aware: ratio of requests in flight above which loads are balanced first [default: 1.5]
    #[arg(long, value_name = "RATIO")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balance_rel_threshold: Option<f64>,
    /// cache_aware: most characters and token ids to remember [default: 67108864]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tree_size: Option<usize>,
    /// cache_aware: follow the KV events of workers that publish them (--kv-events-config of serve)
    /// [default: auto]
    #[arg(long, value_parser = ["auto", "off"])]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_events: Option<String>,
    /// Address to listen on [default: 127.0.0.1]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// TCP port to listen on; 0 selects a free one [default: 30000]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Number of threads that serve HTTP [default: 2]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_workers: Option<usize>,
    /// Log filter, such as info or hearth_router=debug,info [default: info]
    #[arg(long, value_name = "FILTER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_level: Option<String>,
    /// Key that clients must send, and that the router sends to workers. HEARTH_ROUTER_API_KEY is
    /// safer, because other users of the machine can see flags [default: none]
    #[arg(long, value_name = "KEY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<ApiKey>,
    /// PEM file with the certificate chain for HTTPS and HTTP/2 [default: plain HTTP]
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the private key of --tls-cert
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// Largest request body in bytes [default: 536870912]
    #[arg(long, value_name = "BYTES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_payload_size: Option<usize>,
    /// Longest time from a request to the last byte of its response [default: 1800]
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_timeout_secs: Option<f64>,
    /// Time that requests may take to finish after SIGINT or SIGTERM [default: 180]
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shutdown_grace_period_secs: Option<f64>,
    /// Most requests at the same time; -1 means no bound [default: -1]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrent_requests: Option<i64>,
    /// Most requests that wait when that many run; further ones get status 429 [default: 100]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_size: Option<usize>,
    /// Longest time that a request waits, after which it gets status 503 [default: 60]
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_timeout_secs: Option<f64>,
    /// In prefill/decode mode: how long to wait for the decode worker after the last prefill worker
    /// failed, because it may compute the prompt itself; 0 means not at all [default: 60]
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_alone_timeout_secs: Option<f64>,
    /// Most attempts at a request [default: 5]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_max_retries: Option<u32>,
    /// Pause before the second attempt [default: 50]
    #[arg(long, value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_initial_backoff_ms: Option<u64>,
    /// Longest pause between attempts [default: 30000]
    #[arg(long, value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_max_backoff_ms: Option<u64>,
    /// Factor from each pause to the next [default: 1.5]
    #[arg(long, value_name = "FACTOR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_backoff_multiplier: Option<f64>,
    /// Share by which a pause is randomly longer or shorter [default: 0.2]
    #[arg(long, value_name = "SHARE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_jitter_factor: Option<f64>,
    /// Try each request once
    #[arg(long, action = ArgAction::SetTrue)]
    #[serde(skip_serializing_if = "is_false")]
    pub disable_retries: bool,
    /// Failures within the window that open a worker's circuit breaker [default: 10]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cb_failure_threshold: Option<u32>,
    /// Successes that close a half-open circuit breaker [default: 3]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cb_success_threshold: Option<u32>,
    /// Time until an open circuit breaker is half-open [default: 60]
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cb_timeout_duration_secs: Option<f64>,
    /// Time for which a failure counts [default: 120]
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cb_window_duration_secs: Option<f64>,
    /// Ignore failures of requests in the selection of workers
    #[arg(long, action = ArgAction::SetTrue)]
    #[serde(skip_serializing_if = "is_false")]
    pub disable_circuit_breaker: bool,
    /// Failed health checks in a row that make a worker unhealthy [default: 3]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_failure_threshold: Option<u32>,
    /// Successful health checks in a row that make a worker healthy again [default: 2]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_success_threshold: Option<u32>,
    /// Longest time of a health check [default: 5]
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_check_timeout_secs: Option<f64>,
    /// Time between health checks [default: 60]
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_check_interval_secs: Option<f64>,
    /// Path of the health check [default: /health]
    #[arg(long, value_name = "PATH")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_check_endpoint: Option<String>,
    /// Take every worker to be healthy
    #[arg(long, action = ArgAction::SetTrue)]
    #[serde(skip_serializing_if = "is_false")]
    pub disable_health_check: bool,
    /// Time between health checks of a worker that has answered none yet [default: 1]
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_startup_check_interval: Option<f64>,
    /// Time after which such a worker is checked at the normal interval [default: 1800]
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_startup_timeout_secs: Option<f64>,
    /// Address of the listener that serves /metrics alone [default: 127.0.0.1]
    #[arg(long, value_name = "HOST")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prometheus_host: Option<String>,
    /// Port of that listener; 0 or none for no such listener [default: 29000]
    #[arg(long, value_name = "PORT|none", value_parser = port_or_none)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prometheus_port: Option<u16>,
    /// OTLP endpoint to send traces to, such as http://localhost:4318
    /// [default: OTEL_EXPORTER_OTLP_ENDPOINT, or none]
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_endpoint: Option<String>,
    /// Protocol of OTLP [default: OTEL_EXPORTER_OTLP_PROTOCOL, or http]
    #[arg(long, value_parser = ["http", "grpc"])]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_protocol: Option<String>,
}

fn is_false(value: &bool) -> bool {
    !*value
}

fn port_or_none(given: &str) -> Result<u16, String> {
    match given {
        "none" => Ok(0),
        port => port
            .parse()
            .map_err(|_| "it must be from 0 to 65535, or none".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches, Parser};
    use hearth_router::RouterConfig;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Parser)]
    struct Alone {
        #[command(flatten)]
        router: RouterArgs,
    }

    fn flags(line: &str) -> serde_json::Value {
        let words = ["router"].into_iter().chain(line.split_whitespace());
        let matches = Alone::command().get_matches_from(words);
        let parsed = Alone::from_arg_matches(&matches).unwrap();
        serde_json::to_value(parsed.router.flags).unwrap()
    }

    #[test]
    fn flags_that_are_not_given_do_not_override_lower_layers() {
        assert_eq!(flags(""), json!({}));
    }

    #[test]
    fn the_command_lines_of_sglang_router_are_understood() {
        let line = "--pd-disaggregation --prefill http://p1:8000 9000 --prefill http://p2:8000 none \
                    --prefill http://p3:8000 --decode http://d1:8001 --decode http://d2:8001 \
                    --prefill-policy cache_aware --decode-policy power_of_two \
                    --prometheus-port none --max-concurrent-requests -1";
        let expected = json!({
            "pd_disaggregation": true,
            "prefill": ["http://p1:8000", "9000", "http://p2:8000", "none", "http://p3:8000"],
            "decode": ["http://d1:8001", "http://d2:8001"],
            "prefill_policy": "cache_aware",
            "decode_policy": "power_of_two",
            "prometheus_port": 0,
            "max_concurrent_requests": -1,
        });
        assert_eq!(flags(line), expected);
        let line = "--worker-urls http://w1:8000 http://w2:8000 --policy round_robin";
        let expected = json!({
            "worker_urls": ["http://w1:8000", "http://w2:8000"],
            "policy": "round_robin",
        });
        assert_eq!(flags(line), expected);
    }

    #[test]
    fn every_key_of_the_configuration_has_a_flag() {
        let command = Alone::command();
        let flags: Vec<String> = command
            .get_arguments()
            .filter_map(|arg| arg.get_long().map(str::to_owned))
            .collect();
        for key in RouterConfig::KEYS {
            let flag = key.replace('_', "-");
            assert!(flags.contains(&flag), "--{flag} is missing");
        }
    }
}
