//! Nodes and the index of their children.

use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};
use slotmap::{SlotMap, new_key_type};

new_key_type! { pub(crate) struct NodeId; }

pub(crate) type Nodes = SlotMap<NodeId, Node>;

#[derive(Debug)]
pub(crate) enum Parent {
    /// This node is the root of a namespace. It has no tokens, and is removed with its last
    /// child.
    Namespace(Arc<str>),
    Node(NodeId),
}

/// An edge of the tree together with the node at its lower end.
#[derive(Debug)]
pub(crate) struct Node {
    pub parent: Parent,
    /// The edge's label: one or more whole pages, or empty at a root.
    pub tokens: Vec<u32>,
    /// The KV slot of each token.
    pub slots: Vec<u32>,
    /// The window slot of each token, as long as the tree has them.
    pub window: Option<Box<NodeWindow>>,
    /// The hash of each page, if the tree records its changes.
    pub hashes: Vec<u64>,
    pub children: usize,
    /// The child that was matched or inserted last. It may have been removed since.
    pub latest_child: Option<NodeId>,
    /// Locks whose path goes through this node.
    pub locks: usize,
    /// The tree's counter at the latest match or insert through this node.
    pub last_used: u64,
    /// The tree's counter at the insertion of these tokens.
    pub created: u64,
    /// How many requests computed or matched these tokens.
    pub uses: u64,
    /// The highest of those requests' priorities.
    pub priority: i32,
}

/// The window slots of a node.
#[derive(Debug)]
pub(crate) struct NodeWindow {
    /// One for each token of the node.
    pub slots: Vec<u32>,
    /// Locks whose window covers this node. They cover all of it, because locking splits the node
    /// in which a window begins.
    pub locks: usize,
    /// The tree's counter when the slots were inserted or locked last.
    pub last_used: u64,
}

impl NodeWindow {
    /// Keeps the slots from the token `at` on, and returns the others.
    pub fn split_off_front(&mut self, at: usize) -> Self {
        let back = self.slots.split_off(at);
        Self {
            slots: std::mem::replace(&mut self.slots, back),
            locks: self.locks,
            last_used: self.last_used,
        }
    }
}

impl Node {
    pub fn parent(&self) -> Option<NodeId> {
        match self.parent {
            Parent::Namespace(_) => None,
            Parent::Node(id) => Some(id),
        }
    }

    /// Whether eviction may remove or shorten this node.
    pub fn is_idle_leaf(&self) -> bool {
        self.children == 0 && self.locks == 0 && self.parent().is_some()
    }
}

/// Finds a node's child by the child's first page.
///
/// There is one table for the whole tree, and its keys are read from the nodes: an entry
/// costs one node id, and a node without children costs nothing.
#[derive(Debug)]
pub(crate) struct ChildIndex {
    table: HashTable<NodeId>,
    hasher: DefaultHashBuilder,
    page_size: usize,
}

impl ChildIndex {
    pub fn new(page_size: usize) -> Self {
        Self {
            table: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            page_size,
        }
    }

    /// The child of `parent` whose label starts with the first page of `tokens`.
    pub fn find(&self, nodes: &Nodes, parent: NodeId, tokens: &[u32]) -> Option<NodeId> {
        let page = tokens.get(..self.page_size)?;
        let hash = self.hasher.hash_one((parent, page));
        let is_it = |&id: &NodeId| {
            let node = &nodes[id];
            node.parent() == Some(parent) && node.tokens[..self.page_size] == *page
        };
        self.table.find(hash, is_it).copied()
    }

    pub fn insert(&mut self, nodes: &Nodes, id: NodeId) {
        let Self {
            table,
            hasher,
            page_size,
        } = self;
        let hash_of = |id: &NodeId| hash(hasher, *page_size, &nodes[*id]);
        table.insert_unique(hash_of(&id), id, hash_of);
    }

    pub fn remove(&mut self, nodes: &Nodes, id: NodeId) {
        let hash = hash(&self.hasher, self.page_size, &nodes[id]);
        let entry = self.table.find_entry(hash, |&other| other == id);
        entry.expect("every node with a parent is indexed").remove();
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }
}

fn hash(hasher: &DefaultHashBuilder, page_size: usize, node: &Node) -> u64 {
    let parent = node.parent().expect("roots are not indexed");
    hasher.hash_one((parent, &node.tokens[..page_size]))
}

/// The length of the longest common prefix of `a` and `b`.
pub fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    // Whole blocks are compared with memcmp; only the block that differs is compared token by
    // token.
    const BLOCK: usize = 64;
    let same = a
        .chunks(BLOCK)
        .zip(b.chunks(BLOCK))
        .take_while(|(x, y)| x == y)
        .count();
    let start = (same * BLOCK).min(a.len()).min(b.len());
    start
        + a[start..]
            .iter()
            .zip(&b[start..])
            .take_while(|(x, y)| x == y)
            .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_prefixes_are_exact_around_block_borders() {
        for len in [0, 1, 63, 64, 65, 128, 200] {
            let a: Vec<u32> = (0..len).collect();
            assert_eq!(common_prefix(&a, &a), a.len());
            assert_eq!(common_prefix(&a, &[]), 0);
            for differs in 0..len {
                let mut b = a.clone();
                b[differs as usize] = u32::MAX;
                b.push(7);
                assert_eq!(common_prefix(&a, &b), differs as usize);
                assert_eq!(common_prefix(&b, &a), differs as usize);
            }
        }
    }
}
