//! The JSON of a request to `/v1/completions`.

use crate::error::{ApiError, out_of_bounds};
use crate::fields::bounds::{alternatives, at_least};
use crate::fields::wire::Prompts;
use crate::openai::generation_request::generation_request;

/// OpenAI's default for this route.
const DEFAULT_MAX_TOKENS: usize = 16;

generation_request! {
    /// A text completion request.
    CompletionRequest {
        prompt: Prompts,
        /// The number of alternatives per token (0: only the token itself).
        logprobs: Option<i64>,
        /// Begin the text with the prompt.
        echo: Option<bool>,
        best_of: Option<i64>,
        suffix: Option<String>,
    }
}

impl CompletionRequest {
    /// # Errors
    /// 400 that names the first field which asks for something this server cannot do.
    pub fn refuse_unsupported(&self) -> Result<(), ApiError> {
        if self
            .suffix
            .as_ref()
            .is_some_and(|suffix| !suffix.is_empty())
        {
            return Err(ApiError::unsupported("suffix"));
        }
        let n = self.n.unwrap_or(1);
        match self.best_of {
            // The best `n` of `n` continuations are all of them.
            Some(best_of) if best_of != n => Err(out_of_bounds(
                "best_of",
                &format!("left out or equal to `n` ({n}): choices are not ranked here"),
                best_of,
            )),
            _ => Ok(()),
        }
    }

    /// # Errors
    /// 400 below 0, or for 0 without `echo`, which would give an empty answer.
    pub fn token_limit(&self) -> Result<usize, ApiError> {
        let least = if self.echo == Some(true) { 0 } else { 1 };
        let given = at_least("max_tokens", least, self.max_tokens)?;
        Ok(given.unwrap_or(DEFAULT_MAX_TOKENS))
    }

    /// # Errors
    /// 400 if it is out of bounds.
    pub fn top_logprobs(&self) -> Result<Option<usize>, ApiError> {
        alternatives("logprobs", self.logprobs)
    }
}
