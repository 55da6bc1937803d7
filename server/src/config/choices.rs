//! The keys that have a few values each.

use clap::ValueEnum;
use hearth_api::{reasoning, tools};
use serde::{Deserialize, Serialize};

/// Number format of the weights and the KV cache on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// What the checkpoint was saved in, where the device computes it.
    Auto,
    F32,
    F16,
    Bf16,
}

/// How weights are rounded when they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Quantization {
    /// 8 bits each, and a scale for every 32.
    Int8,
    /// 4 bits each, and a scale for every 32; embedding and output projection in 8.
    Int4,
}

/// Where the weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LoadFormat {
    /// The checkpoint's safetensors files.
    Auto,
    /// Random weights from `config.json` alone: for benchmarks.
    Dummy,
}

/// Shape of the log lines on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
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

/// Where sampling defaults come from when a request leaves a field out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SamplingDefaults {
    /// The model's `generation_config.json`.
    Model,
    /// OpenAI's: temperature 1, top_p 1, nothing else.
    Openai,
}

/// Who of the waiting requests starts next; a request that was interrupted goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum SchedulePolicy {
    /// First come, first served.
    Fcfs,
    /// Longest cached prefix first.
    Lpm,
    /// A depth-first walk over the tree of waiting prompts, the heaviest branch first.
    DfsWeight,
    /// Longest output first, by `max_tokens`.
    Lof,
    /// Highest `priority` first, interrupting lower ones.
    Priority,
    /// A random order, the same in every run.
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

/// Which cached prefix goes first when room is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum RadixEvictionPolicy {
    /// Least recently used.
    Lru,
    /// Least frequently used.
    Lfu,
    /// First computed.
    Fifo,
    /// Used once, before used again (segmented LRU).
    Slru,
    /// Lowest `priority` of the requests that used it.
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

/// When what is cached is copied to the host's memory. The names are SGLang's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum HostCacheWritePolicy {
    /// When it is evicted from the device.
    WriteBack,
    /// As soon as it is cached.
    WriteThrough,
    /// As soon as a second request uses it.
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

/// How OTLP is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OtlpProtocol {
    /// http/protobuf, on port 4318 as a rule.
    Http,
    /// gRPC, on port 4317 as a rule.
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

/// The periodic log lines about the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogStats {
    /// vLLM's line, at an interval, while there is work.
    Vllm,
    /// SGLang's lines, for each prefill batch and every so many decode steps.
    Sglang,
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

/// Whether something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    On,
    Off,
}

/// How JSON of a schema is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum JsonWhitespace {
    /// `{"a": 1, "b": 2}`, as models have mostly read it.
    Natural,
    /// `{"a":1,"b":2}`: fewer tokens.
    Compact,
}

/// Which hidden states make an embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// That of the last token, which has read all others.
    Last,
    /// The mean of all.
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

/// How the served model writes calls of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ToolCallParser {
    /// `<tool_call>{...}</tool_call>`: Hermes, Qwen 2.5 and 3.
    #[serde(alias = "qwen25")]
    #[value(alias = "qwen25")]
    Hermes,
    /// `{"name": ..., "parameters": ...}`: Llama 3.1.
    Llama3,
    /// `[TOOL_CALLS] [...]`: Mistral.
    Mistral,
    /// `[f(a=1)]`: Llama 3.2 and 4.
    Pythonic,
    /// No calls are looked for, whatever the chat template shows.
    None,
}

impl ToolCallParser {
    pub fn format(self) -> Option<tools::Format> {
        match self {
            Self::Hermes => Some(tools::Format::Hermes),
            Self::Llama3 => Some(tools::Format::Llama3),
            Self::Mistral => Some(tools::Format::Mistral),
            Self::Pythonic => Some(tools::Format::Pythonic),
            Self::None => None,
        }
    }
}

/// How the served model marks its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ReasoningParser {
    /// Every answer begins with reasoning, up to `</think>`.
    DeepseekR1,
    /// Reasoning is between `<think>` and `</think>`, if the answer begins with it.
    #[serde(alias = "think")]
    #[value(alias = "think")]
    Qwen3,
}

impl From<ReasoningParser> for reasoning::Format {
    fn from(parser: ReasoningParser) -> Self {
        match parser {
            ReasoningParser::DeepseekR1 => Self::DeepseekR1,
            ReasoningParser::Qwen3 => Self::Qwen3,
        }
    }
}
