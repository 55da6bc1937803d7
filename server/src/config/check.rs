//! Checks the bounds of the settings.

use hearth_api::secret::Secret;

use super::choices::{CacheIsolation, HostCacheWritePolicy};
use super::error::ConfigError;
use super::settings::Config;

const MAX_HTTP_WORKERS: usize = 1024;

impl Config {
    /// Checks every bound.
    ///
    /// # Errors
    /// A value is out of bounds, or two settings contradict each other.
    pub(super) fn check(self) -> Result<Self, ConfigError> {
        let at_least_one = [
            ("kv_tokens", self.kv_tokens),
            ("max_running_requests", Some(self.max_running_requests)),
            ("max_batch_tokens", self.max_batch_tokens),
            ("max_queue", Some(self.max_queue)),
            ("prefill_chunk", Some(self.prefill_chunk)),
            ("max_body_bytes", Some(self.max_body_bytes)),
            ("http_workers", Some(self.http_workers)),
            ("stall_timeout", Some(self.stall_timeout as usize)),
            (
                "disaggregation_timeout",
                Some(self.disaggregation_timeout as usize),
            ),
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
        // Each has a thread, and a part of the connections.
        if self.http_workers > MAX_HTTP_WORKERS {
            return Err(ConfigError::Bound {
                field: "http_workers",
                bound: "at most 1024",
                given: self.http_workers.to_string(),
            });
        }
        if !(self.swa_full_tokens_ratio > 0.0 && self.swa_full_tokens_ratio <= 1.0) {
            return Err(ConfigError::Bound {
                field: "swa_full_tokens_ratio",
                bound: "above 0 and at most 1",
                given: self.swa_full_tokens_ratio.to_string(),
            });
        }
        let no_keys = self.api_key.is_none() && self.api_keys_file.is_none();
        if self.cache_isolation == CacheIsolation::Key && no_keys {
            return Err(ConfigError::Bound {
                field: "cache_isolation",
                bound: "none without `api_key` and `api_keys_file`",
                given: "key".to_owned(),
            });
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
                given: "a policy without a host cache".to_owned(),
            });
        }
        if self.cache_dir.is_some() && !self.prefix_cache {
            return Err(ConfigError::Bound {
                field: "cache_dir",
                bound: "left out without the prefix cache",
                given: "a directory".to_owned(),
            });
        }
        if self.cache_dir.is_none() && self.cache_dir_bytes != Self::default().cache_dir_bytes {
            return Err(ConfigError::Bound {
                field: "cache_dir_bytes",
                bound: "left out without `cache_dir`",
                given: self.cache_dir_bytes.to_string(),
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
            ("disaggregation_secret", &self.disaggregation_secret),
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
        if self.kv_events()?.is_some() && !self.prefix_cache {
            return Err(ConfigError::Bound {
                field: "kv_events_config",
                bound: "left out, or disabled, without the prefix cache",
                given: "enabled events".to_owned(),
            });
        }
        self.drafting()?;
        self.adapters()?;
        self.vocabularies()?;
        self.shown_version()?;
        self.buckets()?;
        self.detailed_traces()?;
        Ok(self)
    }
}
