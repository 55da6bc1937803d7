//! Attempts at a request, and the pauses between them.

use std::time::Duration;

use rand::Rng;

use crate::config::RouterConfig;
use crate::metrics::Metrics;

/// Statuses of workers after which a request is tried again.
pub fn is_retryable(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
}

#[derive(Clone, Copy, Debug)]
pub struct RetrySettings {
    attempts: u32,
    initial: Duration,
    longest: Duration,
    multiplier: f64,
    jitter: f64,
}

impl RetrySettings {
    pub fn new(config: &RouterConfig) -> Self {
        Self {
            attempts: if config.disable_retries {
                1
            } else {
                config.retry_max_retries
            },
            initial: Duration::from_millis(config.retry_initial_backoff_ms),
            longest: Duration::from_millis(config.retry_max_backoff_ms),
            multiplier: config.retry_backoff_multiplier,
            jitter: config.retry_jitter_factor,
        }
    }

    /// The pause after `attempt` failed attempts, without jitter.
    fn pause(&self, attempt: u32) -> Duration {
        let factor = self.multiplier.powf(f64::from(attempt.saturating_sub(1)));
        let seconds = self.initial.as_secs_f64() * factor;
        let longest = self.longest.as_secs_f64();
        Duration::from_secs_f64(seconds.min(longest))
    }
}

/// The attempts at one request.
#[derive(Debug)]
pub struct Attempts<'a> {
    settings: RetrySettings,
    metrics: &'a Metrics,
    worker_type: &'static str,
    endpoint: &'static str,
    failed: u32,
}

impl<'a> Attempts<'a> {
    pub fn new(
        settings: RetrySettings,
        metrics: &'a Metrics,
        worker_type: &'static str,
        endpoint: &'static str,
    ) -> Self {
        Self {
            settings,
            metrics,
            worker_type,
            endpoint,
            failed: 0,
        }
    }

    /// Takes in a failed attempt. Returns the pause before the next one, if there is one.
    pub fn another(&mut self) -> Option<Duration> {
        self.failed += 1;
        if self.failed >= self.settings.attempts {
            self.metrics.exhausted(self.worker_type, self.endpoint);
            return None;
        }
        let jitter = self.settings.jitter;
        let factor = 1.0 + jitter * rand::rng().random_range(-1.0..=1.0);
        let pause = self.settings.pause(self.failed).mul_f64(factor);
        self.metrics
            .retry(self.worker_type, self.endpoint, self.failed, pause);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest() {
        let settings = RetrySettings::new(&RouterConfig::default());
        let millis = |attempt| settings.pause(attempt).as_secs_f64() * 1000.0;
        assert_eq!([millis(1), millis(2), millis(3)], [50.0, 75.0, 112.5]);
        assert_eq!(millis(1000), 30_000.0);
        assert_eq!(settings.attempts, 5);
    }

    #[test]
    fn statuses_of_overload_and_failure_are_retried() {
        for status in [408, 429, 500, 502, 503, 504] {
            assert!(is_retryable(status));
        }
        for status in [200, 400, 401, 404, 422, 501, 505] {
            assert!(!is_retryable(status));
        }
    }
}
