//! The resolved configuration: flags > environment > file > defaults.
//!
//! Every key exists once, here. `hearth config` prints the result as TOML, which
//! is itself a valid `hearth.toml`.

mod choices;

use std::path::{Path, PathBuf};

use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use hearth_api::config::{HttpConfig, TlsFiles};
use hearth_api::grammars::{GrammarDefaults, Whitespace};
use hearth_api::secret::Secret;
use hearth_otel::{CustomBuckets, Detail, Vocabulary};
use serde::{Deserialize, Serialize};

pub use choices::{
    Dtype, HostCacheWritePolicy, JsonWhitespace, LoadFormat, LogFormat, LogStats, OtlpProtocol,
    Pooling, Quantization, RadixEvictionPolicy, ReasoningParser, SamplingDefaults, SchedulePolicy,
    Switch, ToolCallParser,
};

/// Read when it exists in the working directory and `--config` is not given.
pub const DEFAULT_FILE: &str = "hearth.toml";
const ENV_PREFIX: &str = "HEARTH_";
/// Environment variables of ours that are not configuration keys.
const ENV_NOT_KEYS: [&str; 1] = ["config"];

/// Everything a `hearth` process can be told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address to listen on.
    pub host: String,
    /// TCP port; 0 takes a free one.
    pub port: u16,
    /// Directory, GGUF file or `org/name`; absent: the embedded model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The model's id in the API; absent: derived from `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served_model_name: Option<String>,
    pub device: String,
    pub dtype: Dtype,
    /// Absent: weights are as they are stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<Quantization>,
    pub load_format: LoadFormat,
    /// Refuse devices on which a token's last bits depend on the batch it is computed in.
    pub deterministic: bool,
    /// Take the quickest kernels for products of many tokens, timed when a GPU first serves a model.
    pub autotune: bool,
    /// Prompt + output tokens per sequence; absent: the checkpoint's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<usize>,
    /// KV slots on the device; absent: chosen from the memory there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_tokens: Option<usize>,
    /// KV slots in the host's memory, for what the device has no room for; 0: none.
    pub host_cache_tokens: usize,
    pub host_cache_write_policy: HostCacheWritePolicy,
    /// Sequences in one batch.
    pub max_running_requests: usize,
    /// Tokens per step; absent: `prefill_chunk + max_running_requests`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_batch_tokens: Option<usize>,
    pub schedule_policy: SchedulePolicy,
    /// Sequences waiting before new ones get 503.
    pub max_queue: usize,
    /// Prompt tokens computed per step.
    pub prefill_chunk: usize,
    /// Share the KV of equal prompt prefixes between requests.
    pub prefix_cache: bool,
    /// Tokens that are cached and matched together.
    pub page_size: usize,
    pub radix_eviction_policy: RadixEvictionPolicy,
    pub sampling_defaults: SamplingDefaults,
    /// Append text that a grammar forces without sampling it.
    pub jump_forward: Switch,
    pub json_whitespace: JsonWhitespace,
    /// Hidden states that make an embedding.
    pub pooling: Pooling,
    /// How the model writes calls of tools; absent: as its chat template shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_parser: Option<ToolCallParser>,
    /// How the model marks its reasoning; absent: it is not told from the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_parser: Option<ReasoningParser>,
    /// Larger request bodies get 413.
    pub max_body_bytes: usize,
    /// Threads that serve HTTP.
    pub http_workers: usize,
    /// What clients must show on every route but health, readiness and metrics; absent:
    /// everybody is let in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<Secret>,
    /// What the routes want that change the server for everybody; absent: `api_key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_api_key: Option<Secret>,
    /// Origins of web pages that may read answers, comma-separated, or `*`; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cors: Option<String>,
    /// PEM file with the certificate chain, the server's own first; absent: plain HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the private key of `tls_cert`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// Seconds that a client may take nothing of what was written before it is cut off.
    pub stall_timeout: u64,
    /// Seconds that requests in flight have to finish after SIGINT or SIGTERM.
    pub shutdown_timeout: u64,
    /// Whose names `/metrics` shows: a comma-separated list of `vllm`, `sglang`, `otel`
    /// and `plain`.
    pub metrics_names: String,
    /// Metrics are shown that vLLM has given up since this version, `X.Y`; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub show_hidden_metrics_for_version: Option<String>,
    /// JSON: bounds of histograms by the family of `docs/METRICS.md`; absent: the families' own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom_histogram_buckets: Option<String>,
    /// Where traces and metrics are sent; absent: as the `OTEL_*` variables say, if they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_endpoint: Option<String>,
    /// Absent: as the `OTEL_*` variables say, or http.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_protocol: Option<OtlpProtocol>,
    /// A trace for each step of the engine: a comma-separated list of `model` (its
    /// forward), `worker` (its execution) and `all`; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collect_detailed_traces: Option<String>,
    pub log_stats: LogStats,
    /// Seconds between vLLM's lines.
    pub log_stats_interval: u64,
    /// Decode steps between SGLang's lines.
    pub decode_log_interval: u64,
    pub log_format: LogFormat,
    /// A `tracing` filter, e.g. `info` or `hearth_engine=debug,info`.
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
            kv_tokens: None,
            host_cache_tokens: 0,
            host_cache_write_policy: HostCacheWritePolicy::WriteBack,
            max_running_requests: 64,
            max_batch_tokens: None,
            schedule_policy: SchedulePolicy::Lpm,
            max_queue: 512,
            prefill_chunk: 512,
            prefix_cache: true,
            page_size: 1,
            radix_eviction_policy: RadixEvictionPolicy::Lru,
            sampling_defaults: SamplingDefaults::Model,
            jump_forward: Switch::On,
            json_whitespace: JsonWhitespace::Natural,
            pooling: Pooling::Last,
            tool_call_parser: None,
            reasoning_parser: None,
            max_body_bytes: http.max_body_bytes,
            http_workers: http.http_workers,
            api_key: None,
            admin_api_key: None,
            cors: None,
            tls_cert: None,
            tls_key: None,
            stall_timeout: http.stall_timeout,
            shutdown_timeout: http.shutdown_timeout,
            metrics_names: "vllm,otel".to_owned(),
            show_hidden_metrics_for_version: None,
            custom_histogram_buckets: None,
            otlp_endpoint: None,
            otlp_protocol: None,
            collect_detailed_traces: None,
            log_stats: LogStats::Vllm,
            log_stats_interval: 10,
            decode_log_interval: 40,
            log_format: LogFormat::Text,
            log_level: "info".to_owned(),
        }
    }
}

