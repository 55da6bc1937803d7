//! Flags that set the configuration. A flag that is not given is not serialised.

use std::path::PathBuf;

use clap::{ArgAction, Args};
use hearth_api::secret::Secret;
use serde::Serialize;

use crate::config::{
    CacheIsolation, DisaggregationFallback, DisaggregationMode, Dtype, HostCacheWritePolicy,
    JsonWhitespace, KvCacheDtype, LoadFormat, LogFormat, LogStats, OtlpProtocol, Pooling,
    Quantization, RadixEvictionPolicy, ReasoningParser, SamplingDefaults, SchedulePolicy,
    SpecialTokens, StructuredStrictness, Switch, ToolCallParser,
};

#[derive(Debug, Default, Args)]
pub struct FileArgs {
    /// Configuration file [default: ./hearth.toml if it exists]
    #[arg(long, value_name = "FILE", env = "HEARTH_CONFIG")]
    pub config: Option<PathBuf>,
}

/// Flags of the model and its device, which `serve`, `chat` and `bench` share.
#[derive(Debug, Default, Args, Serialize)]
#[serde(rename_all = "snake_case")]
pub struct ModelFlags {
    /// Model to load: a checkpoint directory, a GGUF file, or a Hugging Face hub id (org/name)
    /// [default: the embedded hearth-tiny]
    #[arg(long, value_name = "DIR|FILE|ORG/NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Device to compute on: auto, cpu, cuda, vulkan, metal, dx12 or webgpu, with :index to select
    /// one of several [default: auto]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Number format of the weights, and of the KV cache without --kv-cache-dtype [default: auto]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<Dtype>,
    /// Quantize the weights while loading, in blocks of 32 with a scale each [default: as they are
    /// stored]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<Quantization>,
    /// Source of the weights; dummy makes random ones from config.json alone [default: auto]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_format: Option<LoadFormat>,
    /// Compute every token to the same bits, whatever else is in the batch or in the cache. The CPU
    /// always does; on a GPU this makes prefill slower
    #[arg(long, action = ArgAction::SetTrue)]
    #[serde(skip_serializing_if = "is_false")]
    pub deterministic: bool,
    /// On a GPU, skip the timing at the first start that selects the fastest kernels for matrix
    /// multiplications of many tokens
    #[arg(long = "no-autotune", action = ArgAction::SetTrue)]
    #[serde(
        rename = "autotune",
        serialize_with = "negated",
        skip_serializing_if = "is_false"
    )]
    pub no_autotune: bool,
    /// Longest sequence in tokens, prompt and output together [default: the checkpoint's]
    #[arg(long, value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<usize>,
    /// Size of the KV cache, in tokens [default: chosen from the device's free memory]
    #[arg(long, value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_tokens: Option<usize>,
    /// For models with sliding windows: slots of layers that attend a window, as a share of
    /// --kv-tokens; 1 has them keep whole sequences [default: 0.5]
    #[arg(long, value_name = "SHARE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swa_full_tokens_ratio: Option<f64>,
    /// Number format of the KV cache [default: auto]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_dtype: Option<KvCacheDtype>,
    /// Most prompt tokens of one request to compute in one step [default: 512]
    #[arg(long, value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_chunk: Option<usize>,
    /// Format of the log lines on standard error [default: text]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_format: Option<LogFormat>,
    /// Log filter, such as info or hearth_engine=debug,info [default: info; warn for chat and
    /// bench]
    #[arg(long, value_name = "FILTER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_level: Option<String>,
}

