//! All settings with their defaults.

use std::path::PathBuf;

use hearth_api::config::HttpConfig;
use hearth_api::secret::Secret;
use serde::{Deserialize, Serialize};

use super::choices::{
    CacheIsolation, DisaggregationFallback, DisaggregationMode, Dtype, HostCacheWritePolicy,
    JsonWhitespace, KvCacheDtype, LoadFormat, LogFormat, LogStats, OtlpProtocol, Pooling,
    Quantization, RadixEvictionPolicy, ReasoningParser, SamplingDefaults, SchedulePolicy,
    SpecialTokens, StructuredStrictness, Switch, ToolCallParser,
};

/// The settings of a `hearth` process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address to listen on.
    pub host: String,
    /// TCP port; 0 selects a free one.
    pub port: u16,
    /// Checkpoint directory, GGUF file or hub id (`org/name`). Default: the embedded model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Names of the model in the API, separated by commas; the first is its id. Default: derived from
    /// `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served_model_name: Option<String>,
    /// `auto`, or the API of a device with an optional index: `vulkan:1`.
    pub device: String,
    /// Number format of the weights, and of the KV cache unless `kv_cache_dtype` says otherwise.
    pub dtype: Dtype,
    /// Quantization of the weights while loading. Default: as they are stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<Quantization>,
    /// Source of the weights.
    pub load_format: LoadFormat,
    /// Compute every token to the same bits, whatever else is in the batch or in the cache.
    pub deterministic: bool,
    /// Select the fastest kernels for matrix multiplications of many tokens, by timing them when a
    /// GPU first serves a model.
    pub autotune: bool,
    /// Longest sequence in tokens, prompt and output together. Default: the checkpoint's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<usize>,
    /// Number format of the KV cache, on the device and in host memory.
    pub kv_cache_dtype: KvCacheDtype,
    /// KV slots on the device. Default: chosen from the device's free memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_tokens: Option<usize>,
    /// Slots of layers that attend a window, as a share of `kv_tokens`; 1 has these layers keep
    /// whole sequences.
    pub swa_full_tokens_ratio: f64,
    /// KV slots in host memory, for prefixes that the device has no room for; 0 means none.
    pub host_cache_tokens: usize,
    /// When cached KV is copied to host memory.
    pub host_cache_write_policy: HostCacheWritePolicy,
    /// Directory in which cached prefixes outlive the process. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_dir: Option<PathBuf>,
    /// Most bytes of files in `cache_dir`.
    pub cache_dir_bytes: u64,
    /// Most sequences in one batch.
    pub max_running_requests: usize,
    /// Most tokens per step. Default: `prefill_chunk + max_running_requests`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_batch_tokens: Option<usize>,
    /// Most milliseconds that a forward pass on a GPU may take, by measurements; 0 means no bound.
    pub max_submission_ms: u64,
    /// Order in which waiting requests start.
    pub schedule_policy: SchedulePolicy,
    /// Most waiting sequences; further requests get status 503.
    pub max_queue: usize,
    /// Most prompt tokens of one request per step.
    pub prefill_chunk: usize,
    /// Share the KV of equal prompt prefixes between requests.
    pub prefix_cache: bool,
    /// Tokens that are cached and matched together, a power of two.
    pub page_size: usize,
    /// Which cached prefix is evicted first.
    pub radix_eviction_policy: RadixEvictionPolicy,
    /// Speculative decoding as JSON, with vLLM's keys. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculative_config: Option<String>,
    /// Speculative decoding by SGLang's name of the algorithm, instead of `speculative_config`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculative_algorithm: Option<String>,
    /// The draft model of the `speculative_algorithm` STANDALONE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculative_draft_model_path: Option<String>,
    /// Most tokens to draft in one step, with `speculative_algorithm`. Default: 4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculative_num_draft_tokens: Option<usize>,
    /// Take adapters (LoRA), even if none is given at the start.
    pub enable_lora: bool,
    /// Adapters as vLLM names them: `name=path`, or JSON with `name` and `path`.
    pub lora_modules: Vec<String>,
    /// Adapters as SGLang names them: `path`, `name=path`, or JSON with `lora_name` and `lora_path`.
    pub lora_paths: Vec<String>,
    /// Adapters as llama-server names them, as a comma-separated list of files; they apply to all
    /// requests that select nothing.
    pub lora: Vec<String>,
    /// As `lora`, with factors: `file:factor`.
    pub lora_scaled: Vec<String>,
    /// Let the adapters of `lora` and `lora_scaled` apply only where a request asks for them.
    pub lora_init_without_apply: bool,
    /// Most adapters in one batch.
    pub max_loras: usize,
    /// Largest rank of an adapter. Default: 16, or that of the adapters that are given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_lora_rank: Option<usize>,
    /// Most adapters with whole tables (`modules_to_save`) in one batch. Default: as many as are given
    /// at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_lora_tables: Option<usize>,
    /// Most adapters in the host's memory. Default: `max_loras`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cpu_loras: Option<usize>,
    /// Directory below which requests may name adapters to load. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora_dir: Option<PathBuf>,
    /// Values of sampling fields that a request leaves out.
    pub sampling_defaults: SamplingDefaults,
    /// Append text that a grammar forces without sampling it (jump forward).
    pub jump_forward: Switch,
    /// Whitespace in JSON that follows a schema.
    pub json_whitespace: JsonWhitespace,
    /// The treatment of words of a JSON Schema that have no meaning or cannot be enforced.
    pub structured_strictness: StructuredStrictness,
    /// Hidden states that an embedding is made of.
    pub pooling: Pooling,
    /// Format in which the model writes tool calls. Default: detected from its chat template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_parser: Option<ToolCallParser>,
    /// How the model marks its reasoning. Default: detected from its chat template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_parser: Option<ReasoningParser>,
    /// The meaning of special tokens that the messages of a chat contain.
    pub special_tokens_in_messages: SpecialTokens,
    /// Largest request body in bytes; larger ones get status 413.
    pub max_body_bytes: usize,
    /// Number of threads that serve HTTP.
    pub http_workers: usize,
    /// Key that clients must send on every route but health, readiness and metrics. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<Secret>,
    /// Key for the routes that change the server for all clients. Default: `api_key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_api_key: Option<Secret>,
    /// TOML file with several API keys and their limits. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_keys_file: Option<PathBuf>,
    /// True if requests with different API keys share cached prefixes.
    pub cache_isolation: CacheIsolation,
    /// Names and addresses by which clients may call this server, as a comma-separated list, or `*`
    /// for all. Default: localhost and loopback addresses if `host` is one, else all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_hosts: Option<String>,
    /// Origins of web pages that may read responses, as a comma-separated list, or `*` for all.
    /// Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cors: Option<String>,
    /// PEM file with the certificate chain, the server's certificate first. Default: plain HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the private key of `tls_cert`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// Seconds after which a client that does not read its stream is disconnected.
    pub stall_timeout: u64,
    /// Seconds that running requests may take to finish after SIGINT or SIGTERM.
    pub shutdown_timeout: u64,
    /// The part of requests that this server does: `null` (all of it), `prefill` or `decode`.
    pub disaggregation_mode: DisaggregationMode,
    /// Port of a prefill server's bootstrap server. On a decode server: the port where a request
    /// names none.
    pub disaggregation_bootstrap_port: u16,
    /// Port on which a prefill server sends keys and values; 0 selects a free one.
    pub disaggregation_kv_port: u16,
    /// Secret that prefill and decode servers prove to each other. Default: none, and prefill
    /// servers listen on loopback addresses only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disaggregation_secret: Option<Secret>,
    /// Seconds that prefill and decode servers wait for each other.
    pub disaggregation_timeout: u64,
    /// Choice of a decode server for a request whose prefill server fails.
    pub disaggregation_fallback: DisaggregationFallback,
    /// Publication of what is cached, as JSON with the keys of vLLM's `KVEventsConfig`. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_events_config: Option<String>,
    /// Metric names on `/metrics`: a comma-separated list of `vllm`, `sglang`, `otel` and `plain`.
    pub metrics_names: String,
    /// Also show metrics that vLLM still had in this version, `X.Y`, but has removed since.
    /// Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub show_hidden_metrics_for_version: Option<String>,
    /// Bucket bounds of histograms as JSON, by the families of `docs/METRICS.md`. Default: the
    /// families' standard bounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom_histogram_buckets: Option<String>,
    /// OTLP endpoint for traces and metrics. Default: that of the `OTEL_*` variables, or none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_endpoint: Option<String>,
    /// Protocol of OTLP. Default: that of the `OTEL_*` variables, or http.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_protocol: Option<OtlpProtocol>,
    /// Record a trace for each engine step, with these parts: a comma-separated list of `model` (the
    /// forward pass), `worker` (forward pass and sampling) and `all`. Default: no traces of steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collect_detailed_traces: Option<String>,
    /// Put the content of messages into traces: prompts and outputs, at most 16 KiB of each.
    pub trace_message_content: bool,
    /// Record no metrics: there is no `/metrics`, nothing goes to OTLP but traces, and there are no
    /// log lines with statistics.
    pub disable_metrics: bool,
    /// Format of the periodic log lines with statistics of the engine.
    pub log_stats: LogStats,
    /// Seconds between two of vLLM's lines.
    pub log_stats_interval: u64,
    /// Where a trace of the engine's last minute is written when no step has ended for 30 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_trace_dir: Option<PathBuf>,
    /// Decode steps between two of SGLang's lines.
    pub decode_log_interval: u64,
    /// Format of the log lines on standard error.
    pub log_format: LogFormat,
    /// A `tracing` filter, such as `info` or `hearth_engine=debug,info`.
    pub log_level: String,
}

