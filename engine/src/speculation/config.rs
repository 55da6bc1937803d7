//! The operator's settings for speculative decoding.

use thiserror::Error;

/// The most tokens that a request may draft in one step.
pub const MAX_DRAFT: usize = 16;

/// The most tokens that a lookup compares.
const MAX_LOOKUP: usize = 64;

/// Where drafts come from if neither the prefix cache nor the request's prediction has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftMethod {
    /// From the request's own tokens: what followed the latest place at which its last tokens
    /// occurred before (prompt lookup, as vLLM's method `ngram`).
    #[default]
    Ngram,
    /// From a [`DraftModel`](crate::DraftModel).
    DraftModel,
}

/// How drafts are made. They come from the prefix cache, from a prediction that the request
/// brings, and by `method`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speculation {
    pub method: DraftMethod,
    /// The most tokens to draft in one step.
    pub num_tokens: usize,
    /// How many of the last tokens must have occurred before, in the same order, by
    /// [`DraftMethod::Ngram`].
    pub lookup_min: usize,
    /// How many of the last tokens are compared.
    pub lookup_max: usize,
    /// True if drafts are left out where they are expected to cost more than they save, by the
    /// measured times of steps and the share of drafts that were accepted.
    pub adaptive: bool,
}

impl Default for Speculation {
    fn default() -> Self {
        Self {
            method: DraftMethod::default(),
            num_tokens: 4,
            lookup_min: 2,
            lookup_max: 4,
            adaptive: true,
        }
    }
}

/// A setting out of its bounds.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field} must be between {low} and {high}, not {given}")]
pub struct SpeculationError {
    pub field: &'static str,
    pub low: usize,
    pub high: usize,
    pub given: usize,
}

impl Speculation {
    /// # Errors
    /// The first setting that is out of its bounds.
    pub fn validate(&self) -> Result<(), SpeculationError> {
        within("num_speculative_tokens", self.num_tokens, 1, MAX_DRAFT)?;
        within("prompt_lookup_max", self.lookup_max, 1, MAX_LOOKUP)?;
        within("prompt_lookup_min", self.lookup_min, 1, self.lookup_max)
    }
}

fn within(
    field: &'static str,
    given: usize,
    low: usize,
    high: usize,
) -> Result<(), SpeculationError> {
    if (low..=high).contains(&given) {
        return Ok(());
    }
    Err(SpeculationError {
        field,
        low,
        high,
        given,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid_and_each_bound_is_named() {
        let default = Speculation::default();
        assert_eq!(default.validate(), Ok(()));
        let refused = |speculation: Speculation| speculation.validate().unwrap_err().to_string();
        let num_tokens = MAX_DRAFT + 1;
        assert_eq!(
            refused(Speculation {
                num_tokens,
                ..default
            }),
            "num_speculative_tokens must be between 1 and 16, not 17"
        );
        assert_eq!(
            refused(Speculation {
                lookup_min: 5,
                ..default
            }),
            "prompt_lookup_min must be between 1 and 4, not 5"
        );
        assert_eq!(
            refused(Speculation {
                lookup_min: 0,
                ..default
            }),
            "prompt_lookup_min must be between 1 and 4, not 0"
        );
    }
}
