//! The KV slots of a request, and how they pass between the request and the prefix cache.

mod window;

use std::ops::Range;

use hearth_forward::{KvCopy, WindowLimits};
use hearth_radix::{
    CacheChange, CachedEdge, KvUsage, OutOfSlots, Outline, Peeked, Prefix, PrefixLock, TieredCache,
};

use crate::active::ActiveRequest;
use crate::config::EngineConfig;
use crate::slot_table::TableSpan;
use crate::transfer::TransferError;
use window::RequestWindow;

/// A prefix is loaded from the host's memory if the host has at least this many tokens of it
/// that the device lacks: a copy costs less than computing the tokens, except for its fixed
/// cost.
const WORTH_LOADING: usize = 32;

/// The slots of a running request. The first `lock.tokens()` belong to the cache, which keeps
/// them as long as the lock lives; the others belong to the request.
#[derive(Debug)]
pub(crate) struct RequestKv {
    /// The slots in order of position; at least `computed`.
    pub slots: Vec<u32>,
    /// The window slots, if the model has any.
    pub window: Option<RequestWindow>,
    /// The places of `slots` in the slot tables of the two batches.
    pub spans: [TableSpan; 2],
    lock: Option<PrefixLock>,
    /// The prefix in the host's memory, until all of it has been copied to `slots`.
    host: Option<Prefix>,
    /// Tokens whose keys and values are in their slots.
    pub computed: usize,
}

impl RequestKv {
    /// Slots that belong to the cache.
    fn cached(&self) -> usize {
        self.lock.as_ref().map_or(0, PrefixLock::tokens)
    }

    /// Tokens that need not be computed once the host's have been copied.
    pub fn reused(&self) -> usize {
        let host = self.host.as_ref().map_or(0, |host| host.slots.len());
        self.computed.max(host)
    }

    /// Whether tokens must be copied from the host before any can be computed.
    pub fn needs_load(&self) -> bool {
        self.host.is_some()
    }

    /// The next `count` tokens have been copied to their slots.
    pub fn loaded(&mut self, count: usize) {
        self.computed += count;
        if self.computed >= self.reused() {
            self.host = None;
        }
    }

    /// The prefix in the host's memory is gone.
    pub fn lose_host(&mut self) {
        self.host = None;
    }

    /// Slots that belong to the request.
    pub fn held(&self) -> usize {
        self.slots.len() - self.cached()
    }
}

/// The sizes of the pools.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvSizes {
    /// Slots on the device.
    pub slots: usize,
    pub window: Option<WindowLimits>,
    /// Slots in the host's memory.
    pub host_slots: usize,
}

#[cfg(test)]
impl KvSizes {
    /// One pool, for an executor with these `limits`.
    pub fn of(limits: hearth_forward::ExecutorLimits) -> Self {
        Self {
            slots: limits.kv_slots,
            window: None,
            host_slots: 0,
        }
    }
}

/// The KV pool with its prefix cache.
#[derive(Debug)]
pub(crate) struct Kv {
    cache: TieredCache,
    /// Whether prompts reuse the KV of earlier ones; otherwise the cache stays empty.
    reuse: bool,
    /// True if there are window slots.
    windowed: bool,
}

impl Kv {
    pub fn new(sizes: KvSizes, config: &EngineConfig) -> Self {
        let cache = TieredCache::new(sizes.slots, config.page_size, config.eviction);
        let cache = match sizes.host_slots {
            0 => cache,
            host => {
                cache.and_then(|cache| cache.with_host(host, config.eviction, config.host_writes))
            }
        };
        let mut cache = cache.expect("the configuration is valid");
        if let Some(WindowLimits { slots, tokens }) = sizes.window {
            cache = cache.with_window(slots, tokens.saturating_sub(1));
        }
        if config.cache_changes {
            cache.record_changes();
        }
        Self {
            cache,
            reuse: config.prefix_cache,
            windowed: sizes.window.is_some(),
        }
    }

    /// The changes of what is cached since the last call.
    pub fn take_changes(&mut self) -> Vec<CacheChange> {
        self.cache.take_changes()
    }

    /// All that is cached, as changes of an empty cache.
    pub fn all_pages(&self) -> Vec<CacheChange> {
        self.cache.all_pages()
    }

    pub fn usage(&mut self) -> KvUsage {
        self.cache.usage()
    }