impl Default for Config {
    fn default() -> Self {
        let http = HttpConfig::default();
        Self {
            host: http.host,
            port: http.port,
            model: None,
            served_model_name: None,
            device: "auto".to_owned(),
            dtype: Dtype::Auto,
            quantization: None,
            load_format: LoadFormat::Auto,
            deterministic: false,
            autotune: true,
            max_model_len: None,
            kv_cache_dtype: KvCacheDtype::Auto,
            kv_tokens: None,
            swa_full_tokens_ratio: 0.5,
            host_cache_tokens: 0,
            host_cache_write_policy: HostCacheWritePolicy::WriteBack,
            cache_dir: None,
            cache_dir_bytes: 8 << 30,
            max_running_requests: 64,
            max_batch_tokens: None,
            max_submission_ms: 1000,
            schedule_policy: SchedulePolicy::Lpm,
            max_queue: 512,
            prefill_chunk: 512,
            prefix_cache: true,
            page_size: 1,
            radix_eviction_policy: RadixEvictionPolicy::Lru,
            speculative_config: None,
            speculative_algorithm: None,
            speculative_draft_model_path: None,
            speculative_num_draft_tokens: None,
            enable_lora: false,
            lora_modules: Vec::new(),
            lora_paths: Vec::new(),
            lora: Vec::new(),
            lora_scaled: Vec::new(),
            lora_init_without_apply: false,
            max_loras: 4,
            max_lora_rank: None,
            max_lora_tables: None,
            max_cpu_loras: None,
            lora_dir: None,
            sampling_defaults: SamplingDefaults::Model,
            jump_forward: Switch::On,
            json_whitespace: JsonWhitespace::Natural,
            structured_strictness: StructuredStrictness::Spec,
            pooling: Pooling::Last,
            tool_call_parser: None,
            reasoning_parser: None,
            special_tokens_in_messages: SpecialTokens::Text,
            max_body_bytes: http.max_body_bytes,
            http_workers: http.http_workers,
            api_key: None,
            admin_api_key: None,
            api_keys_file: None,
            cache_isolation: CacheIsolation::None,
            allowed_hosts: None,
            cors: None,
            tls_cert: None,
            tls_key: None,
            stall_timeout: http.stall_timeout,
            shutdown_timeout: http.shutdown_timeout,
            disaggregation_mode: DisaggregationMode::Null,
            disaggregation_bootstrap_port: 8998,
            disaggregation_kv_port: 0,
            disaggregation_secret: None,
            disaggregation_timeout: 30,
            disaggregation_fallback: DisaggregationFallback::Local,
            kv_events_config: None,
            metrics_names: "vllm,otel".to_owned(),
            show_hidden_metrics_for_version: None,
            custom_histogram_buckets: None,
            otlp_endpoint: None,
            otlp_protocol: None,
            collect_detailed_traces: None,
            trace_message_content: false,
            disable_metrics: false,
            log_stats: LogStats::Vllm,
            log_stats_interval: 10,
            stall_trace_dir: None,
            decode_log_interval: 40,
            log_format: LogFormat::Text,
            log_level: "info".to_owned(),
        }
    }
}
