//! Drafts what the prefix cache has after the request's tokens.

use super::drafter::{DraftContext, Drafter};

/// Drafts the tokens with which other requests of the same namespace continued, or with which
/// this one did before: the whole text so far is equal then, so it is the best evidence.
#[derive(Debug)]
pub(super) struct CachedContinuation;

impl Drafter for CachedContinuation {
    fn draft(&mut self, context: &DraftContext<'_>, most: usize, draft: &mut Vec<u32>) {
        let DraftContext {
            tokens,
            namespace,
            cache,
            ..
        } = context;
        cache.following(namespace, tokens, most, draft);
    }
}
