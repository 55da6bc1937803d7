//! Masks of finite-state machines, kept for all requests together within one bound.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::Mask;

/// The machine, and its state.
type Key = (u64, u32);

/// A cache of masks; the least recently used go when it is full.
#[derive(Debug)]
pub(crate) struct MaskCache {
    kept: Mutex<Kept>,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct Kept {
    masks: HashMap<Key, (Mask, u64)>,
    bytes: usize,
    clock: u64,
}

impl MaskCache {
    pub fn new(max_bytes: usize) -> Self {
        Self {
            kept: Mutex::default(),
            max_bytes,
        }
    }

    /// The mask of a state, from the cache or made by `make`. Two requests that meet at
    /// a new state may both make it; neither waits for the other.
    pub fn get(&self, key: Key, make: impl FnOnce() -> Mask) -> Mask {
        {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.clock += 1;
            let now = kept.clock;
            if let Some((mask, used)) = kept.masks.get_mut(&key) {
                *used = now;
                return Mask::clone(mask);
            }
        }
        let mask = make();
        let size = size_of_val(&*mask) + size_of::<(Key, Mask, u64)>();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.bytes + size > self.max_bytes {
            kept.drop_oldest_half(size);
        }
        let now = kept.clock;
        if size <= self.max_bytes && kept.masks.insert(key, (Mask::clone(&mask), now)).is_none() {
            kept.bytes += size;
        }
        mask
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.kept.lock().unwrap().bytes
    }
}

impl Kept {
    /// Half at a time, so that the search for the oldest is paid by many insertions.
    fn drop_oldest_half(&mut self, size: usize) {
        let mut uses: Vec<u64> = self.masks.values().map(|(_, used)| *used).collect();
        uses.sort_unstable();
        let Some(&median) = uses.get(uses.len() / 2) else {
            return;
        };
        self.masks.retain(|_, (_, used)| *used > median);
        self.bytes = self.masks.len() * size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_and_the_latest_stay() {
        let cache = MaskCache::new(4096);
        for state in 0..1000 {
            let mask = cache.get((1, state), || vec![state; 16].into());
            assert_eq!(mask[0], state);
            assert!(cache.bytes() <= 4096);
            let again = cache.get((1, state), || panic!("it was just made"));
            assert_eq!(again[0], state);
        }
    }

    #[test]
    fn what_is_larger_than_the_bound_is_made_and_not_kept() {
        let cache = MaskCache::new(8);
        cache.get((0, 0), || vec![0; 64].into());
        assert_eq!(cache.bytes(), 0);
    }
}
