//! Which cached leaf goes first.

use std::collections::BTreeSet;

use crate::node::{Node, NodeId};

/// The order in which unlocked leaves are evicted. Ties go to the least recently
/// used: recency is a counter, so that no two paths have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EvictionPolicy {
    /// Least recently matched or inserted first.
    #[default]
    Lru,
    /// Fewest uses first: the request that computed it, and each that matched it.
    Lfu,
    /// First inserted first, however often it was used since.
    Fifo,
    /// Segmented LRU: what was used once before what was used again.
    Slru,
    /// Lowest priority first, a prefix having the highest of its requests'.
    Priority,
}

impl EvictionPolicy {
    /// Uses from which on SLRU protects a prefix.
    const PROTECTED_USES: u64 = 2;

    /// Smaller is evicted earlier.
    fn rank(self, node: &Node) -> (u64, u64) {
        let first = match self {
            Self::Lru => 0,
            Self::Lfu => node.uses,
            Self::Fifo => node.created,
            Self::Slru => u64::from(node.uses >= Self::PROTECTED_USES),
            // From the smallest i32 at 0 upwards.
            Self::Priority => u64::from(node.priority.cast_unsigned() ^ (1 << 31)),
        };
        (first, node.last_used)
    }
}

/// The leaves that may be evicted, in order: each operation costs O(log leaves).
///
/// A leaf's rank must not change while it is in the set; whoever touches a leaf
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

    /// Whether it was not there yet.
    pub fn insert(&mut self, id: NodeId, node: &Node) -> bool {
        self.order.insert((self.policy.rank(node), id))
    }

    /// Whether it was there.
    pub fn remove(&mut self, id: NodeId, node: &Node) -> bool {
        self.order.remove(&(self.policy.rank(node), id))
    }

    pub fn contains(&self, id: NodeId, node: &Node) -> bool {
        self.order.contains(&(self.policy.rank(node), id))
    }

    pub fn first(&self) -> Option<NodeId> {
        self.order.first().map(|&(_, id)| id)
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }
}