/// Why no configuration came out.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("configuration file {0} does not exist")]
    NoFile(PathBuf),
    #[error("configuration: {0}")]
    Layer(String),
    #[error("configuration: `{field}` must be {bound}, given {given}")]
    Bound {
        field: &'static str,
        bound: &'static str,
        given: String,
    },
}

impl Config {
    /// Merges the layers; `flags` serialises only what was given on the command line.
    ///
    /// # Errors
    /// A named file that is missing, an unknown key, a wrong type, a value out of bounds.
    pub fn resolve(file: Option<&Path>, flags: &impl Serialize) -> Result<Self, ConfigError> {
        Self::default().overlaid(file, flags)
    }

    /// [`resolve`](Self::resolve) for commands whose output is for a person to read:
    /// unless some layer says more, only warnings are logged.
    ///
    /// # Errors
    /// The same.
    pub fn resolve_quiet(file: Option<&Path>, flags: &impl Serialize) -> Result<Self, ConfigError> {
        let quiet = Self {
            log_level: "warn".to_owned(),
            ..Self::default()
        };
        quiet.overlaid(file, flags)
    }

    fn overlaid(self, file: Option<&Path>, flags: &impl Serialize) -> Result<Self, ConfigError> {
        let mut figment = Figment::from(Serialized::defaults(self));
        match file {
            Some(path) if !path.is_file() => return Err(ConfigError::NoFile(path.to_owned())),
            Some(path) => figment = figment.merge(Toml::file_exact(path)),
            None if !Path::new(DEFAULT_FILE).is_file() => {}
            None => figment = figment.merge(Toml::file_exact(DEFAULT_FILE)),
        }
        let keys = Self::keys();
        let env = Env::prefixed(ENV_PREFIX).filter(move |name| keys.iter().any(|key| name == *key));
        let config: Self = figment
            .merge(env)
            .merge(Serialized::defaults(flags))
            .extract()
            .map_err(|error| ConfigError::Layer(describe(error)))?;
        config.check()
    }

