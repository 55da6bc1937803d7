//! Pages as other processes know them: a hash for each, and the changes that are reported.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    Device,
    /// The host's memory.
    Host,
}

/// A change of what one tier's tree holds.
///
/// A page has a hash that depends on its tokens, on all pages before it and on the namespace, so
/// that the same prefix has the same hashes in both tiers and in every process of one build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageChange {
    /// Consecutive pages were cached.
    Stored {
        namespace: Arc<str>,
        /// The hash of the page before them; `None` if they begin a prompt.
        parent: Option<u64>,
        /// One for each page.
        hashes: Vec<u64>,
        /// The tokens of all pages.
        tokens: Vec<u32>,
    },
    /// Pages are gone. Pages that followed them have been removed before, or are in the same list.
    Removed { hashes: Vec<u64> },
}

/// A change of what the cache holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheChange {
    Pages(Tier, PageChange),
    /// Nothing is cached any more, in either tier.
    Cleared,
}

/// The hash that the first pages of a namespace follow.
pub(crate) fn root_hash(namespace: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    namespace.hash(&mut hasher);
    hasher.finish()
}

/// The hash of a page after the page, or the root, with the hash `before`.
pub(crate) fn page_hash(before: u64, page: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (before, page).hash(&mut hasher);
    hasher.finish()
}
