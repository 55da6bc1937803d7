//! `--kv-events-config`, with the keys and defaults of vLLM's `KVEventsConfig`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::endpoint::Endpoint;

/// How events are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PublisherKind {
    Null,
    Zmq,
}

/// The settings of a publisher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KvEventsConfig {
    pub enable_kv_cache_events: bool,
    /// Default: `zmq` if events are enabled, or else `null`.
    pub publisher: Option<PublisherKind>,
    /// The publisher listens at an endpoint with a wildcard, and connects to another one.
    pub endpoint: String,
    /// Where missed batches can be asked for. Default: nowhere.
    pub replay_endpoint: Option<String>,
    /// Batches that are kept for that.
    pub buffer_steps: usize,
    /// Batches that wait for one subscriber; further ones are lost to it.
    pub hwm: usize,
    /// Batches that wait for the publisher; further ones are made up for by one with everything
    /// that is cached.
    pub max_queue_size: usize,
    /// The first frame of each message.
    pub topic: String,
}

impl Default for KvEventsConfig {
    fn default() -> Self {
        Self {
            enable_kv_cache_events: false,
            publisher: None,
            endpoint: "tcp://*:5557".to_owned(),
            replay_endpoint: None,
            buffer_steps: 10_000,
            hwm: 100_000,
            max_queue_size: 100_000,
            topic: String::new(),
        }
    }
}

/// A configuration with which nothing could be published.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    #[error("not a JSON object with the keys of vLLM's KVEventsConfig: {0}")]
    Json(String),
    #[error("`{field}` must be {bound}, given {given}")]
    Bound {
        field: &'static str,
        bound: &'static str,
        given: String,
    },
}

/// More would be a mistake, and would overflow.
const MOST: usize = 1 << 24;

impl KvEventsConfig {
    /// Reads and checks the JSON.
    ///
    /// # Errors
    /// Names the key that is unknown or out of bounds.
    pub fn parse(json: &str) -> Result<Self, ConfigError> {
        // A list of values would be read as the keys in their order.
        let object = serde_json::from_str(json).map(Value::Object);
        let config: Self = object
            .and_then(serde_json::from_value)
            .map_err(|error| ConfigError::Json(error.to_string()))?;
        config.endpoints()?;
        for (field, given) in [
            ("buffer_steps", config.buffer_steps),
            ("hwm", config.hwm),
            ("max_queue_size", config.max_queue_size),
        ] {
            if given == 0 || given > MOST {
                return Err(ConfigError::Bound {
                    field,
                    bound: "from 1 to 2^24",
                    given: given.to_string(),
                });
            }
        }
        Ok(config)
    }

    /// True if anything is published.
    pub fn publishes(&self) -> bool {
        self.enable_kv_cache_events && self.publisher != Some(PublisherKind::Null)
    }

    /// The endpoint, and that for replay.
    ///
    /// # Errors
    /// One is no TCP endpoint.
    pub fn endpoints(&self) -> Result<(Endpoint, Option<Endpoint>), ConfigError> {
        let parse = |field, text: &str| {
            Endpoint::parse(text).ok_or_else(|| ConfigError::Bound {
                field,
                bound: "an endpoint such as tcp://*:5557 (other transports are not supported)",
                given: format!("{text:?}"),
            })
        };
        let replay = self.replay_endpoint.as_deref();
        let replay = replay.map(|text| parse("replay_endpoint", text));
        Ok((parse("endpoint", &self.endpoint)?, replay.transpose()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_vllms_and_each_key_is_checked() {
        assert_eq!(KvEventsConfig::parse("{}"), Ok(KvEventsConfig::default()));
        assert!(!KvEventsConfig::default().publishes());
        for (json, publishes) in [
            (r#"{"enable_kv_cache_events": true}"#, true),
            (
                r#"{"enable_kv_cache_events": true, "publisher": "null"}"#,
                false,
            ),
            (r#"{"publisher": "zmq", "topic": "kv@a"}"#, false),
        ] {
            let config = KvEventsConfig::parse(json).unwrap();
            assert_eq!(config.publishes(), publishes, "{json}");
        }
        for (json, named) in [
            ("[]", "JSON object"),
            (r#"{"publisher": "kafka"}"#, "kafka"),
            (r#"{"port": 1}"#, "port"),
            (r#"{"endpoint": "ipc:///a"}"#, "`endpoint`"),
            (r#"{"replay_endpoint": "x"}"#, "`replay_endpoint`"),
            (r#"{"hwm": 0}"#, "`hwm`"),
        ] {
            let error = KvEventsConfig::parse(json).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
