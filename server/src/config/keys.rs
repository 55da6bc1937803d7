//! Every key that a file or the environment may set, once, under the heading that `--help` has for it.

use super::settings::Config;

/// The headings, and the keys under each.
pub const HEADINGS: &[(&str, &[&str])] = &[
    (
        "Model",
        &[
            "model",
            "served_model_name",
            "device",
            "dtype",
            "quantization",
            "load_format",
            "deterministic",
            "autotune",
            "max_model_len",
        ],
    ),
    (
        "Scheduling and cache",
        &[
            "kv_tokens",
            "swa_full_tokens_ratio",
            "kv_cache_dtype",
            "prefill_chunk",
            "max_running_requests",
            "max_batch_tokens",
            "max_submission_ms",
            "max_queue",
            "schedule_policy",
            "prefix_cache",
            "page_size",
            "radix_eviction_policy",
            "host_cache_tokens",
            "host_cache_write_policy",
            "cache_dir",
            "cache_dir_bytes",
        ],
    ),
    (
        "Speculative decoding",
        &[
            "speculative_config",
            "speculative_algorithm",
            "speculative_draft_model_path",
            "speculative_num_draft_tokens",
        ],
    ),
    (
        "Adapters (LoRA)",
        &[
            "enable_lora",
            "lora_modules",
            "lora_paths",
            "lora",
            "lora_scaled",
            "lora_init_without_apply",
            "max_loras",
            "max_lora_rank",
            "max_lora_tables",
            "max_cpu_loras",
            "lora_dir",
        ],
    ),
    (
        "Requests and answers",
        &[
            "sampling_defaults",
            "jump_forward",
            "json_whitespace",
            "structured_strictness",
            "pooling",
            "tool_call_parser",
            "reasoning_parser",
            "special_tokens_in_messages",
        ],
    ),
    (
        "Server",
        &[
            "host",
            "port",
            "http_workers",
            "max_body_bytes",
            "tls_cert",
            "tls_key",
            "stall_timeout",
            "shutdown_timeout",
        ],
    ),
    (
        "Keys and web pages",
        &[
            "api_key",
            "admin_api_key",
            "api_keys_file",
            "cache_isolation",
            "allowed_hosts",
            "cors",
        ],
    ),
    (
        "Prefill/decode disaggregation and KV events",
        &[
            "disaggregation_mode",
            "disaggregation_bootstrap_port",
            "disaggregation_kv_port",
            "disaggregation_secret",
            "disaggregation_timeout",
            "disaggregation_fallback",
            "kv_events_config",
        ],
    ),
    (
        "Metrics, traces and logs",
        &[
            "disable_metrics",
            "metrics_names",
            "show_hidden_metrics_for_version",
            "custom_histogram_buckets",
            "otlp_endpoint",
            "otlp_protocol",
            "collect_detailed_traces",
            "trace_message_content",
            "log_stats",
            "log_stats_interval",
            "decode_log_interval",
            "stall_trace_dir",
            "log_format",
            "log_level",
        ],
    ),
];

impl Config {
    /// All keys.
    pub(super) fn keys() -> impl Iterator<Item = &'static str> {
        HEADINGS.iter().flat_map(|(_, keys)| keys.iter().copied())
    }
}
