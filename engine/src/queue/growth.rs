//! Who has more of its prompt in the cache than when it was last looked at.

use std::collections::{BTreeSet, HashMap};

use crate::inbox::RequestId;

/// Waiting requests by the first page of their prompts that the cache does not
/// have. When that page is cached, they are due for a look; nobody else is, so
/// that a step need not match every prompt that waits.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    missing: HashMap<u64, BTreeSet<RequestId>>,
    due: Vec<BTreeSet<RequestId>>,
}

impl Growth {
    /// Waits for the page whose key is given.
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

    /// The page is cached now.
    pub fn cached(&mut self, page: u64) {
        self.due.extend(self.missing.remove(&page));
    }

    pub fn is_due(&mut self, id: RequestId) {
        self.due.push(BTreeSet::from([id]));
    }

    /// The next that is due, of those whose pages were cached last, as they are the
    /// likeliest to have most in the cache. It may be gone by now.
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

/// The key of the page of `tokens` that begins at `at`, by its place, its content
/// and what comes just before. Pages that collide cost a look and nothing else.
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
