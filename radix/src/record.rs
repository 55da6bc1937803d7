//! The tree's record of its changes, for those who follow from outside what it holds.

use std::sync::Arc;

use crate::node::{NodeId, Parent};
use crate::page::{PageChange, page_hash, root_hash};
use crate::tree::RadixTree;

impl RadixTree {
    /// Records all changes from now on, until [`take_changes`](Self::take_changes). Each page
    /// costs 8 bytes then.
    ///
    /// # Panics
    /// If anything is cached already.
    pub fn record_changes(&mut self) {
        assert!(self.nodes.is_empty(), "the pages that exist have no hashes");
        self.changes = Some(Vec::new());
    }

    /// The changes since the last call, in order; empty unless they are recorded.
    pub fn take_changes(&mut self) -> Vec<PageChange> {
        self.changes
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Everything that is cached, as if it was stored now: a page comes after those before it.
    /// Empty unless changes are recorded.
    pub fn all_pages(&self) -> Vec<PageChange> {
        if self.changes.is_none() {
            return Vec::new();
        }
        let mut below = std::collections::HashMap::<NodeId, Vec<NodeId>>::new();
        for (id, node) in &self.nodes {
            if let Some(parent) = node.parent() {
                below.entry(parent).or_default().push(id);
            }
        }
        let mut open: Vec<NodeId> = self.roots.values().copied().collect();
        let mut pages = Vec::new();
        while let Some(id) = open.pop() {
            if !self.nodes[id].hashes.is_empty() {
                pages.push(self.stored(id));
            }
            open.extend(below.remove(&id).unwrap_or_default());
        }
        pages
    }

    /// The hashes of the pages `tokens` that follow `parent`; none unless changes are recorded.
    pub(crate) fn hashes_below(&self, parent: NodeId, tokens: &[u32]) -> Vec<u64> {
        if self.changes.is_none() {
            return Vec::new();
        }
        let above = &self.nodes[parent];
        let mut before = match &above.parent {
            Parent::Namespace(name) => root_hash(name),
            Parent::Node(_) => *above.hashes.last().expect("a node has at least one page"),
        };
        let pages = tokens.chunks_exact(self.page_size);
        let next = pages.map(|page| {
            before = page_hash(before, page);
            before
        });
        next.collect()
    }

    /// Records that the pages of `id` were cached.
    pub(crate) fn note_stored(&mut self, id: NodeId) {
        if self.changes.is_none() {
            return;
        }
        let stored = self.stored(id);
        if let Some(changes) = &mut self.changes {
            changes.push(stored);
        }
    }

    /// Records that the pages of `id` from the token `keep` on are about to be removed.
    pub(crate) fn note_removed(&mut self, id: NodeId, keep: usize) {
        let Some(changes) = &mut self.changes else {
            return;
        };
        let gone = &self.nodes[id].hashes[keep / self.page_size..];
        // Leaf after leaf is removed to make room: one change has them all.
        match changes.last_mut() {
            Some(PageChange::Removed { hashes }) => hashes.extend_from_slice(gone),
            _ => changes.push(PageChange::Removed {
                hashes: gone.to_vec(),
            }),
        }
    }

    fn stored(&self, id: NodeId) -> PageChange {
        let node = &self.nodes[id];
        let above = node.parent().map(|id| &self.nodes[id]);
        PageChange::Stored {
            namespace: self.namespace_of(id),
            parent: above.and_then(|above| above.hashes.last().copied()),
            hashes: node.hashes.clone(),
            tokens: node.tokens.clone(),
        }
    }

    fn namespace_of(&self, mut id: NodeId) -> Arc<str> {
        loop {
            match &self.nodes[id].parent {
                Parent::Namespace(name) => return Arc::clone(name),
                Parent::Node(parent) => id = *parent,
            }
        }
    }
}
