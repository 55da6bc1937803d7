//! The tree and the pool of one tier together: which slots are free, cached or handed out.

use crate::check::{Violation, ensure};
use crate::evict::EvictionPolicy;
use crate::lock::PrefixLock;
use crate::node::NodeId;
use crate::pool::SlotPool;
use crate::tree::{PageSizeError, Peeked, RadixTree};

/// A cached prefix of a prompt.
#[derive(Debug)]
pub struct Prefix {
    /// One slot per token of the prefix, in order. They still belong to the cache.
    pub slots: Vec<u32>,
    /// Keeps the slots from being evicted.
    pub lock: PrefixLock,
}

/// An allocation asked for more slots than are free or evictable.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{wanted} KV slots wanted, {available} free or evictable")]
pub struct OutOfSlots {
    pub wanted: usize,
    pub available: usize,
}

/// Counts of slots by state. The slots that are neither free nor evictable nor protected are
/// held by requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvUsage {
    pub total: usize,
    pub free: usize,
    /// Cached, and covered by no lock.
    pub evictable: usize,
    /// Cached, and covered by at least one lock.
    pub protected: usize,
}

impl KvUsage {
    /// Slots that can be allocated without taking any from a request.
    pub fn available(&self) -> usize {
        self.free + self.evictable
    }
}

/// All KV slots of one tier: free, cached, or handed out to requests.
#[derive(Debug)]
pub struct KvCache {
    pool: SlotPool,
    pub(crate) tree: RadixTree,
    /// Evicted slots on their way to the pool; kept so that its allocation is reused.
    evicted: Vec<u32>,
}

impl KvCache {
    /// # Errors
    /// If `page_size` is not a power of two from 1 to 64.
    pub fn new(
        slots: usize,
        page_size: usize,
        policy: EvictionPolicy,
    ) -> Result<Self, PageSizeError> {
        let tree = RadixTree::new(page_size, policy)?;
        Ok(Self {
            pool: SlotPool::new(slots),
            tree,
            evicted: Vec::new(),
        })
    }

    /// How much of `tokens` is cached. Changes nothing, not even recency.
    pub fn peek(&mut self, namespace: &str, tokens: &[u32]) -> Peeked {
        self.tree.peek(namespace, tokens)
    }

    /// The longest cached prefix of `tokens`, locked, for a request of `priority`.
    pub fn match_prefix(&mut self, namespace: &str, tokens: &[u32], priority: i32) -> Prefix {
        let mut slots = Vec::new();
        let lock = self
            .tree
            .match_prefix(namespace, tokens, priority, &mut slots);
        Prefix { slots, lock }
    }

    /// Appends to `following` what the cache has after `tokens`; see [`RadixTree::following`].
    pub fn following(
        &self,
        namespace: &str,
        lock: Option<&PrefixLock>,
        tokens: &[u32],
        most: usize,
        following: &mut Vec<u32>,
    ) {
        self.tree
            .following(namespace, lock, tokens, most, following);
    }

    /// Appends `count` slots to `slots`, evicting cached prefixes if too few slots are free.
    /// The slots belong to the caller until it frees or inserts them.
    ///
    /// # Errors
    /// If there are not enough slots; then nothing was evicted and nothing appended.
    pub fn allocate(&mut self, count: usize, slots: &mut Vec<u32>) -> Result<(), OutOfSlots> {
        self.allocate_with(count, slots, |_, _| {})
    }

    /// Does what [`allocate`](Self::allocate) does, and calls `before_eviction` with each leaf
    /// that is about to lose slots.
    pub(crate) fn allocate_with(
        &mut self,
        count: usize,
        slots: &mut Vec<u32>,
        before_eviction: impl FnMut(&RadixTree, NodeId),
    ) -> Result<(), OutOfSlots> {
        let missing = count.saturating_sub(self.pool.free_slots());
        if missing > 0 {
            let available = self.usage().available();
            if count > available {
                return Err(OutOfSlots {
                    wanted: count,
                    available,
                });
            }
            self.tree
                .evict_with(missing, &mut self.evicted, before_eviction);
            self.pool.free(&self.evicted);
            self.evicted.clear();
        }
        let allocated = self.pool.allocate(count, slots);
        assert!(
            allocated,
            "eviction frees every slot that was counted as evictable"
        );
        Ok(())
    }

    /// Gives `slots`, which hold `tokens`, to the cache; see [`RadixTree::insert`].
    ///
    /// Afterwards the first `lock.tokens()` of them belong to the cache, with duplicates
    /// replaced and freed; the rest still belong to the caller.
    pub fn insert(
        &mut self,
        namespace: &str,
        tokens: &[u32],
        priority: i32,
        slots: &mut [u32],
    ) -> PrefixLock {
        let insertion = self.tree.insert(namespace, tokens, priority, slots);
        self.pool.free(&insertion.duplicates);
        insertion.lock
    }

    /// Drops every prefix that no lock covers; returns how many slots that freed.
    pub fn flush(&mut self) -> usize {
        self.tree.evict(usize::MAX, &mut self.evicted);
        self.pool.free(&self.evicted);
        let flushed = self.evicted.len();
        self.evicted = Vec::new();
        flushed
    }

    /// Takes back slots that belong to the caller.
    pub fn free(&mut self, slots: &[u32]) {
        self.pool.free(slots);
    }

    pub fn page_size(&self) -> usize {
        self.tree.page_size()
    }

    pub fn usage(&mut self) -> KvUsage {
        KvUsage {
            total: self.pool.total(),
            free: self.pool.free_slots(),
            evictable: self.tree.evictable(),
            protected: self.tree.protected(),
        }
    }

    /// Checks every invariant of the tree and the pool, given all slots `held` by callers;
    /// O(size of the pool). For tests.
    ///
    /// # Errors
    /// The first violation found, in words.
    pub fn check(&mut self, held: &[u32]) -> Result<(), Violation> {
        self.tree.check()?;
        let usage = self.usage();
        let sum = usage.available() + usage.protected + held.len();
        ensure(sum == usage.total, || {
            format!("{usage:?} and {} held", held.len())
        })?;
        let mut owners = vec![0; usage.total];
        let cached = self.tree.nodes.values().flat_map(|node| &node.slots);
        cached
            .chain(held)
            .for_each(|&slot| owners[slot as usize] += 1);
        for (slot, owners) in (0..).zip(owners) {
            let owners = owners + usize::from(self.pool.is_free(slot));
            ensure(owners == 1, || format!("slot {slot} is in {owners} places"))?;
        }
        Ok(())
    }
}
