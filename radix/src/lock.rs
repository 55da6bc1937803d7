//! Locks on cached prefixes.

use std::cell::RefCell;
use std::rc::Rc;

use crate::node::NodeId;

/// The last nodes of the paths whose locks were dropped since the tree last applied releases.
pub(crate) type Released = Rc<RefCell<Vec<NodeId>>>;

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
            released: Rc::clone(released),
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
            self.released.borrow_mut().push(node);
        }
    }
}
