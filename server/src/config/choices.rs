//! Settings that have a few named values each. The comments are also the values' `--help` texts.

use clap::ValueEnum;
use hearth_api::disaggregation::Fallback;
use hearth_api::{reasoning, tools};
use serde::{Deserialize, Serialize};

/// Number format of the weights on the device, and of the KV cache unless that has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// The format of the checkpoint if the device supports it
    Auto,
    F32,
    F16,
    Bf16,
}

/// Number format of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum KvCacheDtype {
    /// The format that --dtype selects
    Auto,
    /// 8 bits per number, and a scale for each head of a token
    Int8,
}

/// Quantization of the weights while loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Quantization {
    /// 8 bits per weight, and a scale per 32 weights
    Int8,
    /// 4 bits per weight, and a scale per 32 weights; 8 bits in the embedding and the output
    /// projection
    Int4,
}

/// Source of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LoadFormat {
    /// The files of the checkpoint
    Auto,
    /// Random weights, made from config.json alone, for benchmarks
    Dummy,
}

/// The part of requests that this server does, in prefill/decode disaggregation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DisaggregationMode {
    /// All of it
    Null,
    /// Computes prompts, and sends their keys and values to decode servers
    Prefill,
    /// Generates outputs, after receiving keys and values from prefill servers
    Decode,
}

/// The choice of a decode server for a request whose prefill server fails before the first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DisaggregationFallback {
    /// Computes the prompt itself
    Local,
    /// Fails the request
    Fail,
}

impl From<DisaggregationFallback> for Fallback {
    fn from(fallback: DisaggregationFallback) -> Self {
        match fallback {
            DisaggregationFallback::Local => Self::Local,
            DisaggregationFallback::Fail => Self::Fail,
        }
    }
}

/// Format of the log lines on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Lines of text for people
    Text,
    /// One JSON object per line
    Json,
}

impl From<LogFormat> for hearth_otel::LogFormat {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Text => Self::Text,
            LogFormat::Json => Self::Json,
        }
    }
}

/// Values of sampling fields that a request leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SamplingDefaults {
    /// The values of the model's generation_config.json
    Model,
    /// OpenAI's defaults: temperature 1, top_p 1, and nothing else
    Openai,
}

/// Order in which waiting requests start. Preempted requests come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum SchedulePolicy {
    /// First come, first served
    Fcfs,
    /// Longest cached prefix first
    Lpm,
    /// Depth-first order over the tree of waiting prompts, heaviest branch first
    DfsWeight,
    /// Longest output first, by max_tokens
    Lof,
    /// Highest priority first, preempting running requests of lower priority
    Priority,
    /// A random order, the same in every run
    Random,
}

impl From<SchedulePolicy> for hearth_engine::SchedulePolicy {
    fn from(policy: SchedulePolicy) -> Self {
        match policy {
            SchedulePolicy::Fcfs => Self::Fcfs,
            SchedulePolicy::Lpm => Self::Lpm,
            SchedulePolicy::DfsWeight => Self::DfsWeight,
            SchedulePolicy::Lof => Self::Lof,
            SchedulePolicy::Priority => Self::Priority,
            SchedulePolicy::Random => Self::Random,
        }
    }
}

/// Which cached prefix is evicted first when KV slots are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum RadixEvictionPolicy {
    /// Least recently used
    Lru,
    /// Least frequently used
    Lfu,
    /// First computed
    Fifo,
    /// Prefixes used once before prefixes used again (segmented LRU)
    Slru,
    /// Lowest priority of the requests that used the prefix
    Priority,
}

impl From<RadixEvictionPolicy> for hearth_engine::EvictionPolicy {
    fn from(policy: RadixEvictionPolicy) -> Self {
        match policy {
            RadixEvictionPolicy::Lru => Self::Lru,
            RadixEvictionPolicy::Lfu => Self::Lfu,
            RadixEvictionPolicy::Fifo => Self::Fifo,
            RadixEvictionPolicy::Slru => Self::Slru,
            RadixEvictionPolicy::Priority => Self::Priority,
        }
    }
}

/// When cached KV is copied to host memory. The names are SGLang's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum HostCacheWritePolicy {
    /// When it is evicted from the device
    WriteBack,
    /// As soon as it is cached
    WriteThrough,
    /// As soon as a second request uses it
    WriteThroughSelective,
}

impl From<HostCacheWritePolicy> for hearth_engine::HostWritePolicy {
    fn from(policy: HostCacheWritePolicy) -> Self {
        match policy {
            HostCacheWritePolicy::WriteBack => Self::WriteBack,
            HostCacheWritePolicy::WriteThrough => Self::WriteThrough,
            HostCacheWritePolicy::WriteThroughSelective => Self::WriteThroughSelective,
        }
    }
}

