//! Locks on cached prefixes.

use std::sync::{Arc, Mutex, PoisonError};

use crate::node::NodeId;

/// The last nodes of the paths whose locks were dropped since the tree last applied releases.
///
/// Shared under a mutex, which is practically never contended, so that the tree can be owned by any
/// thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Released(Arc<Mutex<Vec<NodeId>>>);

impl Released {
    fn push(&self, node: NodeId) {
        // A panic while the list was locked leaves a list that is valid.
        let mut nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.push(node);
    }

    pub(crate) fn pop(&self) -> Option<NodeId> {
        let mut nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.pop()
    }
}

/// Keeps a prefix in the tree for as long as the lock lives.
///
/// A lock cannot be cloned, and dropping it is the only way to release it, so that code cannot
/// release a prefix that it has not locked, or release a lock twice. A drop has no access to
/// the tree: it adds the node to a shared list, which the tree applies before it next
/// evicts or counts anything.
#[derive(Debug)]
#[must_use = "the prefix may be evicted as soon as its lock is dropped"]
pub struct PrefixLock {
    /// The deepest node of the locked path, or `None` if the lock covers nothing.
    node: Option<NodeId>,
    tokens: usize,
    released: Released,
}

impl PrefixLock {
    pub(crate) fn new(node: Option<NodeId>, tokens: usize, released: &Released) -> Self {
        Self {
            node,
            tokens,
            released: released.clone(),
        }
    }

    pub(crate) fn node(&self) -> Option<NodeId> {
        self.node
    }

    /// Length of the locked prefix in tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }
}

impl Drop for PrefixLock {
    fn drop(&mut self) {
        if let Some(node) = self.node {
            self.released.push(node);
        }
    }
}
