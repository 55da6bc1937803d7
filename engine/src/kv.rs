//! One request's KV slots, and the ways they move between it and the cache.

use std::ops::Range;

use hearth_forward::KvCopy;
use hearth_radix::{KvUsage, OutOfSlots, Peeked, Prefix, PrefixLock, TieredCache};

use crate::active::ActiveRequest;
use crate::batch::Row;
use crate::config::EngineConfig;

/// The host's copy of a prefix is taken from this many tokens on that the device lacks:
/// a copy costs less than computing them does, but for what every copy costs.
const WORTH_LOADING: usize = 32;

/// The slots of a running request. The first `lock.tokens()` belong to the
/// cache, which keeps them as long as the lock lives; the rest to the request.
#[derive(Debug)]
pub(crate) struct RequestKv {
    /// In order of position; at least `computed`.
    pub slots: Vec<u32>,
    /// Where they are in the tables of the batches, of which there are two.
    pub rows: [Row; 2],
    lock: Option<PrefixLock>,
    /// What the host has and is not copied to the slots yet.
    host: Option<Prefix>,
    /// Tokens whose keys and values are in their slots.
    pub computed: usize,
}

impl RequestKv {
    fn cached(&self) -> usize {
        self.lock.as_ref().map_or(0, PrefixLock::tokens)
    }

    /// Tokens that need not be computed, when the host's are copied.
    pub fn reused(&self) -> usize {
        let host = self.host.as_ref().map_or(0, |host| host.slots.len());
        self.computed.max(host)
    }

    /// Whether tokens are to be copied from the host before any can be computed.
    pub fn loads(&self) -> bool {
        self.host.is_some()
    }

    /// The next `count` tokens are in their slots.
    pub fn loaded(&mut self, count: usize) {
        self.computed += count;
        if self.computed >= self.reused() {
            self.host = None;
        }
    }

    /// What the host has is not to be had any more.
    pub fn lose_host(&mut self) {
        self.host = None;
    }

    /// Slots that are neither free nor the cache's.
    pub fn held(&self) -> usize {
        self.slots.len() - self.cached()
    }
}

/// The KV pool with its cache; without `reuse` the cache stays empty.
#[derive(Debug)]
pub(crate) struct Kv {
    cache: TieredCache,
    reuse: bool,
}

impl Kv {
    /// Of `slots` slots, and as many as `host_slots` in the host's memory.
    pub fn new(slots: usize, host_slots: usize, config: &EngineConfig) -> Self {
        let cache = TieredCache::new(slots, config.page_size, config.eviction);
        let cache = match host_slots {
            0 => cache,
            host => {
                cache.and_then(|cache| cache.with_host(host, config.eviction, config.host_writes))
            }
        };
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
            rows: Default::default(),
            lock: None,
            host: None,
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
            let host = self
                .cache
                .match_host(&request.namespace, reusable, request.priority);
            kv.host = host.filter(|host| host.slots.len() >= kv.computed + WORTH_LOADING);
        }
        let need = request.tokens.len() - kv.computed;
        // Output tokens follow; one allocation now spares several in the steps.
        kv.slots.reserve(need + need / 4);
        self.cache.allocate(need, &mut kv.slots).ok()?;
        Some(kv)
    }

    /// From here on a step may copy `tokens` to the host, and as many from there.
    pub fn allow_copies(&mut self, tokens: usize) {
        self.cache.allow_copies(tokens);
    }

    /// Has tokens of `kv` copied from the host, as many as this step may; returns how
    /// many. They are there when the copies are done.
    pub fn load(&mut self, kv: &RequestKv) -> usize {
        let Some(host) = &kv.host else { return 0 };
        let missing = kv.computed..host.slots.len();
        self.cache
            .load(&host.slots[missing.clone()], &kv.slots[missing])
    }

    /// What is to be copied before the forward of this step, in this order.
    pub fn take_copies(&mut self) -> Vec<KvCopy> {
        self.cache.take_copies()
    }

    /// Whether the next step has something to copy.
    pub fn has_copies(&self) -> bool {
        self.cache.has_copies()
    }

    /// Drops what the host has; no request may hold any of it.
    pub fn forget_host(&mut self) {
        self.cache.forget_host();
    }

    pub fn host_usage(&mut self) -> KvUsage {
        self.cache.host_usage()
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
            // Where the cache had them already, it keeps its own.
            kv.rows.iter_mut().for_each(|row| row.changed(before));
        }
        before..kv.cached()
    }

    /// Takes back what the request holds, and unlocks what it read.
    pub fn release(&mut self, kv: RequestKv) {
        self.cache.free(&kv.slots[kv.cached()..]);
    }

    /// Forgets all that no request reads, the host's copies too; returns how many slots
    /// that were.
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
