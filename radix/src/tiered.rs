//! The device's cache together with an optional second tier in the host's memory.
//!
//! Prefixes are copied from the device to the host before they are evicted, or as soon as they
//! have been used often enough, and copied back when a request has them in its prompt.

use hearth_forward::KvCopy;

use crate::cache::{KvCache, KvUsage, OutOfSlots, Prefix};
use crate::check::Violation;
use crate::contents::CachedEdge;
use crate::evict::EvictionPolicy;
use crate::host::{HostTier, HostWritePolicy};
use crate::lock::PrefixLock;
use crate::outline::Outline;
use crate::page::{CacheChange, PageChange, Tier};
use crate::tree::{PageSizeError, Peeked, RadixTree};

/// The KV slots of the device, and copies of cached prefixes in slots of the host.
///
/// Methods without `host` in their name work on the device's slots, as those of [`KvCache`] do.
/// No data moves here: [`take_copies`](Self::take_copies) returns the copies that the caller
/// has to make.
#[derive(Debug)]
pub struct TieredCache {
    device: KvCache,
    host: Option<HostTier>,
    /// True if everything was forgotten since changes were last taken; the trees' changes came
    /// afterwards.
    cleared: bool,
}

impl TieredCache {
    /// A cache of `slots` slots on the device, without a host tier.
    ///
    /// # Errors
    /// If `page_size` is not a power of two from 1 to 64.
    pub fn new(
        slots: usize,
        page_size: usize,
        policy: EvictionPolicy,
    ) -> Result<Self, PageSizeError> {
        Ok(Self {
            device: KvCache::new(slots, page_size, policy)?,
            host: None,
            cleared: false,
        })
    }

    /// Adds a host tier of `slots` slots with the same page size, to which prefixes are
    /// copied by `policy`.
    ///
    /// # Errors
    /// As [`TieredCache::new`].
    pub fn with_host(
        mut self,
        slots: usize,
        eviction: EvictionPolicy,
        policy: HostWritePolicy,
    ) -> Result<Self, PageSizeError> {
        self.host = Some(HostTier::new(slots, self.page_size(), eviction, policy)?);
        Ok(self)
    }

    /// Adds window slots on the device; see [`KvCache::with_window`]. They have no copies on the host.
    pub fn with_window(mut self, slots: usize, reach: usize) -> Self {
        self.device = self.device.with_window(slots, reach);
        self
    }

    /// How much of `tokens` the device has cached. Changes nothing, not even recency.
    pub fn peek(&mut self, namespace: &str, tokens: &[u32]) -> Peeked {
        self.device.peek(namespace, tokens)
    }

    /// Appends to `following` what the device's cache has after `tokens`; see
    /// [`RadixTree::following`](crate::RadixTree::following).
    pub fn following(
        &self,
        namespace: &str,
        lock: Option<&PrefixLock>,
        tokens: &[u32],
        most: usize,
        following: &mut Vec<u32>,
    ) {
        self.device
            .following(namespace, lock, tokens, most, following);
    }

    /// The longest prefix of `tokens` that the device has cached, locked, for a request of
    /// `priority`.
    pub fn match_prefix(&mut self, namespace: &str, tokens: &[u32], priority: i32) -> Prefix {
        let prefix = self.device.match_prefix(namespace, tokens, priority);
        if let Some(host) = &mut self.host {
            host.after_use(&self.device.tree, &prefix.lock);
        }
        prefix
    }

    /// The longest prefix of `tokens` that the host has, in the host's slots; `None` without a
    /// host tier. The slots belong to the host tier, and keep their contents as long as the
    /// lock lives.
    pub fn match_host(&mut self, namespace: &str, tokens: &[u32], priority: i32) -> Option<Prefix> {
        let host = self.host.as_mut()?;
        Some(host.cache.match_prefix(namespace, tokens, priority))
    }

    /// Appends `count` of the device's slots to `slots`; see [`KvCache::allocate`].
    ///
    /// # Errors
    /// If there are not enough slots; then nothing was evicted and nothing appended.
    pub fn allocate(&mut self, count: usize, slots: &mut Vec<u32>) -> Result<(), OutOfSlots> {
        let Self { device, host, .. } = self;
        device.allocate_with(count, slots, |tree, leaf| {
            if let Some(host) = host {
                host.before_eviction(tree, leaf);
            }
        })
    }

