//! A bounded picture of the tree, for people to look at.

use std::collections::HashMap;

use slotmap::{Key, KeyData};

use crate::lock::PrefixLock;
use crate::node::{NodeId, Parent};
use crate::tree::RadixTree;

/// How likely a node is to stay in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// A lock covers it.
    InUse,
    /// It is cached, and nothing reads it.
    Cached,
    /// It is one of the first to be evicted when slots run out.
    EvictedSoon,
}

/// A node of the tree as an [`Outline`] shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutlinedNode {
    /// Names the node for [`RadixTree::prefix_of`] as long as it exists.
    pub id: u64,
    /// The place of its parent in [`Outline::nodes`], which is before its own; `None` for the root
    /// of a namespace.
    pub parent: Option<usize>,
    /// Tokens on its edge; 0 for the root of a namespace.
    pub tokens: usize,
    pub state: NodeState,
    /// Children that the outline leaves out.
    pub hidden_children: usize,
}

/// A part of the tree: what is in use, what goes next and what stays longest, with all nodes above.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    pub nodes: Vec<OutlinedNode>,
    /// Nodes of the whole tree, roots of namespaces included.
    pub total_nodes: usize,
    /// Tokens of the whole tree.
    pub total_tokens: usize,
}

impl RadixTree {
    /// At most `most` nodes of the tree: the paths of `locks`, then the leaves that are evicted
    /// first, those that are evicted last, and all nodes above them. The whole tree, if it has no
    /// more nodes. Of the leaves, the first with `soon` tokens together are
    /// [evicted soon](NodeState::EvictedSoon).
    ///
    /// The cost grows with `most` and not with the tree. Nothing is marked as used.
    pub fn outline<'a>(
        &mut self,
        locks: impl Iterator<Item = &'a PrefixLock>,
        most: usize,
        soon: usize,
    ) -> Outline {
        self.apply_releases();
        let mut shown = Shown::default();
        // Half of the room is kept for leaves, however many requests run.
        for id in locks.filter_map(PrefixLock::node) {
            if !shown.add(self, id, most - most / 2) {
                break;
            }
        }
        let mut left = soon;
        let end_of_first = shown.nodes.len() + most / 4;
        for id in self.leaves.in_order() {
            if shown.nodes.len() >= end_of_first || !shown.add(self, id, most) {
                break;
            }
            if left > 0
                && let Some(&at) = shown.places.get(&id)
            {
                shown.nodes[at].state = NodeState::EvictedSoon;
            }
            left = left.saturating_sub(self.nodes[id].tokens.len());
        }
        for id in self.leaves.in_order().rev() {
            if !shown.add(self, id, most) {
                break;
            }
        }
        Outline {
            nodes: shown.nodes,
            total_nodes: self.nodes.len(),
            total_tokens: self.evictable + self.protected,
        }
    }

    /// The last `most` tokens of the prefix that ends with the node `id` of an [`Outline`], and how
    /// many tokens the node has itself; `None` if the node is gone.
    pub fn prefix_of(&self, id: u64, most: usize) -> Option<(Vec<u32>, usize)> {
        let mut id = NodeId::from(KeyData::from_ffi(id));
        let own = self.nodes.get(id)?.tokens.len();
        let mut edges = Vec::new();
        let mut missing = most;
        loop {
            let node = &self.nodes[id];
            let tokens = &node.tokens[node.tokens.len().saturating_sub(missing)..];
            edges.push(tokens);
            missing -= tokens.len();
            match (&node.parent, missing) {
                (Parent::Namespace(_), _) | (_, 0) => break,
                (Parent::Node(parent), _) => id = *parent,
            }
        }
        let tokens = edges.into_iter().rev().flatten().copied().collect();
        Some((tokens, own))
    }
}

/// The nodes that are shown so far.
#[derive(Default)]
struct Shown {
    nodes: Vec<OutlinedNode>,
    places: HashMap<NodeId, usize>,
    /// The nodes between a new leaf and the first shown node above it.
    above: Vec<NodeId>,
}

impl Shown {
    /// Adds the node `id` and the nodes above it, unless there would be more than `most` then.
    /// Returns whether they are shown.
    fn add(&mut self, tree: &RadixTree, id: NodeId, most: usize) -> bool {
        self.above.clear();
        let mut next = Some(id);
        while let Some(id) = next
            && !self.places.contains_key(&id)
        {
            if self.nodes.len() + self.above.len() >= most {
                return false;
            }
            self.above.push(id);
            next = tree.nodes[id].parent();
        }
        while let Some(id) = self.above.pop() {
            let node = &tree.nodes[id];
            let parent = node.parent().map(|parent| self.places[&parent]);
            if let Some(parent) = parent {
                self.nodes[parent].hidden_children -= 1;
            }
            self.places.insert(id, self.nodes.len());
            self.nodes.push(OutlinedNode {
                id: id.data().as_ffi(),
                parent,
                tokens: node.tokens.len(),
                state: match node.locks {
                    0 => NodeState::Cached,
                    _ => NodeState::InUse,
                },
                hidden_children: node.children,
            });
        }
        true
    }
}
