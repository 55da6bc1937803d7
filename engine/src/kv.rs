//! One request's KV slots, and the ways they move between it and the cache.

use hearth_radix::{EvictionPolicy, KvCache, KvUsage, OutOfSlots, PrefixLock};

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
    pub fn new(slots: usize, reuse: bool) -> Self {
        let cache = KvCache::new(slots, 1, EvictionPolicy::Lru).expect("1 is a page size");
        Self { cache, reuse }
    }

    pub fn usage(&mut self) -> KvUsage {
        self.cache.usage()
    }

    /// Slots for all of `tokens`, the longest cached prefix of
    /// `tokens[..reusable]` among them; `None` if fewer than `spare` would be
    /// left to be had.
    pub fn admit(
        &mut self,
        namespace: &str,
        tokens: &[u32],
        reusable: usize,
        spare: usize,
    ) -> Option<RequestKv> {
        let mut kv = RequestKv {
            slots: Vec::new(),
            lock: None,
            computed: 0,
        };
        if self.reuse {
            let prefix = self.cache.match_prefix(namespace, &tokens[..reusable]);
            kv.slots = prefix.slots;
            kv.lock = Some(prefix.lock);
            kv.computed = kv.slots.len();
        }
        // Counted with the prefix locked: what it reuses it cannot evict as well.
        let need = tokens.len() - kv.computed;
        if need + spare > self.cache.usage().available() {
            return None;
        }
        // Output tokens follow; one allocation now spares several in the steps.
        kv.slots.reserve(need + need / 4);
        self.cache.allocate(need, &mut kv.slots).ok()?;
        Some(kv)
    }

    /// One slot more for `kv`.
    pub fn grow(&mut self, kv: &mut RequestKv) -> Result<(), OutOfSlots> {
        self.cache.allocate(1, &mut kv.slots)
    }

    /// Caches what `kv` has computed of `tokens`; the request goes on with it.
    pub fn checkpoint(&mut self, namespace: &str, tokens: &[u32], kv: &mut RequestKv) {
        if self.reuse && kv.computed > kv.cached() {
            let (tokens, slots) = (&tokens[..kv.computed], &mut kv.slots[..kv.computed]);
            kv.lock = Some(self.cache.insert(namespace, tokens, slots));
        }
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
