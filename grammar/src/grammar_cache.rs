//! A bounded cache of compiled grammars and of refusals, by the grammar's source.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use crate::compiled::Outcome;

/// The size that a cached refusal counts as.
const REFUSAL_BYTES: usize = 256;

/// Outcomes of compilations. The least recently used are dropped when the cache is full.
#[derive(Debug)]
pub(crate) struct GrammarCache {
    entries: Mutex<Entries>,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct Entries {
    by_key: HashMap<Arc<str>, Entry>,
    /// Keys by last use, so that the oldest entry is found without a search: the event loop
    /// waits for the mutex while an entry is inserted.
    by_use: BTreeMap<u64, Arc<str>>,
    bytes: usize,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    outcome: Outcome,
    bytes: usize,
    used: u64,
}

impl GrammarCache {
    pub fn new(max_bytes: usize) -> Self {
        Self {
            entries: Mutex::default(),
            max_bytes,
        }
    }

    /// The outcome that is cached for `key`.
    pub fn get(&self, key: &str) -> Option<Outcome> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = &mut *entries;
        let entry = entries.by_key.get_mut(key)?;
        entries.clock += 1;
        if let Some(key) = entries.by_use.remove(&entry.used) {
            entries.by_use.insert(entries.clock, key);
        }
        entry.used = entries.clock;
        Some(entry.outcome.clone())
    }

    pub fn insert(&self, key: String, outcome: Outcome) {
        let own = outcome
            .as_ref()
            .map_or(REFUSAL_BYTES, |compiled| compiled.bytes());
        let bytes = own + key.len();
        if bytes > self.max_bytes {
            return;
        }
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.remove(&key);
        while entries.bytes + bytes > self.max_bytes {
            let Some((_, oldest)) = entries.by_use.first_key_value() else {
                break;
            };
            let oldest = Arc::clone(oldest);
            entries.remove(&oldest);
        }
        let key: Arc<str> = key.into();
        entries.clock += 1;
        let used = entries.clock;
        let entry = Entry {
            outcome,
            bytes,
            used,
        };
        entries.by_use.insert(used, Arc::clone(&key));
        entries.by_key.insert(key, entry);
        entries.bytes += bytes;
    }
}

impl Entries {
    fn remove(&mut self, key: &str) {
        if let Some(entry) = self.by_key.remove(key) {
            self.by_use.remove(&entry.used);
            self.bytes -= entry.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::GrammarError;

    #[test]
    fn refusals_are_cached_and_the_least_recently_used_are_dropped_first() {
        let cache = GrammarCache::new(3 * 300);
        let refusal = || Err(GrammarError::invalid("no"));
        for key in ["a", "b", "c"] {
            cache.insert(key.to_owned(), refusal());
        }
        assert!(cache.get("a").is_some());
        cache.insert("d".to_owned(), refusal());
        assert!(cache.get("b").is_none(), "it was used longest ago");
        assert!(cache.get("a").is_some() && cache.get("d").is_some());
        assert!(cache.entries.lock().unwrap().bytes <= 900);
    }

    #[test]
    fn every_entry_has_exactly_one_place_in_the_order_of_use() {
        let refusal = || Err(GrammarError::invalid("no"));
        let cache = GrammarCache::new(20_000 * 300);
        for index in 0..20_000 {
            cache.insert(format!("{index}"), refusal());
            cache.insert(format!("{index}"), refusal());
            assert!(cache.get(&format!("{}", index / 2)).is_some());
        }
        let places = || {
            let entries = cache.entries.lock().unwrap();
            assert_eq!(entries.by_use.len(), entries.by_key.len());
            entries.by_use.len()
        };
        assert_eq!(places(), 20_000);
        cache.insert("x".repeat(20_000 * 300 - REFUSAL_BYTES), refusal());
        assert_eq!(places(), 1, "all other entries were dropped");
    }
}
