//! The bounds of the settings.

use super::RouterConfig;

/// Longest duration that a setting may ask for, so that no sum of times overflows.
const LONGEST_SECONDS: f64 = 1e9;

/// Why the settings are refused.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// A value is out of bounds.
    #[error("router configuration: `{field}` must be {bound}, given {given}")]
    Bound {
        field: &'static str,
        bound: &'static str,
        given: String,
    },
}

fn ensure(
    holds: bool,
    field: &'static str,
    bound: &'static str,
    given: impl ToString,
) -> Result<(), ConfigError> {
    if holds {
        return Ok(());
    }
    Err(ConfigError::Bound {
        field,
        bound,
        given: given.to_string(),
    })
}

impl RouterConfig {
    /// Checks every bound, and that the workers fit the mode.
    ///
    /// # Errors
    /// The first setting that is out of bounds or contradicts another one.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_times()?;
        self.check_numbers()?;
        self.check_workers()?;
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
            ensure(!missing, field, bound, "nothing")?;
        }
        let empty = self.api_key.as_ref().is_some_and(|key| key.is_empty());
        ensure(
            !empty,
            "api_key",
            "at least 1 character long",
            "an empty key",
        )?;
        ensure(
            self.health_check_endpoint.starts_with('/'),
            "health_check_endpoint",
            "a path that begins with /",
            &self.health_check_endpoint,
        )
    }

    fn check_times(&self) -> Result<(), ConfigError> {
        for (field, seconds) in [
            ("request_timeout_secs", self.request_timeout_secs),
            ("cb_timeout_duration_secs", self.cb_timeout_duration_secs),
            ("cb_window_duration_secs", self.cb_window_duration_secs),
            ("health_check_timeout_secs", self.health_check_timeout_secs),
            (
                "health_check_interval_secs",
                self.health_check_interval_secs,
            ),
            (
                "worker_startup_check_interval",
                self.worker_startup_check_interval,
            ),
        ] {
            let holds = seconds > 0.0 && seconds <= LONGEST_SECONDS;
            ensure(holds, field, "more than 0 and at most 1e9 seconds", seconds)?;
        }
        for (field, seconds) in [
            (
                "shutdown_grace_period_secs",
                self.shutdown_grace_period_secs,
            ),
            ("queue_timeout_secs", self.queue_timeout_secs),
            ("decode_alone_timeout_secs", self.decode_alone_timeout_secs),
            (
                "worker_startup_timeout_secs",
                self.worker_startup_timeout_secs,
            ),
        ] {
            let holds = (0.0..=LONGEST_SECONDS).contains(&seconds);
            ensure(holds, field, "from 0 to 1e9 seconds", seconds)?;
        }
        Ok(())
    }

    fn check_numbers(&self) -> Result<(), ConfigError> {
        for (field, value) in [
            ("max_tree_size", self.max_tree_size),
            ("max_payload_size", self.max_payload_size),
            ("http_workers", self.http_workers),
            ("retry_max_retries", self.retry_max_retries as usize),
            ("cb_failure_threshold", self.cb_failure_threshold as usize),
            ("cb_success_threshold", self.cb_success_threshold as usize),
            (
                "health_failure_threshold",
                self.health_failure_threshold as usize,
            ),
            (
                "health_success_threshold",
                self.health_success_threshold as usize,
            ),
        ] {
            ensure(value >= 1, field, "at least 1", value)?;
        }
        for (field, value) in [
            ("cache_threshold", self.cache_threshold),
            ("retry_jitter_factor", self.retry_jitter_factor),
        ] {
            ensure((0.0..=1.0).contains(&value), field, "from 0 to 1", value)?;
        }
        for (field, value) in [
            ("balance_rel_threshold", self.balance_rel_threshold),
            ("retry_backoff_multiplier", self.retry_backoff_multiplier),
        ] {
            ensure((1.0..=1e6).contains(&value), field, "from 1 to 1e6", value)?;
        }
        let requests = self.max_concurrent_requests;
        let bounded = requests == -1 || (1..=1 << 30).contains(&requests);
        ensure(
            bounded,
            "max_concurrent_requests",
            "-1 or from 1 to 2^30",
            requests,
        )
    }

    fn check_workers(&self) -> Result<(), ConfigError> {
        self.regular_workers()?;
        self.prefill_workers()?;
        self.decode_workers()?;
        let (wrong, bound) = if self.pd_disaggregation {
            (
                vec![("worker_urls", &self.worker_urls)],
                "empty with `pd_disaggregation`, which takes `prefill` and `decode`",
            )
        } else {
            (
                vec![("prefill", &self.prefill), ("decode", &self.decode)],
                "empty without `pd_disaggregation`",
            )
        };
        for (field, list) in wrong {
            ensure(list.is_empty(), field, bound, list.join(" "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_each_bound_names_its_field() {
        assert_eq!(RouterConfig::default().check(), Ok(()));
        let base = serde_json::to_value(RouterConfig::default()).unwrap();
        for (field, value) in [
            ("cache_threshold", serde_json::json!(1.5)),
            ("queue_timeout_secs", serde_json::json!(-1.0)),
            ("health_check_interval_secs", serde_json::json!(0.0)),
            ("retry_max_retries", serde_json::json!(0)),
            ("max_concurrent_requests", serde_json::json!(0)),
            ("balance_rel_threshold", serde_json::json!(0.5)),
            ("health_check_endpoint", serde_json::json!("health")),
            ("worker_urls", serde_json::json!(["no url"])),
            ("prefill", serde_json::json!(["http://a:1"])),
        ] {
            let mut given = base.clone();
            given[field] = value;
            let config: RouterConfig = serde_json::from_value(given).unwrap();
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(&format!("`{field}`")), "{error}");
        }
    }
}
