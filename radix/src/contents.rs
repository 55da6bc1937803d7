//! Everything that the tree holds, for those who keep copies of it elsewhere.

use std::collections::HashMap;
use std::sync::Arc;

use crate::node::NodeId;
use crate::tree::RadixTree;

/// The tokens of one edge of the tree, and what is before them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedEdge {
    pub namespace: Arc<str>,
    /// The place of the edge that these tokens follow, which is before its own; `None` if they
    /// begin a prompt.
    pub parent: Option<usize>,
    pub tokens: Vec<u32>,
    /// The tree's counter at the latest use: larger for later uses, and never larger than that of
    /// the edge before.
    pub last_used: u64,
}

impl RadixTree {
    /// All that is cached. Nothing is marked as used. The cost is that of copying all tokens.
    pub fn contents(&self) -> Vec<CachedEdge> {
        let mut below = HashMap::<NodeId, Vec<NodeId>>::new();
        for (id, node) in &self.nodes {
            if let Some(parent) = node.parent() {
                below.entry(parent).or_default().push(id);
            }
        }
        let mut edges = Vec::with_capacity(self.nodes.len());
        for (namespace, &root) in &self.roots {
            let mut open = vec![(root, None)];
            while let Some((above, parent)) = open.pop() {
                for id in below.remove(&above).unwrap_or_default() {
                    let node = &self.nodes[id];
                    open.push((id, Some(edges.len())));
                    edges.push(CachedEdge {
                        namespace: Arc::clone(namespace),
                        parent,
                        tokens: node.tokens.clone(),
                        last_used: node.last_used,
                    });
                }
            }
        }
        edges
    }

    /// The slots of the longest cached prefix of `tokens`. Nothing is locked, split or marked as
    /// used.
    pub fn slots_of(&self, namespace: &str, tokens: &[u32]) -> Vec<u32> {
        let mut slots = Vec::new();
        let Some(&root) = self.roots.get(namespace) else {
            return slots;
        };
        let (mut node, mut rest) = (root, tokens);
        while let Some((child, common)) = self.follow(node, rest) {
            let label = &self.nodes[child];
            slots.extend_from_slice(&label.slots[..common]);
            if common < label.tokens.len() {
                break;
            }
            (node, rest) = (child, &rest[common..]);
        }
        slots
    }
}
