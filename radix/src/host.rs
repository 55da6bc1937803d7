//! A second tier: what the device has is copied to the host's memory, before it is evicted or
//! as soon as it has been used often enough, and copied back when a request has it in its
//! prompt.
//!
//! The host has a tree and a pool of its own. A prefix may be in both tiers; what was
//! loaded back keeps its copy, and is not copied again when it is evicted again. Only
//! whole prefixes can be found, so that a copy of a leaf includes what is above it.

use crate::cache::{KvCache, KvUsage, Prefix};
use crate::check::Violation;
use crate::evict::EvictionPolicy;
use crate::lock::PrefixLock;
use crate::node::NodeId;
use crate::tree::{PageSizeError, RadixTree};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDirection {
    /// From the device's slots to the host's.
    ToHost,
    /// From the host's slots to the device's.
    ToDevice,
}

/// Slots to copy, `device[i]` from or to `host[i]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvCopy {
    pub direction: CopyDirection,
    pub device: Vec<u32>,
    pub host: Vec<u32>,
}

/// When what the device has is copied to the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostWritePolicy {
    /// When it is evicted.
    #[default]
    WriteBack,
    /// As soon as it is cached: nothing is copied when room is needed.
    WriteThrough,
    /// As soon as a second request uses it; what one request alone had is dropped.
    WriteThroughSelective,
}

impl HostWritePolicy {
    /// Uses from which on a prefix is copied without being evicted.
    fn written_from(self) -> Option<u64> {
        match self {
            Self::WriteBack => None,
            Self::WriteThrough => Some(1),
            Self::WriteThroughSelective => Some(2),
        }
    }
}

#[derive(Debug)]
pub(crate) struct HostTier {
    cache: KvCache,
    policy: HostWritePolicy,
    /// In the order in which they must be carried out.
    copies: Vec<KvCopy>,
    /// Tokens that may still be copied to the host, and to the device.
    left: [usize; 2],
}

impl HostTier {
    fn new(
        slots: usize,
        page_size: usize,
        eviction: EvictionPolicy,
        policy: HostWritePolicy,
    ) -> Result<Self, PageSizeError> {
        Ok(Self {
            cache: KvCache::new(slots, page_size, eviction)?,
            policy,
            copies: Vec::new(),
            left: [0; 2],
        })
    }

    /// `leaf` is about to be evicted: its last chance to be copied, if it is worth it.
    pub fn evicting(&mut self, tree: &RadixTree, leaf: NodeId) {
        if tree.nodes[leaf].uses >= self.policy.written_from().unwrap_or(0) {
            self.copy_prefix(tree, leaf);
        }
    }

    /// The prefix that `lock` covers was used.
    pub fn used(&mut self, tree: &RadixTree, lock: &PrefixLock) {
        // Whoever uses a node uses those above it, so that uses only fall on the way down.
        let Some(from) = self.policy.written_from() else {
            return;
        };
        let mut node = lock.node();
        while let Some(id) = node {
            if tree.nodes[id].uses >= from {
                return self.copy_prefix(tree, id);
            }
            node = tree.nodes[id].parent();
        }
    }

    /// Copies the prefix that ends with `node`, as far as the host lacks it, has room for
    /// it, and may copy: its beginning first, without which the rest is of no use.
    fn copy_prefix(&mut self, tree: &RadixTree, node: NodeId) {
        let [left, _] = self.left;
        if left == 0 || tree.nodes[node].tokens.is_empty() {
            return;
        }
        let path = tree.path(node);
        let present = self.cache.peek(&path.namespace, &path.tokens).tokens;
        if present == path.tokens.len() {
            return;
        }
        let prefix = &path.tokens[..present];
        let Prefix { mut slots, lock } =
            self.cache
                .match_prefix(&path.namespace, prefix, path.priority);
        let room = self.cache.usage().available();
        let missing = path.tokens.len() - present;
        let page = self.cache.page_size();
        let count = missing.min(left).min(room) / page * page;
        if count == 0 || self.cache.allocate(count, &mut slots).is_err() {
            return;
        }
        let end = present + count;
        let copied = slots[present..].to_vec();
        drop(self.cache.insert(
            &path.namespace,
            &path.tokens[..end],
            path.priority,
            &mut slots,
        ));
        drop(lock);
        self.left[0] -= count;
        self.copies.push(KvCopy {
            direction: CopyDirection::ToHost,
            device: path.slots[present..end].to_vec(),
            host: copied,
        });
    }

    pub fn check(&mut self) -> Result<(), Violation> {
        self.cache.check(&[])
    }
}

impl KvCache {
    /// Adds a second tier of `slots` slots with the page size of this one, which is written
    /// by `policy`.
    ///
    /// # Errors
    /// As [`KvCache::new`].
    pub fn with_host(
        mut self,
        slots: usize,
        eviction: EvictionPolicy,
        policy: HostWritePolicy,
    ) -> Result<Self, PageSizeError> {
        let host = HostTier::new(slots, self.page_size(), eviction, policy)?;
        self.host = Some(Box::new(host));
        Ok(self)
    }

    /// From here on, at most `tokens` are copied to the host and as many to the device.
    pub fn allow_copies(&mut self, tokens: usize) {
        if let Some(host) = &mut self.host {
            host.left = [tokens; 2];
        }
    }

    /// How much of `tokens` the host has.
    pub fn peek_host(&mut self, namespace: &str, tokens: &[u32]) -> usize {
        match &mut self.host {
            Some(host) => host.cache.peek(namespace, tokens).tokens,
            None => 0,
        }
    }

    /// The longest prefix of `tokens` that the host has, in the host's slots; they stay
    /// its own, and have what they have, as long as the lock lives.
    pub fn match_host(&mut self, namespace: &str, tokens: &[u32], priority: i32) -> Option<Prefix> {
        let host = self.host.as_mut()?;
        Some(host.cache.match_prefix(namespace, tokens, priority))
    }

    /// Whether something is to be copied.
    pub fn has_copies(&self) -> bool {
        self.host
            .as_ref()
            .is_some_and(|host| !host.copies.is_empty())
    }

    /// Has the locked slots `host` copied to `device`, which the caller holds, as many as
    /// may be copied; returns how many.
    pub fn load(&mut self, host: &[u32], device: &[u32]) -> usize {
        let Some(tier) = &mut self.host else { return 0 };
        let count = tier.left[1].min(host.len()).min(device.len());
        if count > 0 {
            tier.left[1] -= count;
            tier.copies.push(KvCopy {
                direction: CopyDirection::ToDevice,
                device: device[..count].to_vec(),
                host: host[..count].to_vec(),
            });
        }
        count
    }

    /// What is to be copied, in this order, before anybody writes to a slot of the device:
    /// what is evicted can be overwritten as soon as this returns.
    pub fn take_copies(&mut self) -> Vec<KvCopy> {
        match &mut self.host {
            Some(host) => std::mem::take(&mut host.copies),
            None => Vec::new(),
        }
    }

    /// Drops every prefix of the host that no lock covers; returns how many slots that
    /// were.
    pub fn forget_host(&mut self) -> usize {
        self.host.as_mut().map_or(0, |host| host.cache.flush())
    }

    /// Where the host's slots are; all zero without a host.
    pub fn host_usage(&mut self) -> KvUsage {
        let host = self.host.as_mut();
        host.map_or(KvUsage::default(), |host| host.cache.usage())
    }
}
