//! Locks on cached prefixes.

use std::sync::mpsc::{Receiver, Sender, channel};

use crate::node::NodeId;

/// The last nodes of the paths whose locks were dropped since the tree last applied releases. It is
/// a channel so that a tree and its locks may move to any owner.
#[derive(Debug)]
pub(crate) struct Released {
    sender: Sender<NodeId>,
    receiver: Receiver<NodeId>,
}

impl Default for Released {
    fn default() -> Self {
        let (sender, receiver) = channel();
        Self { sender, receiver }
    }
}

impl Released {
    pub(crate) fn pop(&self) -> Option<NodeId> {
        self.receiver.try_recv().ok()
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
    released: Sender<NodeId>,
}

impl PrefixLock {
    pub(crate) fn new(node: Option<NodeId>, tokens: usize, released: &Released) -> Self {
        Self {
            node,
            tokens,
            released: released.sender.clone(),
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
            // Without a tree there is nothing to unlock.
            let _ = self.released.send(node);
        }
    }
}
