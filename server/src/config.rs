//! The resolved configuration. Flags override the environment, which overrides the configuration
//! file, which overrides the defaults. Every key exists once, in [`Config`].
//!
//! - `settings`: [`Config`] with all keys and defaults.
//! - `choices`: the keys that have a few values each.
//! - `keys`: the names of the keys, under the headings of `--help`.
//! - `layers`: merges the layers, and writes the result as TOML, which is itself a valid
//!   `hearth.toml`.
//! - `check`: the bounds of the values.
//! - `parts`: the settings as the HTTP server, the grammars and other people see them.
//! - `telemetry`: settings of metrics and traces.
//! - `speculation`: the settings of speculative decoding, in the spellings of vLLM and SGLang.
//! - `lora`: the settings of adapters, in the spellings of vLLM, SGLang and llama-server.
//! - `section`: the tables of the file; `router`: the settings of `hearth router`.

mod check;
mod choices;
mod error;
mod keys;
mod layers;
mod lora;
mod nearest;
mod parts;
pub mod router;
mod section;
mod settings;
mod speculation;
mod telemetry;

pub use choices::{
    CacheIsolation, DisaggregationFallback, DisaggregationMode, Dtype, HostCacheWritePolicy,
    JsonWhitespace, KvCacheDtype, LoadFormat, LogFormat, LogStats, OtlpProtocol, Pooling,
    Quantization, RadixEvictionPolicy, ReasoningParser, SamplingDefaults, SchedulePolicy,
    SpecialTokens, StructuredStrictness, Switch, ToolCallParser,
};
pub use error::ConfigError;
pub use keys::HEADINGS;
pub use layers::DEFAULT_FILE;
pub use lora::AdapterSettings;
pub use parts::EMBEDDED_MODEL;
pub use settings::Config;
pub use speculation::Drafting;

#[cfg(test)]
#[expect(
    clippy::result_large_err,
    reason = "the jail's closures return figment's error"
)]
mod tests;
