//! Compiled grammars by what they were compiled from, refusals too, within a bound.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use crate::compile::Compiled;
use crate::error::GrammarError;

/// What compiling came to.
pub type Outcome = Result<Arc<Compiled>, GrammarError>;

/// A cache; the least recently used go when it is full.
#[derive(Debug)]
pub struct GrammarCache {
    kept: Mutex<Kept>,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct Kept {
    grammars: HashMap<Arc<str>, Entry>,
    /// Keys by last use: whoever inserts holds up the event loop, and must not search.
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
            kept: Mutex::default(),
            max_bytes,
        }
    }

    /// What `key` was compiled to.
    pub fn get(&self, key: &str) -> Option<Outcome> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = &mut *kept;
        let entry = kept.grammars.get_mut(key)?;
        kept.clock += 1;
        if let Some(key) = kept.by_use.remove(&entry.used) {
            kept.by_use.insert(kept.clock, key);
        }
        entry.used = kept.clock;
        Some(entry.outcome.clone())
    }

    pub fn insert(&self, key: String, outcome: Outcome) {
        let own = outcome.as_ref().map_or(256, |compiled| compiled.bytes());
        let bytes = own + key.len();
        if bytes > self.max_bytes {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.remove(&key);
        while kept.bytes + bytes > self.max_bytes {
            let Some((_, oldest)) = kept.by_use.first_key_value() else {
                break;
            };
            let oldest = Arc::clone(oldest);
            kept.remove(&oldest);
        }
        let key: Arc<str> = key.into();
        kept.clock += 1;
        let used = kept.clock;
        let entry = Entry {
            outcome,
            bytes,
            used,
        };
        kept.by_use.insert(used, Arc::clone(&key));
        kept.grammars.insert(key, entry);
        kept.bytes += bytes;
    }

    /// Bytes that it takes, as far as they are counted.
    pub fn bytes(&self) -> usize {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes
    }
}

impl Kept {
    fn remove(&mut self, key: &str) {
        if let Some(entry) = self.grammars.remove(key) {
            self.by_use.remove(&entry.used);
            self.bytes -= entry.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_kept_and_the_oldest_go_first() {
        let cache = GrammarCache::new(3 * 300);
        let refusal = || Err(GrammarError::invalid("no"));
        for key in ["a", "b", "c"] {
            cache.insert(key.to_owned(), refusal());
        }
        assert!(cache.get("a").is_some());
        cache.insert("d".to_owned(), refusal());
        assert!(cache.get("b").is_none(), "it was used longest ago");
        assert!(cache.get("a").is_some() && cache.get("d").is_some());
        assert!(cache.bytes() <= 900);
    }

    #[test]
    fn each_entry_has_one_place_in_the_order_however_many_come_and_go() {
        let refusal = || Err(GrammarError::invalid("no"));
        let cache = GrammarCache::new(20_000 * 300);
        for index in 0..20_000 {
            cache.insert(format!("{index}"), refusal());
            cache.insert(format!("{index}"), refusal());
            assert!(cache.get(&format!("{}", index / 2)).is_some());
        }
        let places = || {
            let kept = cache.kept.lock().unwrap_or_else(PoisonError::into_inner);
            assert_eq!(kept.by_use.len(), kept.grammars.len());
            kept.by_use.len()
        };
        assert_eq!(places(), 20_000);
        cache.insert("x".repeat(20_000 * 300 - 256), refusal());
        assert_eq!(places(), 1, "all others made room");
    }
}
