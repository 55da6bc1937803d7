//! One request's KV slots, and the ways they move between it and the cache.

use std::ops::Range;

use hearth_radix::{KvCache, KvUsage, OutOfSlots, Peeked, PrefixLock};

use crate::active::ActiveRequest;
use crate::config::EngineConfig;

/// The slots of a running request. The first `lock.tokens()` belong to the
/// cache, which keeps them as long as the lock lives; the rest to the request.
#[derive(Debug)]
pub(crate) struct RequestKv {
    /// In order of position; at least `computed`.
    pub slots: Vec<u32>,
    lock: Option<PrefixLock>,
    /// Tokens whose keys and values are in their slots.
    pub computed: usize,
}

impl RequestKv {
    fn cached(&self) -> usize {
        self.lock.as_ref().map_or(0, PrefixLock::tokens)
    }

    /// Slots that are neither free nor the cache's.
    pub fn held(&self) -> usize {
        self.slots.len() - self.cached()
    }
}

/// The KV pool with its cache; without `reuse` the cache stays empty.
#[derive(Debug)]
pub(crate) struct Kv {
    cache: KvCache,
    reuse: bool,
}

impl Kv {
    pub fn new(slots: usize, config: &EngineConfig) -> Self {
        let cache = KvCache::new(slots, config.page_size, config.eviction);
        Self {
            cache: cache.expect("the configuration is valid"),
            reuse: config.prefix_cache,
        }
    }

    pub fn usage(&mut self) -> KvUsage {
        self.cache.usage()
    }

    /// What the cache has for `request`.
    pub fn peek(&mut self, request: &ActiveRequest) -> Peeked {
        if !self.reuse {
            return Peeked::default();
        }
        let reusable = &request.tokens[..request.reusable()];
        self.cache.peek(&request.namespace, reusable)
    }

    /// Slots for all tokens of `request`, of which the cache has what `peek` just
    /// `found`; `None` if fewer than `spare` would be left to be had.
    pub fn admit(
        &mut self,
        request: &ActiveRequest,
        found: Peeked,
        spare: usize,
    ) -> Option<RequestKv> {
        // What it reuses it cannot evict as well.
        let available = self.cache.usage().available() - found.unlocked;
        if request.tokens.len() - found.tokens + spare > available {
            return None;
        }
        let mut kv = RequestKv {
            slots: Vec::new(),
            lock: None,
            computed: 0,
        };
        if self.reuse {
            let reusable = &request.tokens[..request.reusable()];
            let prefix = self
                .cache
                .match_prefix(&request.namespace, reusable, request.priority);
            kv.slots = prefix.slots;
            kv.lock = Some(prefix.lock);
            kv.computed = kv.slots.len();
        }
        let need = request.tokens.len() - kv.computed;
        // Output tokens follow; one allocation now spares several in the steps.
        kv.slots.reserve(need + need / 4);
        self.cache.allocate(need, &mut kv.slots).ok()?;
        Some(kv)
    }

    /// `count` slots more for `kv`, or none.
    pub fn grow(&mut self, kv: &mut RequestKv, count: usize) -> Result<(), OutOfSlots> {
        self.cache.allocate(count, &mut kv.slots)
    }

    /// Caches what `kv` has computed of `request`, which goes on with it. Returns
    /// which of its tokens the cache did not have from it before.
    pub fn checkpoint(&mut self, request: &ActiveRequest, kv: &mut RequestKv) -> Range<usize> {
        let before = kv.cached();
        if self.reuse && kv.computed >= before + self.cache.page_size() {
            let tokens = &request.tokens[..kv.computed];
            let slots = &mut kv.slots[..kv.computed];
            let lock = self
                .cache
                .insert(&request.namespace, tokens, request.priority, slots);
            kv.lock = Some(lock);
        }
        before..kv.cached()
    }

    /// Takes back what the request holds, and unlocks what it read.
    pub fn release(&mut self, kv: RequestKv) {
        self.cache.free(&kv.slots[kv.cached()..]);
    }

    /// Forgets all that no request reads; returns how many tokens that were.
    pub fn flush(&mut self) -> usize {
        self.cache.flush()
    }

    /// Every invariant of tree and pool, given all that requests hold.
    #[cfg(test)]
    pub fn check<'a>(&mut self, requests: impl Iterator<Item = &'a RequestKv>) {
        let held: Vec<u32> = requests
            .flat_map(|kv| &kv.slots[kv.cached()..])
            .copied()
            .collect();
        self.cache.check(&held).unwrap();
    }
}