/// Flags of `serve` and `config`.
#[derive(Debug, Default, Args, Serialize)]
pub struct ServeFlags {
    /// Address to listen on [default: 127.0.0.1]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// TCP port to listen on; 0 selects a free one [default: 8000]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Names of the model in the API, as a comma-separated list; answers have the first [default: the
    /// name of the directory or GGUF file, or the hub id]
    #[arg(long, value_name = "NAME,NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served_model_name: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    pub model: ModelFlags,
    /// Most sequences to compute together in one step [default: 64]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_running_requests: Option<usize>,
    /// Most tokens to compute in one step, prompts and outputs together; --prefill-chunk limits the
    /// share of one prompt [default: --prefill-chunk + --max-running-requests]
    #[arg(long, value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_batch_tokens: Option<usize>,
    /// On a GPU, most milliseconds that one forward pass may take, by measurements: drivers reset a
    /// device that is busy for some seconds; 0 means no bound [default: 1000]
    #[arg(long, value_name = "MILLISECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_submission_ms: Option<u64>,
    /// Size of a second KV cache in host memory, in tokens, for prefixes that the device has no
    /// room for; 0 means none [default: 0]
    #[arg(long, value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_cache_tokens: Option<usize>,
    /// When cached KV is copied to host memory [default: write_back]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_cache_write_policy: Option<HostCacheWritePolicy>,
    /// Directory in which the KV of cached prefixes is kept, so that the next start need not compute
    /// it again; it holds what prompts said [default: none]
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_dir: Option<PathBuf>,
    /// Most bytes of files in --cache-dir; those that were used longest ago go first
    /// [default: 8589934592]
    #[arg(long, value_name = "BYTES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_dir_bytes: Option<u64>,
    /// Order in which waiting requests start [default: lpm]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_policy: Option<SchedulePolicy>,
    /// Most sequences that may wait; further requests get status 503 with Retry-After
    /// [default: 512]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_queue: Option<usize>,
    /// Do not share the KV of equal prompt prefixes: compute every prompt from its first token
    #[arg(long = "no-prefix-cache", action = ArgAction::SetTrue)]
    #[serde(
        rename = "prefix_cache",
        serialize_with = "negated",
        skip_serializing_if = "is_false"
    )]
    pub no_prefix_cache: bool,
    /// Tokens that are cached and matched together, a power of two up to 64 [default: 1]
    #[arg(long, value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_size: Option<usize>,
    /// Which cached prefix is evicted first when KV slots are needed [default: lru]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub radix_eviction_policy: Option<RadixEvictionPolicy>,
    /// Speculative decoding, as JSON:
    /// '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_min":2,"prompt_lookup_max":4}' or
    /// '{"method":"draft_model","model":"PATH","num_speculative_tokens":4}' [default: none]
    #[arg(long, value_name = "JSON")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculative_config: Option<String>,
    /// Speculative decoding by SGLang's name: NGRAM or STANDALONE, which are the methods ngram and
    /// draft_model of --speculative-config [default: none]
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculative_algorithm: Option<String>,
    /// The draft model of --speculative-algorithm STANDALONE: a directory, a GGUF file or a
    /// repository, with the vocabulary of --model
    #[arg(long, value_name = "MODEL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculative_draft_model_path: Option<String>,
    /// Take adapters (LoRA), even if none is given at the start; any other flag of adapters does so,
    /// too
    #[arg(long, action = ArgAction::SetTrue)]
    #[serde(skip_serializing_if = "is_false")]
    pub enable_lora: bool,
    /// Adapters to serve, as in vLLM: name=path, or JSON with name and path. A path is a directory of
    /// PEFT, a GGUF file or a hub id [default: none]
    #[arg(long, value_name = "NAME=PATH", num_args = 1..)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lora_modules: Vec<String>,
    /// Adapters to serve, as in SGLang: path, name=path, or JSON with lora_name, lora_path and pinned
    /// [default: none]
    #[arg(long, value_name = "PATH|NAME=PATH", num_args = 1..)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lora_paths: Vec<String>,
    /// Adapters that apply to every request that selects none, as in llama-server: a comma-separated
    /// list of files [default: none]
    #[arg(long, value_name = "FILES")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lora: Vec<String>,
    /// As --lora, with a factor for each file [default: none]
    #[arg(long, value_name = "FILE:FACTOR,...")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lora_scaled: Vec<String>,
    /// Let the adapters of --lora and --lora-scaled apply only where a request asks for them
    #[arg(long, action = ArgAction::SetTrue)]
    #[serde(skip_serializing_if = "is_false")]
    pub lora_init_without_apply: bool,
    /// Most adapters in one batch; device memory is reserved for them [default: 4]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_loras: Option<usize>,
    /// Largest rank of an adapter [default: 16, or that of the adapters that are given]
    #[arg(long, value_name = "RANK")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_lora_rank: Option<usize>,
    /// Most adapters with whole tables (modules_to_save) in one batch; device memory for an embedding and
    /// an output projection is reserved for each [default: as many as are given at the start]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_lora_tables: Option<usize>,
    /// Most adapters in host memory; others are read again when they are used [default: --max-loras]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cpu_loras: Option<usize>,
    /// Directory below which /v1/load_lora_adapter and /load_lora_adapter may name adapters
    /// [default: none, and adapters cannot be loaded while the server runs]
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora_dir: Option<PathBuf>,
    /// Most tokens to draft in one step, with --speculative-algorithm [default: 4]
    #[arg(long, value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculative_num_draft_tokens: Option<usize>,
    /// Values of sampling fields that a request leaves out: those of the model's
    /// generation_config.json, or OpenAI's defaults [default: model]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling_defaults: Option<SamplingDefaults>,
    /// Whether text that a request's grammar forces is appended without sampling (jump forward)
    /// [default: on]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jump_forward: Option<Switch>,
    /// Whitespace in JSON that follows a schema [default: natural]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json_whitespace: Option<JsonWhitespace>,
    /// The treatment of words of a JSON Schema that have no meaning or cannot be enforced; what is
    /// ignored is named in the header x-hearth-schema-ignored [default: spec]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured_strictness: Option<StructuredStrictness>,
    /// Hidden states that an embedding is made of [default: last]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pooling: Option<Pooling>,
    /// Format in which the model writes tool calls [default: detected from its chat template]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_parser: Option<ToolCallParser>,
    /// How the model marks its reasoning, which is then returned separately from the answer
    /// [default: detected from its chat template]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_parser: Option<ReasoningParser>,
    /// The meaning of special tokens that the messages of a chat contain, such as <|im_end|> in a
    /// user's text [default: text]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub special_tokens_in_messages: Option<SpecialTokens>,
    /// Largest request body in bytes; larger ones get status 413 [default: 16777216]
    #[arg(long, value_name = "BYTES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_body_bytes: Option<usize>,
    /// Number of threads that serve HTTP [default: 2]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_workers: Option<usize>,
    /// Key that clients must send. HEARTH_API_KEY is safer, because other users of the machine can
    /// see flags [default: none, every client is served]
    #[arg(long, value_name = "KEY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<Secret>,
    /// Key for the routes that change the server: flush the cache, abort, pause
    /// [default: --api-key]
    #[arg(long, value_name = "KEY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_api_key: Option<Secret>,
    /// File with several API keys and their limits, in TOML; read again after SIGHUP
    /// [default: none]
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_keys_file: Option<PathBuf>,
    /// True if requests with different API keys share cached prefixes, by which one client can find
    /// out what another one has asked [default: none]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_isolation: Option<CacheIsolation>,
    /// Names and addresses by which clients may call this server (the header Host), as a
    /// comma-separated list, or * for all [default: localhost and loopback addresses if the server
    /// listens on one, else all]
    #[arg(long, value_name = "HOSTS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_hosts: Option<String>,
    /// Origins of web pages that may read responses, as a comma-separated list, or * for all
    /// [default: none]
    #[arg(long, value_name = "ORIGINS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cors: Option<String>,
    /// PEM file with the certificate chain for HTTPS and HTTP/2 [default: plain HTTP]
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the private key of --tls-cert
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// Seconds after which a client that has stopped reading its stream is disconnected
    /// [default: 60]
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_timeout: Option<u64>,
    /// Seconds that running requests may take to finish after SIGINT or SIGTERM [default: 30]
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shutdown_timeout: Option<u64>,
    /// The part of requests that this server does, in prefill/decode disaggregation
    /// [default: null]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disaggregation_mode: Option<DisaggregationMode>,
    /// Port of a prefill server's bootstrap server; on a decode server, the port where a request
    /// names none [default: 8998]
    #[arg(long, value_name = "PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disaggregation_bootstrap_port: Option<u16>,
    /// Port on which a prefill server sends keys and values; 0 selects a free one [default: 0]
    #[arg(long, value_name = "PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disaggregation_kv_port: Option<u16>,
    /// Secret that prefill and decode servers prove to each other. HEARTH_DISAGGREGATION_SECRET is
    /// safer, because other users of the machine can see flags [default: none, and prefill servers
    /// listen on loopback addresses only]
    #[arg(long, value_name = "SECRET")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disaggregation_secret: Option<Secret>,
    /// Seconds that prefill and decode servers wait for each other [default: 30]
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disaggregation_timeout: Option<u64>,
    /// Choice of a decode server for a request whose prefill server fails before the first token
    /// [default: local]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disaggregation_fallback: Option<DisaggregationFallback>,
    /// Publish which prefixes are cached, as vLLM does, for routers to follow:
    /// '{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}'. The events have the tokens of
    /// all prompts, and whoever reaches the port can read them [default: none]
    #[arg(long, value_name = "JSON")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_events_config: Option<String>,
    /// Metric names on /metrics: a comma-separated list of vllm, sglang, otel and plain
    /// [default: vllm,otel]
    #[arg(long, value_name = "NAMES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_names: Option<String>,
    /// Also show metrics that vLLM still had in this version but has removed since, such as 0.8
    /// [default: none]
    #[arg(long, value_name = "X.Y")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub show_hidden_metrics_for_version: Option<String>,
    /// Bucket bounds of histograms, as JSON: '{"time_to_first_token": [0.1, 0.5, 1]}' [default: those
    /// of vLLM, SGLang and OpenTelemetry]
    #[arg(long, value_name = "JSON")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom_histogram_buckets: Option<String>,
    /// OTLP endpoint to send traces and metrics to, such as http://localhost:4318
    /// [default: OTEL_EXPORTER_OTLP_ENDPOINT, or none]
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_endpoint: Option<String>,
    /// Protocol of OTLP [default: OTEL_EXPORTER_OTLP_PROTOCOL, or http]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_protocol: Option<OtlpProtocol>,
    /// Record a trace for each engine step, with these parts: a comma-separated list of model (the
    /// forward pass), worker (forward pass and sampling) and all [default: no traces of steps]
    #[arg(long, value_name = "PARTS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collect_detailed_traces: Option<String>,
    /// Put the content of messages into traces: prompts and outputs, at most 16 KiB of each [default:
    /// OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT, or none]
    #[arg(long, action = ArgAction::SetTrue)]
    #[serde(skip_serializing_if = "is_false")]
    pub trace_message_content: bool,
    /// Record no metrics: /metrics answers 404, OTLP has traces only, and no statistics are logged
    #[arg(long, alias = "disable-log-stats", action = ArgAction::SetTrue)]
    #[serde(skip_serializing_if = "is_false")]
    pub disable_metrics: bool,
    /// Format of the periodic log lines with statistics of the engine [default: vllm]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_stats: Option<LogStats>,
    /// Seconds between two lines of --log-stats vllm [default: 10]
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_stats_interval: Option<u64>,
    /// Directory for a trace of the engine's last minute, written when no step has ended for 30 s
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_trace_dir: Option<PathBuf>,
    /// Decode steps between two lines of --log-stats sglang [default: 40]
    #[arg(long, value_name = "STEPS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_log_interval: Option<u64>,
}

fn is_false(value: &bool) -> bool {
    !*value
}

fn negated<S: serde::Serializer>(value: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(!*value)
}
