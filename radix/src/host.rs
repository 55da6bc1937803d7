//! The host tier: prefixes in slots of the host's memory, and the copies that fill them.
//!
//! The host tier has a tree and a pool of its own. A prefix may be in both tiers; a prefix
//! that was loaded back keeps its copy on the host, and is not copied again when it is evicted
//! again. Only whole prefixes can be found, so a copy of a leaf includes the path above it.

use hearth_forward::{CopyDirection, KvCopy};

use crate::cache::{KvCache, Prefix};
use crate::evict::EvictionPolicy;
use crate::lock::PrefixLock;
use crate::node::NodeId;
use crate::tree::{PageSizeError, RadixTree};

/// When cached tokens are copied from the device to the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostWritePolicy {
    /// When they are evicted.
    #[default]
    WriteBack,
    /// As soon as they are cached, so that nothing is copied when room is needed.
    WriteThrough,
    /// As soon as a second request uses them. Tokens that only one request used are dropped
    /// when they are evicted.
    WriteThroughSelective,
}

impl HostWritePolicy {
    /// A prefix with at least this many uses is copied before it is evicted; `None` if
    /// prefixes are copied only when they are evicted.
    fn early_copy_uses(self) -> Option<u64> {
        match self {
            Self::WriteBack => None,
            Self::WriteThrough => Some(1),
            Self::WriteThroughSelective => Some(2),
        }
    }
}

#[derive(Debug)]
pub(crate) struct HostTier {
    pub cache: KvCache,
    policy: HostWritePolicy,
    /// Copies that were decided and not taken yet, in the order in which they must be made.
    pub copies: Vec<KvCopy>,
    /// How many tokens may still be copied to the host.
    pub to_host_budget: usize,
    /// How many tokens may still be copied to the device.
    pub to_device_budget: usize,
}

impl HostTier {
    pub fn new(
        slots: usize,
        page_size: usize,
        eviction: EvictionPolicy,
        policy: HostWritePolicy,
    ) -> Result<Self, PageSizeError> {
        Ok(Self {
            cache: KvCache::new(slots, page_size, eviction)?,
            policy,
            copies: Vec::new(),
            to_host_budget: 0,
            to_device_budget: 0,
        })
    }

    /// Copies the prefix that ends with `leaf`, which the device's `tree` is about to evict,
    /// if it has enough uses for the policy.
    pub fn before_eviction(&mut self, tree: &RadixTree, leaf: NodeId) {
        if tree.nodes[leaf].uses >= self.policy.early_copy_uses().unwrap_or(0) {
            self.copy_prefix(tree, leaf);
        }
    }

    /// Copies the part of a prefix that the policy copies before eviction; `lock` covers the
    /// prefix, which was just used.
    pub fn after_use(&mut self, tree: &RadixTree, lock: &PrefixLock) {
        let Some(least) = self.policy.early_copy_uses() else {
            return;
        };
        // A use of a node is a use of every node above it, so the count of uses never grows
        // on the way down: the first node found from below ends the longest prefix to copy.
        let mut node = lock.node();
        while let Some(id) = node {
            if tree.nodes[id].uses >= least {
                return self.copy_prefix(tree, id);
            }
            node = tree.nodes[id].parent();
        }
    }

    /// Copies the tokens that the host lacks of the prefix that ends with `node`, as many as
    /// there is room and budget for. It copies the first of them first: a later part of a
    /// prefix cannot be found without the earlier part.
    fn copy_prefix(&mut self, tree: &RadixTree, node: NodeId) {
        if self.to_host_budget == 0 || tree.nodes[node].tokens.is_empty() {
            return;
        }
        let path = tree.path(node);
        let present = self.cache.peek(&path.namespace, &path.tokens).tokens;
        if present == path.tokens.len() {
            return;
        }
        let prefix = &path.tokens[..present];
        let Prefix {
            mut slots, lock, ..
        } = self
            .cache
            .match_prefix(&path.namespace, prefix, path.priority);
        let room = self.cache.usage().available();
        let missing = path.tokens.len() - present;
        let page = self.cache.page_size();
        let count = missing.min(self.to_host_budget).min(room) / page * page;
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
        self.to_host_budget -= count;
        self.copies.push(KvCopy {
            direction: CopyDirection::ToHost,
            device: path.slots[present..end].to_vec(),
            host: copied,
        });
    }

    /// Decides to copy the locked slots `host` to the slots `device`, as many as the budget
    /// allows; returns how many.
    pub fn load(&mut self, host: &[u32], device: &[u32]) -> usize {
        let count = self.to_device_budget.min(host.len()).min(device.len());
        if count > 0 {
            self.to_device_budget -= count;
            self.copies.push(KvCopy {
                direction: CopyDirection::ToDevice,
                device: device[..count].to_vec(),
                host: host[..count].to_vec(),
            });
        }
        count
    }
}
