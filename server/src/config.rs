//! The resolved configuration: flags > environment > file > defaults.
//!
//! Every key exists once, here. `hearth config` prints the result as TOML, which
//! is itself a valid `hearth.toml`.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use serde::{Deserialize, Serialize};

/// Read when it exists in the working directory and `--config` is not given.
pub const DEFAULT_FILE: &str = "hearth.toml";
const ENV_PREFIX: &str = "HEARTH_";
/// Environment variables of ours that are not configuration keys.
const ENV_NOT_KEYS: [&str; 1] = ["config"];

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

/// Everything a `hearth` process can be told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address to listen on.
    pub host: String,
    /// TCP port; 0 takes a free one.
    pub port: u16,
    /// Directory or `org/name`; absent: the embedded model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The model's id in the API; absent: derived from `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served_model_name: Option<String>,
    pub device: String,
    pub dtype: Dtype,
    pub load_format: LoadFormat,
    /// Prompt + output tokens per sequence; absent: the checkpoint's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<usize>,
    /// KV slots on the device; absent: chosen from the memory there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_tokens: Option<usize>,
    /// Sequences in one batch.
    pub max_running_requests: usize,
    /// Sequences waiting before new ones get 503.
    pub max_queue: usize,
    /// Prompt tokens computed per step.
    pub prefill_chunk: usize,
    /// Share the KV of equal prompt prefixes between requests.
    pub prefix_cache: bool,
    pub sampling_defaults: SamplingDefaults,
    /// Larger request bodies get 413.
    pub max_body_bytes: usize,
    /// Threads that serve HTTP.
    pub http_workers: usize,
    /// Seconds that requests in flight have to finish after SIGINT or SIGTERM.
    pub shutdown_timeout: u64,
    pub log_format: LogFormat,
    /// A `tracing` filter, e.g. `info` or `hearth_engine=debug,info`.
    pub log_level: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 8000,
            model: None,
            served_model_name: None,
            device: "auto".to_owned(),
            dtype: Dtype::Auto,
            load_format: LoadFormat::Auto,
            max_model_len: None,
            kv_tokens: None,
            max_running_requests: 64,
            max_queue: 512,
            prefill_chunk: 512,
            prefix_cache: true,
            sampling_defaults: SamplingDefaults::Model,
            max_body_bytes: 16 * 1024 * 1024,
            http_workers: 2,
            shutdown_timeout: 30,
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

    /// Every key a file or the environment may set.
    fn keys() -> &'static [&'static str] {
        &[
            "host",
            "port",
            "model",
            "served_model_name",
            "device",
            "dtype",
            "load_format",
            "max_model_len",
            "kv_tokens",
            "max_running_requests",
            "max_queue",
            "prefill_chunk",
            "prefix_cache",
            "sampling_defaults",
            "max_body_bytes",
            "http_workers",
            "shutdown_timeout",
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
            ("max_queue", Some(self.max_queue)),
            ("prefill_chunk", Some(self.prefill_chunk)),
            ("max_body_bytes", Some(self.max_body_bytes)),
            ("http_workers", Some(self.http_workers)),
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
        if let Some(given @ ..2) = self.max_model_len {
            return Err(ConfigError::Bound {
                field: "max_model_len",
                bound: "at least 2 (a token of the prompt and one of the output)",
                given: given.to_string(),
            });
        }
        Ok(self)
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
            // A directory is named by its last part, a hub id by itself.
            Some(model) if Path::new(model).is_dir() => Path::new(model)
                .canonicalize()
                .ok()
                .and_then(|path| path.file_name().map(|n| n.to_string_lossy().into_owned()))
                .unwrap_or_else(|| model.clone()),
            Some(model) => model.clone(),
        }
    }
}

/// The id of the model compiled into the binary.
pub const EMBEDDED_MODEL: &str = "hearth-tiny";

/// One line per problem: what, for which key, from where.
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
mod tests {
    use super::*;
    use figment::Jail;
    use serde_json::json;

