//! The window slots of all nodes of a tree; see `window.rs`.

use std::collections::BTreeSet;

use crate::node::NodeId;

/// The window slots of all nodes together.
#[derive(Debug)]
pub(crate) struct Windows {
    /// How many positions before its own a token attends.
    pub reach: usize,
    /// The nodes with window slots that no lock covers, least recently used first.
    pub idle: BTreeSet<(u64, NodeId)>,
    /// Window slots that no lock covers.
    pub evictable: usize,
    /// Window slots under at least one lock.
    pub protected: usize,
    /// Window slots of tokens that were evicted.
    pub freed: Vec<u32>,
}

impl Windows {
    /// No window slots, for layers whose tokens attend `reach` positions before their own.
    pub fn new(reach: usize) -> Self {
        Self {
            reach,
            idle: BTreeSet::new(),
            evictable: 0,
            protected: 0,
            freed: Vec::new(),
        }
    }
}
