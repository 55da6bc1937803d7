//! The operator's settings for scheduling and caching.

use std::time::Duration;

use hearth_radix::{EvictionPolicy, HostWritePolicy, PageSizeError, RadixTree};

use crate::policy::SchedulePolicy;
use crate::speculation::{Speculation, SpeculationError};

/// Bounds and policies of the scheduler. Everything about the model itself comes from
/// [`ExecutorLimits`](hearth_forward::ExecutorLimits).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Requests that may hold KV slots at once.
    pub max_running: usize,
    /// Requests that may wait. One more is refused with
    /// [`QueueFull`](crate::SubmitError::QueueFull).
    pub max_queue: usize,
    /// Tokens in one forward pass, decode rows and prefill chunks together.
    pub max_batch_tokens: usize,
    /// Prompt tokens that one request may have in a step even if its equal share of
    /// `max_batch_tokens` is smaller.
    pub prefill_chunk: usize,
    /// How long a forward pass may take on a device with a
    /// [watchdog](hearth_forward::Executor::has_watchdog), as far as measurements can tell; `None`
    /// for no bound.
    pub max_submission: Option<Duration>,
    /// Whether prompts reuse the KV of earlier ones. It is switched off for comparisons only.
    pub prefix_cache: bool,
    /// Tokens that are cached and matched together: a power of two from 1 to 64.
    pub page_size: usize,
    /// Which cached prefix is evicted first when room is needed.
    pub eviction: EvictionPolicy,
    /// When cached tokens are copied to the host's memory.
    pub host_writes: HostWritePolicy,
    /// Which waiting request starts next.
    pub schedule: SchedulePolicy,
    /// Record which pages are cached and removed, for a
    /// [`CacheObserver`](crate::CacheObserver).
    pub cache_changes: bool,
    /// Speculative decoding; `None` for none. There is none either where the executor
    /// [samples on the device](hearth_forward::Executor::samples_on_device).
    pub speculation: Option<Speculation>,
    /// For tests: after every so many steps, all running requests except the oldest go back
    /// to the queue.
    #[doc(hidden)]
    pub retract_every: Option<u64>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_running: 256,
            max_queue: 1024,
            max_batch_tokens: 2048,
            prefill_chunk: 512,
            max_submission: Some(Duration::from_secs(1)),
            prefix_cache: true,
            page_size: 1,
            eviction: EvictionPolicy::default(),
            host_writes: HostWritePolicy::default(),
            schedule: SchedulePolicy::default(),
            cache_changes: false,
            speculation: None,
            retract_every: None,
        }
    }
}

/// A configuration with which no request could be served.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    #[error("{field} must be at least {bound}, not {given}")]
    TooSmall {
        field: &'static str,
        bound: usize,
        given: usize,
    },
    #[error(transparent)]
    PageSize(#[from] PageSizeError),
    #[error(transparent)]
    Speculation(#[from] SpeculationError),
}

impl EngineConfig {
    /// Whether a policy looks at [`Request::priority`](crate::Request::priority).
    pub fn heeds_priority(&self) -> bool {
        let evicts = self.prefix_cache && self.eviction == EvictionPolicy::Priority;
        evicts || self.schedule == SchedulePolicy::Priority
    }

    /// # Errors
    /// The first bound that is zero, an invalid page size, or a setting of the speculation that
    /// is out of its bounds.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (field, given) in [
            ("max_running", self.max_running),
            ("max_queue", self.max_queue),
            ("max_batch_tokens", self.max_batch_tokens),
            ("prefill_chunk", self.prefill_chunk),
        ] {
            if given == 0 {
                return Err(ConfigError::TooSmall {
                    field,
                    bound: 1,
                    given,
                });
            }
        }
        RadixTree::new(self.page_size, self.eviction)?;
        if let Some(speculation) = &self.speculation {
            speculation.validate()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid_and_a_zero_bound_is_named() {
        assert_eq!(EngineConfig::default().validate(), Ok(()));
        let config = EngineConfig {
            max_queue: 0,
            ..EngineConfig::default()
        };
        let error = config.validate().unwrap_err();
        assert_eq!(error.to_string(), "max_queue must be at least 1, not 0");
        let config = EngineConfig {
            page_size: 48,
            ..EngineConfig::default()
        };
        let error = config.validate().unwrap_err();
        assert_eq!(
            error.to_string(),
            "page_size must be a power of two from 1 to 64, not 48"
        );
    }
}
