//! Compiled grammars by what they were compiled from, refusals too, within a bound.

use std::collections::HashMap;
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
    grammars: HashMap<String, Entry>,
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
        kept.clock += 1;
        let now = kept.clock;
        let entry = kept.grammars.get_mut(key)?;
        entry.used = now;
        Some(entry.outcome.clone())
    }

    pub fn insert(&self, key: String, outcome: Outcome) {
        let own = outcome.as_ref().map_or(256, |compiled| compiled.bytes());
        let bytes = own + key.len();
        if bytes > self.max_bytes {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        while kept.bytes + bytes > self.max_bytes {
            let oldest = kept.grammars.iter().min_by_key(|(_, entry)| entry.used);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
                break;
            };
            kept.remove(&oldest);
        }
        kept.remove(&key);
        kept.clock += 1;
        let used = kept.clock;
        let entry = Entry {
            outcome,
            bytes,
            used,
        };
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
}
