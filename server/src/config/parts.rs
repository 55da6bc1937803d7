//! The settings as the HTTP server, the grammars and other people see them.

use std::path::Path;

use hearth_api::config::{HttpConfig, TlsFiles};
use hearth_api::grammars::{GrammarDefaults, Strictness, Whitespace};
use hearth_api::secret::Secret;
use hearth_events::KvEventsConfig;

use super::choices::{CacheIsolation, JsonWhitespace, StructuredStrictness, Switch};
use super::error::ConfigError;
use super::settings::Config;

/// The id of the embedded model.
pub const EMBEDDED_MODEL: &str = "hearth-tiny";

impl Config {
    /// The settings of the HTTP server.
    pub fn http(&self) -> HttpConfig {
        HttpConfig {
            host: self.host.clone(),
            port: self.port,
            http_workers: self.http_workers,
            tls: self.tls_files(),
            max_body_bytes: self.max_body_bytes,
            api_key: self.api_key.clone(),
            admin_api_key: self.admin_api_key.clone(),
            api_keys_file: self.api_keys_file.clone(),
            isolate_caches: self.cache_isolation == CacheIsolation::Key,
            allowed_hosts: self.allowed_hosts.clone(),
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

    /// How events of the prefix cache are published; `None` if they are not.
    ///
    /// # Errors
    /// The JSON is malformed, or a value is out of bounds.
    pub fn kv_events(&self) -> Result<Option<KvEventsConfig>, ConfigError> {
        let Some(given) = &self.kv_events_config else {
            return Ok(None);
        };
        let config = KvEventsConfig::parse(given).map_err(|error| ConfigError::Bound {
            field: "kv_events_config",
            bound: "JSON with the keys of vLLM's KVEventsConfig",
            given: format!("{given:?}: {error}"),
        })?;
        Ok(config.publishes().then_some(config))
    }

    /// Values of grammar fields that a request leaves out.
    pub fn grammar_defaults(&self) -> GrammarDefaults {
        GrammarDefaults {
            jump_forward: self.jump_forward == Switch::On,
            whitespace: match self.json_whitespace {
                JsonWhitespace::Natural => Whitespace::Natural,
                JsonWhitespace::Compact => Whitespace::Compact,
            },
            strictness: match self.structured_strictness {
                StructuredStrictness::Lenient => Strictness::Lenient,
                StructuredStrictness::Spec => Strictness::Spec,
                StructuredStrictness::Strict => Strictness::Strict,
            },
        }
    }

    /// The configuration without its secrets, for others to read.
    #[must_use]
    pub fn without_keys(&self) -> Self {
        Self {
            api_key: self.api_key.as_ref().map(Secret::hidden),
            admin_api_key: self.admin_api_key.as_ref().map(Secret::hidden),
            disaggregation_secret: self.disaggregation_secret.as_ref().map(Secret::hidden),
            otlp_endpoint: self.otlp_endpoint.as_deref().map(without_password),
            ..self.clone()
        }
    }

    /// The names of `--served-model-name`.
    fn served_names(&self) -> impl Iterator<Item = &str> {
        let given = self.served_model_name.iter();
        let names = given.flat_map(|names| names.split(','));
        names.map(str::trim).filter(|name| !name.is_empty())
    }

    /// The names of the model in the API beside its id.
    pub fn model_aliases(&self) -> Vec<String> {
        self.served_names().skip(1).map(str::to_owned).collect()
    }

    /// The id of the model in the API.
    pub fn model_id(&self) -> String {
        if let Some(name) = self.served_names().next() {
            return name.to_owned();
        }
        match &self.model {
            None => EMBEDDED_MODEL.to_owned(),
            // A directory or file gives its last component; a hub id is used as it is.
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

/// Hides what stands before an `@` in a URL or in a host and port.
pub(super) fn without_password(endpoint: &str) -> String {
    let start = endpoint.find("://").map_or(0, |scheme| scheme + 3);
    let (scheme, rest) = endpoint.split_at(start);
    let authority = rest.find('/').unwrap_or(rest.len());
    match rest[..authority].rfind('@') {
        Some(at) => format!("{scheme}***@{}", &rest[at + 1..]),
        None => endpoint.to_owned(),
    }
}
