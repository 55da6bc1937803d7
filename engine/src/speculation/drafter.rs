//! The trait of everything that drafts.

use std::fmt;

/// The tokens that a drafter may read.
pub(crate) struct DraftContext<'a> {
    /// Prompt and output.
    pub tokens: &'a [u32],
    pub prompt_len: usize,
    pub namespace: &'a str,
    pub cache: &'a dyn CachedText,
}

/// The prefix cache, as a drafter of one request sees it.
pub(crate) trait CachedText {
    /// Appends to `following` at most `most` tokens that the cache has after `tokens` in
    /// `namespace`.
    fn following(&self, namespace: &str, tokens: &[u32], most: usize, following: &mut Vec<u32>);
}

impl<'a> DraftContext<'a> {
    pub fn output(&self) -> &'a [u32] {
        &self.tokens[self.prompt_len..]
    }
}

/// Guesses the next tokens of one request. A step calls it at most once, and it has to return
/// within microseconds, whatever the tokens are: the device is idle.
pub(crate) trait Drafter: fmt::Debug + Send {
    /// Appends to `draft`, which is empty, at most `most` tokens that may follow those of
    /// `context`, or none.
    fn draft(&mut self, context: &DraftContext<'_>, most: usize, draft: &mut Vec<u32>);
}