    pub fn window_usage(&mut self) -> KvUsage {
        self.cache.window_usage()
    }

    /// How much of `request` the cache has.
    pub fn peek(&mut self, request: &ActiveRequest) -> Peeked {
        if !self.reuse {
            return Peeked::default();
        }
        let reusable = &request.tokens[..request.reusable()];
        self.cache.peek(&request.namespace, reusable)
    }

    /// Allocates slots for all tokens of `request`. The cache has the prefix that
    /// [`peek`](Self::peek) just `found`. `None` if fewer than `reserve` slots would be left that
    /// are free or can be evicted.
    pub fn admit(
        &mut self,
        request: &ActiveRequest,
        found: Peeked,
        reserve: usize,
    ) -> Option<RequestKv> {
        // The slots that the request reuses cannot be evicted for it as well.
        let available = self.cache.usage().available() - found.unlocked;
        if request.tokens.len() - found.tokens + reserve > available {
            return None;
        }
        let mut kv = RequestKv {
            slots: Vec::new(),
            window: self.windowed.then_some(RequestWindow {
                slots: Vec::new(),
                from: 0,
            }),
            spans: Default::default(),
            lock: None,
            host: None,
            computed: 0,
        };
        if self.reuse {
            let reusable = &request.tokens[..request.reusable()];
            let prefix = self
                .cache
                .match_prefix(&request.namespace, reusable, request.priority);
            kv.window = self.windowed.then(|| RequestWindow::of(&prefix));
            kv.slots = prefix.slots;
            kv.lock = Some(prefix.lock);
            kv.computed = kv.slots.len();
            let host = self
                .cache
                .match_host(&request.namespace, reusable, request.priority);
            kv.host = host.filter(|host| host.slots.len() >= kv.computed + WORTH_LOADING);
        }
        let need = request.tokens.len() - kv.computed;
        // Output tokens will follow; one allocation now saves several in later steps.
        kv.slots.reserve(need + need / 4);
        self.cache.allocate(need, &mut kv.slots).ok()?;
        Some(kv)
    }

    /// Allows the next step to copy `tokens` tokens to the host, and as many from the host.
    pub fn allow_copies(&mut self, tokens: usize) {
        self.cache.allow_copies(tokens);
    }

    /// Schedules copies of tokens of `kv` from the host, as many as this step may copy; returns
    /// how many. They are in their slots when the copies are done.
    pub fn load(&mut self, kv: &RequestKv) -> usize {
        let Some(host) = &kv.host else { return 0 };
        let missing = kv.computed..host.slots.len();
        self.cache
            .load(&host.slots[missing.clone()], &kv.slots[missing])
    }

    /// The copies to make before the forward pass of this step, in this order.
    pub fn take_copies(&mut self) -> Vec<KvCopy> {
        self.cache.take_copies()
    }

    /// Whether copies are scheduled for the next step.
    pub fn has_copies(&self) -> bool {
        self.cache.has_copies()
    }

    /// Forgets everything in the host's memory. No request may hold any of it.
    pub fn forget_host(&mut self) {
        self.cache.forget_host();
    }

    pub fn host_usage(&mut self) -> KvUsage {
        self.cache.host_usage()
    }

    /// Allocates `count` more slots for `kv`, or none.
    pub fn grow(&mut self, kv: &mut RequestKv, count: usize) -> Result<(), OutOfSlots> {
        self.cache.allocate(count, &mut kv.slots)
    }

    /// Frees the slots of `kv` after the first `len`: those of refused drafts.
    pub fn trim(&mut self, kv: &mut RequestKv, len: usize) {
        if let Some(window) = &mut kv.window
            && window.slots.len() > len
        {
            self.cache.free_window(&window.slots[len..]);
            window.slots.truncate(len);
        }
        if kv.slots.len() > len {
            self.cache.free(&kv.slots[len..]);
            kv.slots.truncate(len);
            let spans = kv.spans.iter_mut();
            spans.for_each(|span| span.invalidate_from(len));
        }
    }

    /// Appends to `following` at most `most` tokens that the cache has after `tokens`, the
    /// tokens of the request with the slots `kv`.
    pub fn following(
        &self,
        kv: &RequestKv,
        namespace: &str,
        tokens: &[u32],
        most: usize,
        following: &mut Vec<u32>,
    ) {
        let lock = kv.lock.as_ref();
        self.cache
            .following(namespace, lock, tokens, most, following);
    }

