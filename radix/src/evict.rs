//! The order in which cached leaves are evicted.

use std::collections::BTreeSet;

use crate::node::{Node, NodeId};

/// Which unlocked leaf is evicted first. Among equals, the least recently used leaf is evicted
/// first; recency is a counter, so that no two leaves have the same recency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EvictionPolicy {
    /// Least recently matched or inserted first.
    #[default]
    Lru,
    /// Fewest uses first: one use for the request that computed the prefix, and one for each
    /// request that matched it.
    Lfu,
    /// First inserted first, however often it was used since.
    Fifo,
    /// Segmented LRU: prefixes that were used once before those that were used again.
    Slru,
    /// Lowest priority first. A prefix has the highest priority of the requests that used it.
    Priority,
}

impl EvictionPolicy {
    /// SLRU protects a prefix that has at least this many uses.
    const PROTECTED_USES: u64 = 2;

    /// The leaf with the smallest rank is evicted first.
    fn rank(self, node: &Node) -> (u64, u64) {
        let first = match self {
            Self::Lru => 0,
            Self::Lfu => node.uses,
            Self::Fifo => node.created,
            Self::Slru => u64::from(node.uses >= Self::PROTECTED_USES),
            // Maps i32 to u32 in order: the smallest i32 becomes 0.
            Self::Priority => u64::from(node.priority.cast_unsigned() ^ (1 << 31)),
        };
        (first, node.last_used)
    }
}

/// The leaves that may be evicted, in order. Each operation costs O(log leaves).
///
/// A leaf's rank must not change while the leaf is in the set: code that changes a leaf
/// removes it first.
#[derive(Debug, Default)]
pub(crate) struct Leaves {
    policy: EvictionPolicy,
    order: BTreeSet<((u64, u64), NodeId)>,
}

impl Leaves {
    pub fn new(policy: EvictionPolicy) -> Self {
        Self {
            policy,
            order: BTreeSet::new(),
        }
    }

    /// Returns whether the leaf was not in the set yet.
    pub fn insert(&mut self, id: NodeId, node: &Node) -> bool {
        self.order.insert((self.policy.rank(node), id))
    }

    /// Returns whether the leaf was in the set.
    pub fn remove(&mut self, id: NodeId, node: &Node) -> bool {
        self.order.remove(&(self.policy.rank(node), id))
    }

    pub fn contains(&self, id: NodeId, node: &Node) -> bool {
        self.order.contains(&(self.policy.rank(node), id))
    }

    pub fn first(&self) -> Option<NodeId> {
        self.order.first().map(|&(_, id)| id)
    }

    /// The leaves from the first to be evicted to the last.
    pub fn in_order(&self) -> impl DoubleEndedIterator<Item = NodeId> {
        self.order.iter().map(|&(_, id)| id)
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }
}