    /// The part that is the HTTP server's.
    pub fn http(&self) -> HttpConfig {
        HttpConfig {
            host: self.host.clone(),
            port: self.port,
            http_workers: self.http_workers,
            tls: self.tls_files(),
            max_body_bytes: self.max_body_bytes,
            api_key: self.api_key.clone(),
            admin_api_key: self.admin_api_key.clone(),
            cors: self.cors.clone(),
            stall_timeout: self.stall_timeout,
            shutdown_timeout: self.shutdown_timeout,
            shown: serde_json::to_value(self.without_keys())
                .expect("a flat struct of scalars is always valid JSON"),
        }
    }

    fn tls_files(&self) -> Option<TlsFiles> {
        Some(TlsFiles {
            cert: self.tls_cert.clone()?,
            key: self.tls_key.clone()?,
        })
    }

    /// What requests with a grammar get for what they leave out.
    pub fn grammar_defaults(&self) -> GrammarDefaults {
        GrammarDefaults {
            jump_forward: self.jump_forward == Switch::On,
            whitespace: match self.json_whitespace {
                JsonWhitespace::Natural => Whitespace::Natural,
                JsonWhitespace::Compact => Whitespace::Compact,
            },
        }
    }

    /// Every key a file or the environment may set.
    fn keys() -> &'static [&'static str] {
        &[
            "host",
            "port",
            "model",
            "served_model_name",
            "device",
            "dtype",
            "quantization",
            "load_format",
            "deterministic",
            "autotune",
            "max_model_len",
            "kv_tokens",
            "host_cache_tokens",
            "host_cache_write_policy",
            "max_running_requests",
            "max_batch_tokens",
            "schedule_policy",
            "max_queue",
            "prefill_chunk",
            "prefix_cache",
            "page_size",
            "radix_eviction_policy",
            "sampling_defaults",
            "jump_forward",
            "json_whitespace",
            "pooling",
            "tool_call_parser",
            "reasoning_parser",
            "max_body_bytes",
            "http_workers",
            "api_key",
            "admin_api_key",
            "cors",
            "tls_cert",
            "tls_key",
            "stall_timeout",
            "shutdown_timeout",
            "metrics_names",
            "show_hidden_metrics_for_version",
            "custom_histogram_buckets",
            "otlp_endpoint",
            "otlp_protocol",
            "collect_detailed_traces",
            "log_stats",
            "log_stats_interval",
            "decode_log_interval",
            "log_format",
            "log_level",
        ]
    }

    /// `HEARTH_*` variables that are no key: worth a warning, but not an error, because
    /// Kubernetes sets such names for every service called `hearth`.
    pub fn unknown_environment() -> Vec<String> {
        let known = |name: &str| {
            let key = name[ENV_PREFIX.len()..].to_lowercase();
            Self::keys().contains(&key.as_str()) || ENV_NOT_KEYS.contains(&key.as_str())
        };
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        names
            .filter(|name| name.starts_with(ENV_PREFIX) && !known(name))
            .collect()
    }

    fn check(self) -> Result<Self, ConfigError> {
        let at_least_one = [
            ("kv_tokens", self.kv_tokens),
            ("max_running_requests", Some(self.max_running_requests)),
            ("max_batch_tokens", self.max_batch_tokens),
            ("max_queue", Some(self.max_queue)),
            ("prefill_chunk", Some(self.prefill_chunk)),
            ("max_body_bytes", Some(self.max_body_bytes)),
            ("http_workers", Some(self.http_workers)),
            ("stall_timeout", Some(self.stall_timeout as usize)),
            ("log_stats_interval", Some(self.log_stats_interval as usize)),
            (
                "decode_log_interval",
                Some(self.decode_log_interval as usize),
            ),
        ];
        for (field, value) in at_least_one {
            if value == Some(0) {
                return Err(ConfigError::Bound {
                    field,
                    bound: "at least 1",
                    given: "0".to_owned(),
                });
            }
        }
        if self.host_cache_tokens > 0 && !self.prefix_cache {
            return Err(ConfigError::Bound {
                field: "host_cache_tokens",
                bound: "0 without the prefix cache",
                given: self.host_cache_tokens.to_string(),
            });
        }
        if self.host_cache_tokens == 0
            && self.host_cache_write_policy != HostCacheWritePolicy::WriteBack
        {
            return Err(ConfigError::Bound {
                field: "host_cache_write_policy",
                bound: "left out without `host_cache_tokens`",
                given: "a policy for a cache that is not there".to_owned(),
            });
        }
        if !self.page_size.is_power_of_two() || self.page_size > 64 {
            return Err(ConfigError::Bound {
                field: "page_size",
                bound: "a power of two from 1 to 64",
                given: self.page_size.to_string(),
            });
        }
        for (field, key) in [
            ("api_key", &self.api_key),
            ("admin_api_key", &self.admin_api_key),
        ] {
            if key.as_ref().is_some_and(Secret::is_empty) {
                return Err(ConfigError::Bound {
                    field,
                    bound: "at least 1 character long",
                    given: "an empty key".to_owned(),
                });
            }
        }
        if let Some(given @ ..2) = self.max_model_len {
            return Err(ConfigError::Bound {
                field: "max_model_len",
                bound: "at least 2 (a token of the prompt and one of the output)",
                given: given.to_string(),
            });
        }
        for (field, bound, missing) in [
            (
                "tls_cert",
                "given with `tls_key`",
                self.tls_key.is_some() && self.tls_cert.is_none(),
            ),
            (
                "tls_key",
                "given with `tls_cert`",
                self.tls_cert.is_some() && self.tls_key.is_none(),
            ),
        ] {
            if missing {
                return Err(ConfigError::Bound {
                    field,
                    bound,
                    given: "nothing".to_owned(),
                });
            }
        }
        self.vocabularies()?;
        self.shown_version()?;
        self.buckets()?;
        self.detailed_traces()?;
        Ok(self)
    }

    /// The configuration as others may see it: without its keys.
    #[must_use]
    pub fn without_keys(&self) -> Self {
        Self {
            api_key: self.api_key.as_ref().map(Secret::hidden),
            admin_api_key: self.admin_api_key.as_ref().map(Secret::hidden),
            otlp_endpoint: self.otlp_endpoint.as_deref().map(without_password),
            ..self.clone()
        }
    }

    /// Whose names metrics are shown under.
    ///
    /// # Errors
    /// A name that is none of them.
    pub fn vocabularies(&self) -> Result<Vec<Vocabulary>, ConfigError> {
        let names = self.metrics_names.split(',').map(str::trim);
        let vocabularies = names.map(|name| match name {
            "vllm" => Some(Vocabulary::Vllm),
            "sglang" => Some(Vocabulary::Sglang),
            "otel" => Some(Vocabulary::Otel),
            "plain" => Some(Vocabulary::Plain),
            _ => None,
        });
        vocabularies
            .collect::<Option<_>>()
            .ok_or_else(|| ConfigError::Bound {
                field: "metrics_names",
                bound: "a comma-separated list of vllm, sglang, otel and plain",
                given: format!("{:?}", self.metrics_names),
            })
    }

    /// The version of vLLM whose metrics are shown that later ones have given up.
    ///
    /// # Errors
    /// It is no version.
    pub fn shown_version(&self) -> Result<Option<(u32, u32)>, ConfigError> {
        let Some(given) = &self.show_hidden_metrics_for_version else {
            return Ok(None);
        };
        let version = given.trim_start_matches('v').split_once('.');
        let version = version.and_then(|(major, minor)| {
            let minor = minor.split('.').next()?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        });
        version.map(Some).ok_or_else(|| ConfigError::Bound {
            field: "show_hidden_metrics_for_version",
            bound: "a version of vLLM such as 0.8",
            given: format!("{given:?}"),
        })
    }

    /// Bounds of histograms that are not their family's.
    ///
    /// # Errors
    /// No JSON of lists of numbers, an unknown family, or no bounds.
    pub fn buckets(&self) -> Result<CustomBuckets, ConfigError> {
        let Some(given) = &self.custom_histogram_buckets else {
            return Ok(CustomBuckets::default());
        };
        let parsed = serde_json::from_str(given).map_err(|error| error.to_string());
        parsed
            .and_then(CustomBuckets::new)
            .map_err(|error| ConfigError::Bound {
                field: "custom_histogram_buckets",
                bound: "JSON with a list of bounds for each family of docs/METRICS.md",
                given: format!("{given:?}: {error}"),
            })
    }

    /// Which parts of a step are traced.
    ///
    /// # Errors
    /// A part that there is not.
    pub fn detailed_traces(&self) -> Result<Option<Detail>, ConfigError> {
        let Some(given) = &self.collect_detailed_traces else {
            return Ok(None);
        };
        let mut detail = Detail::default();
        for part in given.split(',').map(str::trim) {
            match part {
                "model" => detail.model = true,
                "worker" => detail.worker = true,
                "all" => (detail.model, detail.worker) = (true, true),
                _ => {
                    return Err(ConfigError::Bound {
                        field: "collect_detailed_traces",
                        bound: "a comma-separated list of model, worker and all",
                        given: format!("{given:?}"),
                    });
                }
            }
        }
        Ok(Some(detail))
    }

    /// The configuration as a `hearth.toml`.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a flat struct of scalars is always valid TOML")
    }

    /// What `/v1/models` calls the model.
    pub fn model_id(&self) -> String {
        if let Some(name) = &self.served_model_name {
            return name.clone();
        }
        match &self.model {
            None => EMBEDDED_MODEL.to_owned(),
            // A directory or file is named by its last part, a hub id by itself.
            Some(model) if Path::new(model).is_dir() => Path::new(model)
                .canonicalize()
                .ok()
                .and_then(|path| path.file_name().map(|n| n.to_string_lossy().into_owned()))
                .unwrap_or_else(|| model.clone()),
            Some(model) => match Path::new(model).file_stem() {
                Some(stem) if Path::new(model).is_file() => stem.to_string_lossy().into_owned(),
                _ => model.clone(),
            },
        }
    }
}

/// The id of the model compiled into the binary.
pub const EMBEDDED_MODEL: &str = "hearth-tiny";

/// One line per problem: what, for which key, from where.
/// A URL, or a host and port, without what stands before an `@`.
fn without_password(endpoint: &str) -> String {
    let start = endpoint.find("://").map_or(0, |scheme| scheme + 3);
    let (scheme, rest) = endpoint.split_at(start);
    let authority = rest.find('/').unwrap_or(rest.len());
    match rest[..authority].rfind('@') {
        Some(at) => format!("{scheme}***@{}", &rest[at + 1..]),
        None => endpoint.to_owned(),
    }
}

fn describe(error: figment::Error) -> String {
    let line = |error: figment::Error| {
        let source = error.metadata.as_ref().map(|meta| match &meta.source {
            Some(source) => format!(" ({source})"),
            None => format!(" ({})", meta.name),
        });
        let key = match error.path.join(".") {
            path if path.is_empty() => String::new(),
            path => format!(" for `{path}`"),
        };
        format!("{}{key}{}", error.kind, source.unwrap_or_default())
    };
    error.into_iter().map(line).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
#[expect(
    clippy::result_large_err,
    reason = "the jail's closures return figment's error"
)]
mod tests;
