//! The tree and the pool together: who has which slot.

use crate::check::{Violation, ensure};
use crate::evict::EvictionPolicy;
use crate::host::HostTier;
use crate::lock::PrefixLock;
use crate::pool::SlotPool;
use crate::tree::{PageSizeError, Peeked, RadixTree};

/// A cached prefix of a prompt.
#[derive(Debug)]
pub struct Prefix {
    /// One slot per token of the prefix, in order. They stay the cache's.
    pub slots: Vec<u32>,
    pub lock: PrefixLock,
}

/// There are fewer free and evictable slots than were asked for.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{wanted} KV slots wanted, {available} free or evictable")]
pub struct OutOfSlots {
    pub wanted: usize,
    pub available: usize,
}

/// Where the slots are; what is in none of the three is held by requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvUsage {
    pub total: usize,
    pub free: usize,
    pub evictable: usize,
    pub protected: usize,
}

impl KvUsage {
    /// Slots that can be had without taking any from a request.
    pub fn available(&self) -> usize {
        self.free + self.evictable
    }
}

/// All KV slots of a model: free, cached, or handed out.
#[derive(Debug)]
pub struct KvCache {
    pool: SlotPool,
    tree: RadixTree,
    evicted: Vec<u32>,
    /// Keeps copies.
    pub(crate) host: Option<Box<HostTier>>,
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
            host: None,
        })
    }

    /// How much of `tokens` is cached; changes nothing.
    pub fn peek(&mut self, namespace: &str, tokens: &[u32]) -> Peeked {
        self.tree.peek(namespace, tokens)
    }

    /// The longest cached prefix of `tokens`, locked, for a request of `priority`.
    pub fn match_prefix(&mut self, namespace: &str, tokens: &[u32], priority: i32) -> Prefix {
        let mut slots = Vec::new();
        let lock = self
            .tree
            .match_prefix(namespace, tokens, priority, &mut slots);
        if let Some(host) = &mut self.host {
            host.used(&self.tree, &lock);
        }
        Prefix { slots, lock }
    }

    /// Appends `count` slots to `slots`, evicting cached prefixes if it must.
    /// They are the caller's until it frees or inserts them.
    ///
    /// # Errors
    /// If there is no room; then nothing was evicted and nothing appended.
    pub fn allocate(&mut self, count: usize, slots: &mut Vec<u32>) -> Result<(), OutOfSlots> {
        let missing = count.saturating_sub(self.pool.free_slots());
        if missing > 0 {
            let available = self.usage().available();
            if count > available {
                return Err(OutOfSlots {
                    wanted: count,
                    available,
                });
            }
            let Self { host, evicted, .. } = self;
            self.tree.evict_telling(missing, evicted, |tree, leaf| {
                if let Some(host) = host {
                    host.evicting(tree, leaf);
                }
            });
            self.pool.free(&self.evicted);
            self.evicted.clear();
        }
        let allocated = self.pool.allocate(count, slots);
        assert!(allocated, "eviction frees what it counts as evictable");
        Ok(())
    }

    /// Gives `slots`, which hold `tokens`, to the cache; see
    /// [`RadixTree::insert`]. Of them, the first `lock.tokens()` are the cache's
    /// afterwards, duplicates replaced and freed; the rest stay the caller's.
    pub fn insert(
        &mut self,
        namespace: &str,
        tokens: &[u32],
        priority: i32,
        slots: &mut [u32],
    ) -> PrefixLock {
        let insertion = self.tree.insert(namespace, tokens, priority, slots);
        self.pool.free(&insertion.duplicates);
        if let Some(host) = &mut self.host {
            host.used(&self.tree, &insertion.lock);
        }
        insertion.lock
    }

    /// Drops every prefix that no lock covers, from the host too; returns how many slots
    /// that were.
    pub fn flush(&mut self) -> usize {
        let of_host = self.forget_host();
        self.tree.evict(usize::MAX, &mut self.evicted);
        self.pool.free(&self.evicted);
        let flushed = self.evicted.len();
        self.evicted = Vec::new();
        flushed + of_host
    }

    /// Takes back slots that the caller holds.
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

    /// Checks every invariant of tree and pool against the slots that the
    /// callers know they hold; O(size of the pool). For tests.
    ///
    /// # Errors
    /// The first violation found, in words.
    pub fn check(&mut self, held: &[u32]) -> Result<(), Violation> {
        self.tree.check()?;
        if let Some(host) = &mut self.host {
            host.check()?;
        }
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