    /// Gives `slots` of the device, which hold `tokens`, to the cache; see
    /// [`KvCache::insert`].
    pub fn insert(
        &mut self,
        namespace: &str,
        tokens: &[u32],
        priority: i32,
        slots: &mut [u32],
    ) -> PrefixLock {
        let lock = self.device.insert(namespace, tokens, priority, slots);
        if let Some(host) = &mut self.host {
            host.after_use(&self.device.tree, &lock);
        }
        lock
    }

    /// Gives window slots to the cache; see [`KvCache::insert_window`].
    pub fn insert_window(&mut self, lock: &mut PrefixLock, from: usize, window: &mut [u32]) {
        self.device.insert_window(lock, from, window);
    }

    /// Has `lock` protect no window slots before the position `from`; see
    /// [`RadixTree::shrink_window`].
    pub fn shrink_window(&mut self, lock: &mut PrefixLock, from: usize) {
        self.device.shrink_window(lock, from);
    }

    /// The first of `tokens` computed tokens whose window slot is needed by later ones; see
    /// [`RadixTree::window_start`].
    pub fn window_start(&self, tokens: usize) -> usize {
        self.device.window_start(tokens)
    }

    /// Appends `count` window slots to `slots`; see [`KvCache::allocate_window`].
    ///
    /// # Errors
    /// If there are not enough; then nothing was evicted and nothing appended.
    pub fn allocate_window(
        &mut self,
        count: usize,
        slots: &mut Vec<u32>,
    ) -> Result<(), OutOfSlots> {
        self.device.allocate_window(count, slots)
    }

    /// Takes back window slots that belong to the caller.
    pub fn free_window(&mut self, slots: &[u32]) {
        self.device.free_window(slots);
    }

    /// The states of the window slots; all zero without any.
    pub fn window_usage(&mut self) -> KvUsage {
        self.device.window_usage()
    }

    /// Takes back slots of the device that belong to the caller.
    pub fn free(&mut self, slots: &[u32]) {
        self.device.free(slots);
    }

    /// Lets at most `tokens` more tokens be copied to the host, and as many to the device,
    /// whatever was allowed before.
    pub fn allow_copies(&mut self, tokens: usize) {
        if let Some(host) = &mut self.host {
            host.to_host_budget = tokens;
            host.to_device_budget = tokens;
        }
    }

    /// Decides to copy the locked slots `host` to the slots `device`, which the caller holds,
    /// as many as may be copied; returns how many.
    pub fn load(&mut self, host: &[u32], device: &[u32]) -> usize {
        let tier = self.host.as_mut();
        tier.map_or(0, |tier| tier.load(host, device))
    }

    /// Whether there are copies to make.
    pub fn has_copies(&self) -> bool {
        let host = self.host.as_ref();
        host.is_some_and(|host| !host.copies.is_empty())
    }

    /// The copies to make, in this order, before anything else is written to a slot of the
    /// device: evicted slots may be handed out again as soon as they were evicted.
    pub fn take_copies(&mut self) -> Vec<KvCopy> {
        match &mut self.host {
            Some(host) => std::mem::take(&mut host.copies),
            None => Vec::new(),
        }
    }

    /// Drops every prefix that no lock covers, from both tiers; returns how many slots that
    /// freed.
    pub fn flush(&mut self) -> usize {
        let flushed = self.forget_host() + self.device.flush();
        let is_empty = self.trees().iter().all(|(_, tree)| tree.nodes.is_empty());
        if is_empty && self.device.tree.changes.is_some() {
            self.cleared = true;
            self.trees_mut()
                .for_each(|(_, tree)| drop(tree.take_changes()));
        }
        flushed
    }

    /// Records all changes of what is cached from now on, until
    /// [`take_changes`](Self::take_changes).
    ///
    /// # Panics
    /// If anything is cached already.
    pub fn record_changes(&mut self) {
        self.trees_mut().for_each(|(_, tree)| tree.record_changes());
    }

