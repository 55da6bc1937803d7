//! What the operator chooses about scheduling.

/// Bounds of the scheduler. Everything about the model itself comes from
/// [`ExecutorLimits`](crate::executor::ExecutorLimits).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Requests that may hold KV slots at once.
    pub max_running: usize,
    /// Requests that may wait; one more is refused with `QueueFull`.
    pub max_queue: usize,
    /// Tokens in one forward, decode rows and prefill chunks together.
    pub max_batch_tokens: usize,
    /// Prompt tokens one request may take of a step when an equal share of
    /// `max_batch_tokens` would be less.
    pub prefill_chunk: usize,
    /// Whether prompts reuse the KV of earlier ones. Off only to compare.
    pub prefix_cache: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_running: 256,
            max_queue: 1024,
            max_batch_tokens: 2048,
            prefill_chunk: 512,
            prefix_cache: true,
        }
    }
}

/// A bound that makes no progress possible.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{field} must be at least {bound}, not {given}")]
pub struct ConfigError {
    pub field: &'static str,
    pub bound: usize,
    pub given: usize,
}

impl EngineConfig {
    /// # Errors
    /// Names the first bound that is zero.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (field, given) in [
            ("max_running", self.max_running),
            ("max_queue", self.max_queue),
            ("max_batch_tokens", self.max_batch_tokens),
            ("prefill_chunk", self.prefill_chunk),
        ] {
            if given == 0 {
                return Err(ConfigError {
                    field,
                    bound: 1,
                    given,
                });
            }
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
    }
}