/// Protocol of OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OtlpProtocol {
    /// Protobuf over HTTP, usually on port 4318
    Http,
    /// gRPC, usually on port 4317
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

/// Format of the periodic log lines with statistics of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogStats {
    /// vLLM's line, at a fixed interval while requests run
    Vllm,
    /// SGLang's lines, for each prefill batch and at an interval of decode steps
    Sglang,
    /// No statistics
    Off,
}

impl From<LogStats> for hearth_otel::StatsLog {
    fn from(style: LogStats) -> Self {
        match style {
            LogStats::Vllm => Self::Vllm,
            LogStats::Sglang => Self::Sglang,
            LogStats::Off => Self::Off,
        }
    }
}

/// The meaning of special tokens that the messages of a chat contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SpecialTokens {
    /// They are text; only the chat template writes special tokens
    Text,
    /// They are special tokens, as in vLLM, SGLang and llama-server
    Tokens,
}

/// A division of the prefix cache among clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum CacheIsolation {
    /// All requests share prefixes, except those with different salts
    None,
    /// Requests with different API keys share no prefixes
    Key,
}

/// A setting that is on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    On,
    Off,
}

/// Whitespace in JSON that follows a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum JsonWhitespace {
    /// {"a": 1, "b": 2}, the form that is most common in training data
    Natural,
    /// {"a":1,"b":2}, which has fewer tokens
    Compact,
}

/// The treatment of words of a JSON Schema that have no meaning or cannot be enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum StructuredStrictness {
    /// Unknown words and conditions that cannot be enforced are ignored
    Lenient,
    /// Unknown words are ignored; conditions that cannot be enforced are refused
    Spec,
    /// Unknown words and conditions that cannot be enforced are refused
    Strict,
}

/// Hidden states that an embedding is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// The hidden state of the last token, which attends to all others
    Last,
    /// The mean over all tokens
    Mean,
}

impl From<Pooling> for hearth_engine::Pooling {
    fn from(pooling: Pooling) -> Self {
        match pooling {
            Pooling::Last => Self::Last,
            Pooling::Mean => Self::Mean,
        }
    }
}

/// Format in which the model writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ToolCallParser {
    /// `<tool_call>{...}</tool_call>`: Hermes, Qwen 2.5 and 3
    #[serde(alias = "qwen25")]
    #[value(alias = "qwen25")]
    Hermes,
    /// `{"name": ..., "parameters": ...}`: Llama 3.1
    Llama3,
    /// `[TOOL_CALLS] [...]`: Mistral
    Mistral,
    /// `[f(a=1)]`: Llama 3.2 and 4
    Pythonic,
    /// `<|tool_call|>[...]`: Granite 3
    Granite,
    /// `<|tool_call|>[...]<|/tool_call|>`: Phi-4-mini
    #[serde(rename = "phi4-mini")]
    #[value(name = "phi4-mini")]
    Phi4,
    /// Messages to functions: GPT-OSS
    Harmony,
    /// Tool calls are not parsed, whatever the chat template contains
    None,
}

impl ToolCallParser {
    /// The format of the parser; `None` if tool calls are not parsed.
    pub fn format(self) -> Option<tools::Format> {
        match self {
            Self::Hermes => Some(tools::Format::Hermes),
            Self::Llama3 => Some(tools::Format::Llama3),
            Self::Mistral => Some(tools::Format::Mistral),
            Self::Pythonic => Some(tools::Format::Pythonic),
            Self::Granite => Some(tools::Format::Granite),
            Self::Phi4 => Some(tools::Format::Phi4),
            Self::Harmony => Some(tools::Format::Harmony),
            Self::None => None,
        }
    }
}

/// How the model marks its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ReasoningParser {
    /// Every answer begins with reasoning, which ends with `</think>`
    DeepseekR1,
    /// Reasoning stands between `<think>` and `</think>`, if the answer begins with `<think>`
    #[serde(alias = "think")]
    #[value(alias = "think")]
    Qwen3,
    /// As `qwen3`, and the rest may stand between `<response>` and `</response>`: Granite 3.3
    Granite,
    /// Messages on the channel `analysis`: GPT-OSS
    Harmony,
    /// Reasoning stays in the text, whatever the chat template contains
    None,
}

impl ReasoningParser {
    /// The format of the parser; `None` if reasoning is not separated.
    pub fn format(self) -> Option<reasoning::Format> {
        match self {
            Self::DeepseekR1 => Some(reasoning::Format::DeepseekR1),
            Self::Qwen3 => Some(reasoning::Format::Qwen3),
            Self::Granite => Some(reasoning::Format::Granite),
            Self::Harmony => Some(reasoning::Format::Harmony),
            Self::None => None,
        }
    }
}
