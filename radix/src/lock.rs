//! Locks on cached prefixes.

use std::sync::mpsc::{Receiver, Sender, channel};

use crate::node::NodeId;

/// A lock that was dropped.
#[derive(Debug)]
pub(crate) struct Release {
    /// The last node of the path.
    pub node: NodeId,
    /// How many window slots at the end of the path were protected.
    pub window: usize,
}

/// The locks that were dropped since the tree last applied releases. It is a channel so that a tree
/// and its locks may move to any owner.
#[derive(Debug)]
pub(crate) struct Released {
    sender: Sender<Release>,
    receiver: Receiver<Release>,
}

impl Default for Released {
    fn default() -> Self {
        let (sender, receiver) = channel();
        Self { sender, receiver }
    }
}

impl Released {
    pub(crate) fn pop(&self) -> Option<Release> {
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
    /// How many window slots at the end of the prefix the lock protects.
    pub(crate) window: usize,
    released: Sender<Release>,
}

impl PrefixLock {
    pub(crate) fn new(node: Option<NodeId>, tokens: usize, released: &Released) -> Self {
        Self {
            node,
            tokens,
            window: 0,
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

    /// How many window slots at the end of the prefix are protected.
    pub fn window(&self) -> usize {
        self.window
    }
}

impl Drop for PrefixLock {
    fn drop(&mut self) {
        if let Some(node) = self.node {
            // Without a tree there is nothing to unlock.
            let window = self.window;
            let _ = self.released.send(Release { node, window });
        }
    }
}
