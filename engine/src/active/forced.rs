//! Forced tokens that have not been sent yet.

use std::ops::Range;

use crate::request::FinishReason;
use crate::sampling::logprobs::TokenLogprobs;

/// Tokens that a grammar forced. They are part of the request's `tokens`, so that they are
/// computed together with the tokens before them, but they have not been sent to the consumer:
/// the prompt must be computed first, and so must their log-probabilities.
#[derive(Debug)]
pub(super) struct UnsentForced {
    /// Their positions in `tokens`.
    pub positions: Range<usize>,
    /// The log-probabilities of the first of them, as far as they are computed.
    pub logprobs: Vec<TokenLogprobs>,
    /// Whether a stop token follows, which ends the output and is not part of it.
    pub stops: bool,
    /// How the request finishes if the output ends with these tokens.
    pub end: Option<FinishReason>,
}

impl UnsentForced {
    pub fn is_last(&self) -> bool {
        self.end.is_some()
    }
}
