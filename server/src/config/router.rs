//! The settings of `hearth router`: the flags, `HEARTH_ROUTER_*`, and the table `[router]` of the
//! configuration file.

use std::path::Path;

use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use hearth_router::RouterConfig;
use serde::Serialize;

use super::error::ConfigError;
use super::layers::{DEFAULT_FILE, describe};
use super::section::{ROUTER, Table};

const ENV_PREFIX: &str = "HEARTH_ROUTER_";

/// Merges the layers and checks the result. `flags` must serialise only the flags that were given
/// on the command line.
///
/// # Errors
/// The named file is missing, a key is unknown, or a value has a wrong type or is out of bounds.
pub fn resolve(file: Option<&Path>, flags: &impl Serialize) -> Result<RouterConfig, ConfigError> {
    let file = match file {
        Some(path) if !path.is_file() => return Err(ConfigError::NoFile(path.to_owned())),
        Some(path) => Some(path),
        None => Some(Path::new(DEFAULT_FILE)).filter(|path| path.is_file()),
    };
    let mut figment = Figment::from(Serialized::defaults(RouterConfig::default()));
    if let Some(path) = file {
        figment = figment.merge(Table(Toml::file_exact(path), ROUTER));
    }
    let known = |name: &figment::value::UncasedStr| {
        let mut keys = RouterConfig::KEYS.iter();
        keys.any(|key| name == *key)
    };
    let config: RouterConfig = figment
        .merge(Env::prefixed(ENV_PREFIX).filter(known))
        .merge(Serialized::defaults(flags))
        .extract()
        .map_err(|error| ConfigError::Layer(describe(error, ENV_PREFIX)))?;
    config
        .check()
        .map_err(|error| ConfigError::Layer(error.to_string()))?;
    Ok(config)
}

/// The settings as the text of a `hearth.toml`.
pub fn to_toml(config: &RouterConfig) -> String {
    let keys = toml::to_string(config).expect("a flat struct of scalars and lists is valid TOML");
    format!("[{ROUTER}]\n{keys}")
}

#[cfg(test)]
#[expect(
    clippy::result_large_err,
    reason = "the jail's closures return figment's error"
)]
mod tests {
    use figment::Jail;
    use serde_json::json;

    use super::*;
    use crate::config::Config;

    #[test]
    fn flags_beat_environment_beats_the_table_beats_defaults() {
        Jail::expect_with(|jail| {
            jail.create_file(
                "hearth.toml",
                "port = 1\n[router]\nport = 2\nqueue_size = 3\nqueue_timeout_secs = 4\n\
                 worker_urls = [\"http://a:1\"]\n",
            )?;
            jail.set_env("HEARTH_PORT", "5");
            jail.set_env("HEARTH_ROUTER_QUEUE_SIZE", "6");
            jail.set_env("HEARTH_ROUTER_QUEUE_TIMEOUT_SECS", "7");
            jail.set_env("HEARTH_ROUTER_SERVICE_HOST", "10.0.0.1");
            let config = resolve(None, &json!({"queue_size": 8})).unwrap();
            assert_eq!((config.port, config.queue_size), (2, 8));
            assert_eq!(config.queue_timeout_secs, 7.0);
            assert_eq!(config.worker_urls, ["http://a:1"]);
            // The server reads the other keys of the same file.
            let server = Config::resolve(None, &json!({})).unwrap();
            assert_eq!(server.port, 5);
            Ok(())
        });
    }

    #[test]
    fn unknown_keys_and_values_out_of_bounds_are_refused_by_name() {
        Jail::expect_with(|jail| {
            let error = |flags| resolve(None, &flags).unwrap_err().to_string();
            let bound = error(json!({"cache_threshold": 2.0}));
            assert!(bound.contains("`cache_threshold`"), "{bound}");
            jail.create_file("hearth.toml", "[router]\nprot = 1\n")?;
            let unknown = error(json!({}));
            assert!(unknown.contains("prot"), "{unknown}");
            jail.create_file("hearth.toml", "router = 1\n")?;
            let table = error(json!({}));
            assert!(table.contains("`router` must be a table"), "{table}");
            Ok(())
        });
    }

    #[test]
    fn the_printed_configuration_reads_back_as_itself() {
        Jail::expect_with(|jail| {
            let given = json!({"worker_urls": ["http://a:1"], "policy": "random"});
            let config = resolve(None, &given).unwrap();
            jail.create_file("printed.toml", &to_toml(&config))?;
            let read = resolve(Some(Path::new("printed.toml")), &json!({})).unwrap();
            assert_eq!(read, config);
            Ok(())
        });
    }
}