    /// Puts the computed tokens of `request` into the cache; the request continues to use them.
    /// Returns the positions of the tokens that it had not put there before.
    pub fn insert(&mut self, request: &ActiveRequest, kv: &mut RequestKv) -> Range<usize> {
        let before = kv.cached();
        if self.reuse && kv.computed >= before + self.cache.page_size() {
            let tokens = &request.tokens[..kv.computed];
            let slots = &mut kv.slots[..kv.computed];
            let mut lock = self
                .cache
                .insert(&request.namespace, tokens, request.priority, slots);
            if let Some(window) = &mut kv.window {
                // The window slots before `from` belong to the cache already, or were given up.
                let from = window.from.max(before);
                let slots = &mut window.slots[from..kv.computed];
                self.cache.insert_window(&mut lock, from, slots);
            }
            kv.lock = Some(lock);
            // Tokens that the cache had already keep the cache's slots.
            let spans = kv.spans.iter_mut();
            spans.for_each(|span| span.invalidate_from(before));
        }
        before..kv.cached()
    }

    /// Slots for `tokens`, to which the caller writes those from `from` on. Nothing is evicted for them.
    ///
    /// # Errors
    /// The tokens before `from` are not cached, or too few slots are free.
    pub fn place(
        &mut self,
        namespace: &str,
        tokens: &[u32],
        from: usize,
    ) -> Result<RequestKv, TransferError> {
        let need = tokens.len() - from;
        let found = self.cache.peek(namespace, &tokens[..from]).tokens;
        // Window slots cannot be written from outside.
        if !self.reuse || self.windowed || found < from {
            return Err(TransferError::NotCached);
        }
        if need > self.cache.usage().free {
            return Err(TransferError::NoFreeSlots);
        }
        let Prefix {
            mut slots, lock, ..
        } = self.cache.match_prefix(namespace, &tokens[..from], 0);
        let allocated = self.cache.allocate(need, &mut slots);
        allocated.map_err(|_| TransferError::NoFreeSlots)?;
        Ok(RequestKv {
            slots,
            window: None,
            spans: Default::default(),
            lock: Some(lock),
            host: None,
            computed: tokens.len(),
        })
    }

    /// Gives the slots of `kv`, which hold `tokens`, to the cache.
    pub fn keep(&mut self, namespace: &str, tokens: &[u32], kv: &mut RequestKv) {
        kv.lock = Some(self.cache.insert(namespace, tokens, 0, &mut kv.slots));
    }

    /// All that the device has cached.
    pub fn contents(&self) -> Vec<CachedEdge> {
        self.cache.contents()
    }

    /// The slots of the longest cached prefix of `tokens`.
    pub fn slots_of(&self, namespace: &str, tokens: &[u32]) -> Vec<u32> {
        self.cache.slots_of(namespace, tokens)
    }

    /// Frees the slots that belong to the request, and unlocks those of the cache.
    pub fn release(&mut self, kv: RequestKv) {
        self.cache.free(&kv.slots[kv.cached()..]);
        self.cache.free_window(kv.own_window());
    }

    /// At most `nodes` nodes of the cache, with the prefixes that `requests` read.
    pub fn outline<'a>(
        &mut self,
        requests: impl Iterator<Item = &'a RequestKv>,
        nodes: usize,
    ) -> Outline {
        let locks = requests.filter_map(|kv| kv.lock.as_ref());
        self.cache.outline(locks, nodes)
    }

    /// The last `most` tokens of the prefix that ends with a `node`, and how many the node has.
    pub fn cached_prefix(&self, node: u64, most: usize) -> Option<(Vec<u32>, usize)> {
        self.cache.prefix_of(node, most)
    }

    /// Forgets all cached tokens that no request reads, including copies in the host's memory.
    /// Returns the number of slots that they had.
    pub fn flush(&mut self) -> usize {
        self.cache.flush()
    }

    /// Checks every invariant of tree and pool, given the slots of all requests.
    #[cfg(test)]
    pub fn check<'a>(&mut self, requests: impl Iterator<Item = &'a RequestKv>) {
        let (mut held, mut held_window) = (Vec::new(), Vec::new());
        for kv in requests {
            held.extend_from_slice(&kv.slots[kv.cached()..]);
            held_window.extend_from_slice(kv.own_window());
        }
        self.cache.check(&held, &held_window).unwrap();
    }
}
