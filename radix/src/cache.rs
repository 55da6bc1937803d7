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
    /// The window slots of the last tokens of the prefix, as many as the next token attends.
    pub window: Vec<u32>,
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
    /// The window slots, if there are any.
    window: Option<SlotPool>,
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
            window: None,
        })
    }

    /// Adds `slots` window slots, for layers whose tokens attend `reach` positions before their own.
    /// They have ids of their own, from 0 on.
    pub fn with_window(mut self, slots: usize, reach: usize) -> Self {
        self.tree = self.tree.with_windows(reach);
        self.window = Some(SlotPool::new(slots));
        self
    }

    /// How much of `tokens` is cached. Changes nothing, not even recency.
    pub fn peek(&mut self, namespace: &str, tokens: &[u32]) -> Peeked {
        self.tree.peek(namespace, tokens)
    }

    /// The longest cached prefix of `tokens`, locked, for a request of `priority`.
    pub fn match_prefix(&mut self, namespace: &str, tokens: &[u32], priority: i32) -> Prefix {
        let (mut slots, mut window) = (Vec::new(), Vec::new());
        let mut lock = self
            .tree
            .match_prefix(namespace, tokens, priority, &mut slots);
        self.tree.lock_window(&mut lock, &mut window);
        Prefix {
            slots,
            window,
            lock,
        }
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
            self.take_back_window();
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

    /// Gives `window`, the window slots of the positions from `from` on, to the cache as far as
    /// `lock` covers them; see [`RadixTree::insert_window`]. Afterwards these belong to the cache,
    /// with duplicates replaced and freed.
    pub fn insert_window(&mut self, lock: &mut PrefixLock, from: usize, window: &mut [u32]) {
        let duplicates = self.tree.insert_window(lock, from, window);
        self.free_window(&duplicates);
    }

    /// Has `lock` protect no window slots before the position `from`; see
    /// [`RadixTree::shrink_window`].
    pub fn shrink_window(&mut self, lock: &mut PrefixLock, from: usize) {
        self.tree.shrink_window(lock, from);
    }

    /// The first of `tokens` computed tokens whose window slot is needed by later ones; see
    /// [`RadixTree::window_start`].
    pub fn window_start(&self, tokens: usize) -> usize {
        self.tree.window_start(tokens)
    }

    /// Appends `count` window slots to `slots`, taking those of cached prefixes if too few are free.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn allocate_window(
        &mut self,
        count: usize,
        slots: &mut Vec<u32>,
    ) -> Result<(), OutOfSlots> {
        let available = self.window_usage().available();
        let out_of_slots = OutOfSlots {
            wanted: count,
            available,
        };
        let Some(pool) = self.window.as_mut().filter(|_| count <= available) else {
            return Err(out_of_slots);
        };
        let missing = count.saturating_sub(pool.free_slots());
        if missing > 0 {
            self.tree.evict_window(missing, &mut self.evicted);
            pool.free(&self.evicted);
            self.evicted.clear();
        }
        match pool.allocate(count, slots) {
            true => Ok(()),
            false => Err(out_of_slots),
        }
    }

    /// Takes back window slots that belong to the caller.
    pub fn free_window(&mut self, slots: &[u32]) {
        if let Some(pool) = &mut self.window {
            pool.free(slots);
        }
    }

    /// Takes back the window slots of evicted tokens.
    fn take_back_window(&mut self) {
        if let (Some(pool), Some(windows)) = (&mut self.window, &mut self.tree.windows) {
            pool.free(&windows.freed);
            windows.freed.clear();
        }
    }

    /// Drops every prefix that no lock covers; returns how many slots that freed.
    pub fn flush(&mut self) -> usize {
        self.tree.evict(usize::MAX, &mut self.evicted);
        self.pool.free(&self.evicted);
        self.take_back_window();
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

    /// The states of the window slots; all zero without any.
    pub fn window_usage(&mut self) -> KvUsage {
        let Some(pool) = &self.window else {
            return KvUsage::default();
        };
        KvUsage {
            total: pool.total(),
            free: pool.free_slots(),
            evictable: self.tree.evictable_window(),
            protected: self.tree.protected_window(),
        }
    }

    /// Checks every invariant of the tree and the pools, given all slots and all window slots
    /// `held` by callers; O(size of the pools). For tests.
    ///
    /// # Errors
    /// The first violation found, in words.
    pub fn check(&mut self, held: &[u32], held_window: &[u32]) -> Result<(), Violation> {
        self.tree.check()?;
        let (usage, window_usage) = (self.usage(), self.window_usage());
        let nodes = || self.tree.nodes.values();
        let cached = nodes().flat_map(|node| &node.slots).chain(held);
        one_owner(&self.pool, usage, held.len(), cached)?;
        let Some(pool) = &self.window else {
            return Ok(());
        };
        let windows = nodes().filter_map(|node| node.window.as_ref());
        let cached = windows.flat_map(|window| &window.slots).chain(held_window);
        one_owner(pool, window_usage, held_window.len(), cached)
    }
}

/// Checks that each slot of `pool` is either free or once among `owned`, of which callers hold `held`.
fn one_owner<'a>(
    pool: &SlotPool,
    usage: KvUsage,
    held: usize,
    owned: impl Iterator<Item = &'a u32>,
) -> Result<(), Violation> {
    let sum = usage.available() + usage.protected + held;
    ensure(sum == usage.total, || format!("{usage:?} and {held} held"))?;
    let mut owners = vec![0; usage.total];
    owned.for_each(|&slot| owners[slot as usize] += 1);
    for (slot, owners) in (0..).zip(owners) {
        let owners = owners + usize::from(pool.is_free(slot));
        ensure(owners == 1, || format!("slot {slot} is in {owners} places"))?;
    }
    Ok(())
}