    fn resolve(file: Option<&str>, flags: serde_json::Value) -> Result<Config, String> {
        Config::resolve(file.map(Path::new), &flags).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_given_means_defaults() {
        Jail::expect_with(|_| {
            assert_eq!(resolve(None, json!({})).unwrap(), Config::default());
            Ok(())
        });
    }

    #[test]
    fn flags_beat_environment_beats_file_beats_defaults() {
        Jail::expect_with(|jail| {
            jail.create_file(
                "hearth.toml",
                "port = 1\nmax_queue = 2\nprefill_chunk = 3\n",
            )?;
            jail.set_env("HEARTH_PORT", "4");
            jail.set_env("HEARTH_MAX_QUEUE", "5");
            let config = resolve(None, json!({"port": 6})).unwrap();
            assert_eq!(
                (config.port, config.max_queue, config.prefill_chunk),
                (6, 5, 3)
            );
            assert_eq!(config.host, Config::default().host);
            Ok(())
        });
    }

    #[test]
    fn an_unknown_key_in_the_file_is_an_error_that_names_it() {
        Jail::expect_with(|jail| {
            jail.create_file("hearth.toml", "prot = 1\n")?;
            let error = resolve(None, json!({})).unwrap_err();
            assert!(
                error.contains("prot") && error.contains("hearth.toml"),
                "{error}"
            );
            Ok(())
        });
    }

    #[test]
    fn an_unknown_environment_variable_is_reported_and_does_nothing() {
        Jail::expect_with(|jail| {
            jail.set_env("HEARTH_PORT_8000_TCP", "tcp://10.0.0.1:8000");
            jail.set_env("HEARTH_CONFIG", "hearth.toml");
            assert_eq!(resolve(None, json!({})).unwrap(), Config::default());
            // Whoever runs the tests may have set others.
            let unknown = Config::unknown_environment();
            assert!(unknown.iter().any(|name| name == "HEARTH_PORT_8000_TCP"));
            assert!(!unknown.iter().any(|name| name == "HEARTH_CONFIG"));
            Ok(())
        });
    }

    #[test]
    fn the_list_of_keys_is_the_struct() {
        let full = Config {
            model: Some(String::new()),
            served_model_name: Some(String::new()),
            max_model_len: Some(1),
            kv_tokens: Some(1),
            ..Config::default()
        };
        let json = serde_json::to_value(full).unwrap();
        let fields: Vec<&str> = json
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        assert_eq!(fields, Config::keys());
    }

    #[test]
    fn a_wrong_type_names_the_key_and_what_was_found() {
        Jail::expect_with(|jail| {
            jail.create_file("other.toml", "port = \"high\"\n")?;
            let error = resolve(Some("other.toml"), json!({})).unwrap_err();
            assert!(error.contains("port") && error.contains("high"), "{error}");
            Ok(())
        });
    }

    #[test]
    fn a_named_file_must_exist() {
        Jail::expect_with(|_| {
            let error = resolve(Some("absent.toml"), json!({})).unwrap_err();
            assert_eq!(error, "configuration file absent.toml does not exist");
            Ok(())
        });
    }

    #[test]
    fn zero_is_refused_where_it_means_nothing() {
        Jail::expect_with(|_| {
            let error = resolve(None, json!({"max_queue": 0})).unwrap_err();
            assert_eq!(
                error,
                "configuration: `max_queue` must be at least 1, given 0"
            );
            Ok(())
        });
    }

    #[test]
    fn a_context_of_one_token_is_refused() {
        Jail::expect_with(|_| {
            let error = resolve(None, json!({"max_model_len": 1})).unwrap_err();
            assert!(
                error.contains("`max_model_len` must be at least 2") && error.ends_with("given 1"),
                "{error}"
            );
            assert!(resolve(None, json!({"max_model_len": 2})).is_ok());
            Ok(())
        });
    }

    #[test]
    fn a_quiet_command_logs_what_any_layer_asks_for_and_warnings_otherwise() {
        Jail::expect_with(|jail| {
            let level = |flags: serde_json::Value| {
                let config = Config::resolve_quiet(None, &flags);
                config.map(|config| config.log_level).unwrap()
            };
            assert_eq!(level(json!({})), "warn");
            assert_eq!(level(json!({"log_level": "debug"})), "debug");
            jail.set_env("HEARTH_LOG_LEVEL", "info");
            assert_eq!(level(json!({})), "info");
            Ok(())
        });
    }

    #[test]
    fn the_printed_configuration_reads_back_as_itself() {
        Jail::expect_with(|jail| {
            let given = json!({"model": "org/name", "kv_tokens": 4096, "prefix_cache": false});
            let config = resolve(None, given).unwrap();
            jail.create_file("printed.toml", &config.to_toml())?;
            assert_eq!(resolve(Some("printed.toml"), json!({})).unwrap(), config);
            Ok(())
        });
    }

    #[test]
    fn the_model_id_is_the_served_name_or_the_last_part_of_the_path() {
        Jail::expect_with(|jail| {
            jail.create_dir("models/qwen")?;
            let id = |flags| resolve(None, flags).unwrap().model_id();
            assert_eq!(id(json!({})), "hearth-tiny");
            assert_eq!(id(json!({"model": "models/qwen"})), "qwen");
            assert_eq!(id(json!({"model": "org/name"})), "org/name");
            assert_eq!(
                id(json!({"model": "org/name", "served_model_name": "x"})),
                "x"
            );
            Ok(())
        });
    }
}
