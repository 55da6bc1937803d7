//! A bounded cache of the masks of finite-state machines, shared by all requests.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::mask::Mask;

/// The id of the machine, and its state.
type Key = (u64, u32);

/// A cache of masks. The least recently used are dropped when the cache is full.
#[derive(Debug)]
pub(crate) struct MaskCache {
    entries: Mutex<Entries>,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct Entries {
    /// Each mask with the value of `clock` at its last use.
    masks: HashMap<Key, (Mask, u64)>,
    bytes: usize,
    clock: u64,
}

impl MaskCache {
    pub fn new(max_bytes: usize) -> Self {
        Self {
            entries: Mutex::default(),
            max_bytes,
        }
    }

    /// The mask of a state, from the cache or made by `make`. Two requests that reach a new
    /// state at the same time may both make its mask; neither waits for the other.
    pub fn get(&self, key: Key, make: impl FnOnce() -> Mask) -> Mask {
        {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            entries.clock += 1;
            let now = entries.clock;
            if let Some((mask, used)) = entries.masks.get_mut(&key) {
                *used = now;
                return Mask::clone(mask);
            }
        }
        let mask = make();
        let size = size_of_val(&*mask) + size_of::<(Key, Mask, u64)>();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.bytes + size > self.max_bytes {
            entries.drop_oldest_half(size);
        }
        let now = entries.clock;
        if size <= self.max_bytes
            && entries
                .masks
                .insert(key, (Mask::clone(&mask), now))
                .is_none()
        {
            entries.bytes += size;
        }
        mask
    }
}

impl Entries {
    /// Drops half of the entries at a time, so that the cost of the search is shared by many
    /// insertions.
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
    fn the_size_stays_within_the_bound_and_the_latest_mask_is_cached() {
        let cache = MaskCache::new(4096);
        for state in 0..1000 {
            let mask = cache.get((1, state), || vec![state; 16].into());
            assert_eq!(mask[0], state);
            assert!(cache.entries.lock().unwrap().bytes <= 4096);
            let again = cache.get((1, state), || panic!("it was just made"));
            assert_eq!(again[0], state);
        }
    }

    #[test]
    fn a_mask_larger_than_the_bound_is_not_cached() {
        let cache = MaskCache::new(8);
        cache.get((0, 0), || vec![0; 64].into());
        assert_eq!(cache.entries.lock().unwrap().bytes, 0);
    }
}
