//! Merges flags, environment, configuration file and defaults.

use std::path::Path;

use figment::Figment;
use figment::error::Kind;
use figment::providers::{Env, Format, Serialized, Toml};
use serde::Serialize;

use super::error::ConfigError;
use super::nearest::nearest;
use super::section::{ROUTER, TopLevel};
use super::settings::Config;

/// The configuration file that is read if it exists and `--config` is not given.
pub const DEFAULT_FILE: &str = "hearth.toml";
const ENV_PREFIX: &str = "HEARTH_";
/// Environment variables of Hearth that are not configuration keys.
const ENV_NOT_KEYS: [&str; 1] = ["config"];

impl Config {
    /// Merges the layers and checks the result. `flags` must serialise only the flags that were
    /// given on the command line.
    ///
    /// # Errors
    /// The named file is missing, a key is unknown, or a value has a wrong type or is out of bounds.
    pub fn resolve(file: Option<&Path>, flags: &impl Serialize) -> Result<Self, ConfigError> {
        Self::default().overlaid(file, flags)
    }

    /// Like [`resolve`](Self::resolve), for commands whose output people read: the default log
    /// level is `warn`.
    ///
    /// # Errors
    /// See [`resolve`](Self::resolve).
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
            Some(path) => figment = figment.merge(TopLevel(Toml::file_exact(path))),
            None if !Path::new(DEFAULT_FILE).is_file() => {}
            None => figment = figment.merge(TopLevel(Toml::file_exact(DEFAULT_FILE))),
        }
        let env = Env::prefixed(ENV_PREFIX).filter(|name| Self::keys().any(|key| name == key));
        let config: Self = figment
            .merge(env)
            .merge(Serialized::defaults(flags))
            .extract()
            .map_err(|error| ConfigError::Layer(describe(error, ENV_PREFIX)))?;
        config.check()
    }

    /// The configuration as the text of a `hearth.toml`.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a flat struct of scalars is always valid TOML")
    }

    /// The `HEARTH_*` variables that are not keys, each with the variable that was probably meant.
    /// They deserve a warning but are not an error, because Kubernetes sets such variables for every
    /// service called `hearth`.
    pub fn unknown_environment() -> Vec<(String, Option<String>)> {
        let known = |name: &str| {
            let key = name[ENV_PREFIX.len()..].to_lowercase();
            let other = key
                .split_once('_')
                .is_some_and(|(table, _)| table == ROUTER);
            other || Self::keys().any(|known| known == key) || ENV_NOT_KEYS.contains(&key.as_str())
        };
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let unknown = names.filter(|name| name.starts_with(ENV_PREFIX) && !known(name));
        let meant = |name: &String| {
            let key = name[ENV_PREFIX.len()..].to_lowercase();
            let near = nearest(&key, Self::keys())?;
            Some(format!("{ENV_PREFIX}{}", near.to_uppercase()))
        };
        unknown.map(|name| (name.clone(), meant(&name))).collect()
    }
}

/// Describes an error in one line per problem: what is wrong, with which key, from which layer.
/// `prefix` is that of the environment variables, which figment does not name.
pub(super) fn describe(error: figment::Error, prefix: &str) -> String {
    let line = |error: figment::Error| {
        let path = error.path.join(".");
        let source = error.metadata.as_ref().map(|meta| match &meta.source {
            Some(source) => format!(" ({source})"),
            None if meta.name.contains("environment variable") && !path.is_empty() => {
                format!(" (environment variable {prefix}{})", path.to_uppercase())
            }
            None => format!(" ({})", meta.name),
        });
        let key = match &path {
            path if path.is_empty() => String::new(),
            path => format!(" for `{path}`"),
        };
        let problem = match &error.kind {
            Kind::UnknownField(given, known) => match nearest(given, known.iter().copied()) {
                Some(name) => format!("unknown key `{given}`, did you mean `{name}`?"),
                None => format!("unknown key `{given}`; `hearth config` prints all keys"),
            },
            Kind::InvalidType(given, wanted) | Kind::InvalidValue(given, wanted)
                if !path.is_empty() =>
            {
                // The names are those of Rust's types.
                let wanted = match wanted.as_str() {
                    "usize" | "u64" => "a whole number of at least 0",
                    "u32" => "a whole number from 0 to 4294967295",
                    "u16" => "a whole number from 0 to 65535",
                    "u8" => "a whole number from 0 to 255",
                    "f64" | "f32" => "a number",
                    wanted => wanted,
                };
                let source = source.unwrap_or_default();
                return format!("`{path}` must be {wanted}, given {given}{source}");
            }
            kind => kind.to_string(),
        };
        format!("{problem}{key}{}", source.unwrap_or_default())
    };
    error.into_iter().map(line).collect::<Vec<_>>().join("; ")
}