    /// The changes since the last call; empty unless they are recorded. Those of one tier are in
    /// order.
    pub fn take_changes(&mut self) -> Vec<CacheChange> {
        let cleared = std::mem::take(&mut self.cleared);
        let mut changes = Vec::new();
        changes.extend(cleared.then_some(CacheChange::Cleared));
        for (tier, tree) in self.trees_mut() {
            let pages = tree.take_changes().into_iter();
            changes.extend(pages.map(|change| CacheChange::Pages(tier, change)));
        }
        changes
    }

    /// All that is cached, as changes of an empty cache; nothing unless changes are recorded.
    pub fn all_pages(&self) -> Vec<CacheChange> {
        let pages = |(tier, tree): &(Tier, &RadixTree)| -> Vec<_> {
            let pages: Vec<PageChange> = tree.all_pages();
            let of_tier = |change| CacheChange::Pages(*tier, change);
            pages.into_iter().map(of_tier).collect()
        };
        self.trees().iter().flat_map(pages).collect()
    }

    fn trees(&self) -> Vec<(Tier, &RadixTree)> {
        let host = self
            .host
            .as_ref()
            .map(|host| (Tier::Host, &host.cache.tree));
        let device = (Tier::Device, &self.device.tree);
        std::iter::once(device).chain(host).collect()
    }

    fn trees_mut(&mut self) -> impl Iterator<Item = (Tier, &mut RadixTree)> {
        let host = self.host.as_mut();
        let host = host.map(|host| (Tier::Host, &mut host.cache.tree));
        std::iter::once((Tier::Device, &mut self.device.tree)).chain(host)
    }

    /// Drops every prefix of the host that no lock covers; returns how many slots that freed.
    pub fn forget_host(&mut self) -> usize {
        self.host.as_mut().map_or(0, |host| host.cache.flush())
    }

    /// A part of the device's tree, with the paths of `locks`; see
    /// [`RadixTree::outline`](crate::RadixTree::outline). Leaves that would make room for
    /// a twentieth of the pool are evicted soon.
    pub fn outline<'a>(
        &mut self,
        locks: impl Iterator<Item = &'a PrefixLock>,
        most: usize,
    ) -> Outline {
        let KvUsage { total, free, .. } = self.device.usage();
        let soon = (total / 20).saturating_sub(free);
        self.device.tree.outline(locks, most, soon)
    }

    /// The tokens that end with a node of the device's tree; see
    /// [`RadixTree::prefix_of`](crate::RadixTree::prefix_of).
    pub fn prefix_of(&self, id: u64, most: usize) -> Option<(Vec<u32>, usize)> {
        self.device.tree.prefix_of(id, most)
    }

    /// All that the device has cached; see [`RadixTree::contents`](crate::RadixTree::contents).
    pub fn contents(&self) -> Vec<CachedEdge> {
        self.device.tree.contents()
    }

    /// The device's slots of the longest cached prefix of `tokens`; see
    /// [`RadixTree::slots_of`](crate::RadixTree::slots_of).
    pub fn slots_of(&self, namespace: &str, tokens: &[u32]) -> Vec<u32> {
        self.device.tree.slots_of(namespace, tokens)
    }

    pub fn page_size(&self) -> usize {
        self.device.page_size()
    }

    /// The states of the device's slots.
    pub fn usage(&mut self) -> KvUsage {
        self.device.usage()
    }

    /// The states of the host's slots; all zero without a host tier.
    pub fn host_usage(&mut self) -> KvUsage {
        let host = self.host.as_mut();
        host.map_or(KvUsage::default(), |host| host.cache.usage())
    }

    /// Checks every invariant of both tiers, given all of the device's slots and window slots `held`
    /// by callers; O(size of the pools). For tests.
    ///
    /// # Errors
    /// The first violation found, in words.
    pub fn check(&mut self, held: &[u32], held_window: &[u32]) -> Result<(), Violation> {
        self.device.check(held, held_window)?;
        match &mut self.host {
            Some(host) => host.cache.check(&[], &[]),
            None => Ok(()),
        }
    }
}
