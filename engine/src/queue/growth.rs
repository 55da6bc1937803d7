//! Which waiting requests have more of their prompts in the cache than when they were last
//! matched.

use std::collections::{BTreeSet, HashMap};

use crate::request_id::RequestId;

/// Waiting requests by the first page of their prompts that the cache does not have. When that
/// page is cached, they are due to be matched again. No other requests are, so that a step
/// need not match every waiting prompt.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    missing: HashMap<u64, BTreeSet<RequestId>>,
    due: Vec<BTreeSet<RequestId>>,
}

impl Growth {
    /// The request is due when the page with this key is cached.
    pub fn watch(&mut self, page: u64, id: RequestId) {
        self.missing.entry(page).or_default().insert(id);
    }

    pub fn forget(&mut self, page: u64, id: RequestId) {
        if let Some(ids) = self.missing.get_mut(&page) {
            ids.remove(&id);
            if ids.is_empty() {
                self.missing.remove(&page);
            }
        }
    }

    /// The page has been cached.
    pub fn cached(&mut self, page: u64) {
        self.due.extend(self.missing.remove(&page));
    }

    pub fn make_due(&mut self, id: RequestId) {
        self.due.push(BTreeSet::from([id]));
    }

    /// The next request that is due: of those whose pages were cached last, because they are
    /// the most likely to have the most in the cache. It may have left the queue by now.
    pub fn take_due(&mut self) -> Option<RequestId> {
        loop {
            let id = self.due.last_mut()?.pop_first();
            if id.is_some() {
                return id;
            }
            self.due.pop();
        }
    }
}

/// The key of the page of `tokens` that begins at `at`: a hash of its position, its content and
/// the tokens just before it. A collision costs one unnecessary match and nothing else.
pub(crate) fn page_key(namespace: &str, tokens: &[u32], at: usize, page_size: usize) -> u64 {
    let before = at.saturating_sub(4);
    let mut key = at as u64 ^ (namespace.len() as u64) << 48;
    let bytes = namespace.bytes().take(64).map(u64::from);
    let tokens = tokens[before..at + page_size]
        .iter()
        .map(|&token| u64::from(token));
    for value in bytes.chain(tokens) {
        key = (key ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        key ^= key >> 29;
    }
    key
}
