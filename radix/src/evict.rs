//! Which cached leaf goes first.

use std::collections::BTreeSet;

use crate::node::{Node, NodeId};

/// The order in which unlocked leaves are evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EvictionPolicy {
    /// Least recently matched or inserted first.
    #[default]
    Lru,
}

impl EvictionPolicy {
    /// Smaller is evicted earlier.
    fn rank(self, node: &Node) -> u64 {
        match self {
            Self::Lru => node.last_used,
        }
    }
}

/// The leaves that may be evicted, in order: each operation costs O(log leaves).
///
/// A leaf's rank must not change while it is in the set; whoever touches a leaf
/// removes it first.
#[derive(Debug, Default)]
pub(crate) struct Leaves {
    policy: EvictionPolicy,
    order: BTreeSet<(u64, NodeId)>,
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
