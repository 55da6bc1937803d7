//! The radix tree of token prefixes.

use std::collections::HashMap;
use std::sync::Arc;

use crate::evict::{EvictionPolicy, Leaves};
use crate::lock::{PrefixLock, Released};
use crate::node::{ChildIndex, Node, NodeId, Nodes, Parent, common_prefix};
use crate::page::PageChange;
use crate::window_slots::Windows;

/// The largest page the tree works with, in tokens.
const MAX_PAGE_SIZE: usize = 64;

/// A page size that is not a power of two up to 64.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("page_size must be a power of two from 1 to {MAX_PAGE_SIZE}, not {given}")]
pub struct PageSizeError {
    pub given: usize,
}

/// What [`RadixTree::peek`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peeked {
    /// Length of the cached prefix.
    pub tokens: usize,
    /// The part of that prefix that no lock covers: it is evictable until it is matched.
    pub unlocked: usize,
    /// Window slots that no lock covers, of those that are used with the prefix.
    pub unlocked_window: usize,
}

/// What a walk down the tree records in each node it visits.
#[derive(Clone, Copy)]
struct Access {
    /// Added to the node's count of uses.
    uses: u64,
    /// The priority of the request.
    priority: i32,
}

/// A cached prefix, read back from the tree.
#[derive(Debug)]
pub(crate) struct Path {
    pub namespace: Arc<str>,
    pub tokens: Vec<u32>,
    pub slots: Vec<u32>,
    pub priority: i32,
}

/// The result of [`RadixTree::insert`].
#[derive(Debug)]
pub struct Insertion {
    /// Covers all whole pages of the inserted tokens.
    pub lock: PrefixLock,
    /// The caller's slots for tokens that the tree already had in other slots. The caller
    /// frees them; the tree keeps its own slots, which other requests may be reading.
    pub duplicates: Vec<u32>,
}

/// Token prefixes and their KV slots, by namespace; `""` is the namespace of requests that
/// name none. Requests of different namespaces never share a prefix.
///
/// Only whole pages are cached: matches and insertions are cut down to a
/// multiple of the page size.
#[derive(Debug)]
pub struct RadixTree {
    pub(crate) page_size: usize,
    pub(crate) nodes: Nodes,
    pub(crate) index: ChildIndex,
    pub(crate) roots: HashMap<Arc<str>, NodeId>,
    pub(crate) leaves: Leaves,
    pub(crate) evictable: usize,
    pub(crate) protected: usize,
    released: Released,
    /// Counts matches and insertions; a node's recency is its value.
    pub(crate) clock: u64,
    /// For layers that attend a window.
    pub(crate) windows: Option<Windows>,
    /// Scratch space of `insert`: the slots that the tree has for the inserted tokens.
    /// It is a field so that its allocation is reused.
    present: Vec<u32>,
    /// Changes that were not taken yet, if they are recorded.
    pub(crate) changes: Option<Vec<PageChange>>,
}

impl RadixTree {
    /// # Errors
    /// If `page_size` is not a power of two from 1 to 64.
    pub fn new(page_size: usize, policy: EvictionPolicy) -> Result<Self, PageSizeError> {
        if !page_size.is_power_of_two() || page_size > MAX_PAGE_SIZE {
            return Err(PageSizeError { given: page_size });
        }
        Ok(Self {
            page_size,
            nodes: Nodes::with_key(),
            index: ChildIndex::new(page_size),
            roots: HashMap::new(),
            leaves: Leaves::new(policy),
            evictable: 0,
            protected: 0,
            released: Released::default(),
            clock: 0,
            windows: None,
            present: Vec::new(),
            changes: None,
        })
    }

    /// How much of `tokens` is cached and can be used. Nothing is locked, split or marked as used.
    pub fn peek(&mut self, namespace: &str, tokens: &[u32]) -> Peeked {
        self.apply_releases();
        let mut found = Peeked::default();
        let Some(&root) = self.roots.get(namespace) else {
            return found;
        };
        let mut walked = Peeked::default();
        let (mut node, mut rest) = (root, tokens);
        // The walked tokens with window slots since the last without.
        let mut run = 0;
        let mut end = None;
        while let Some((child, common)) = self.follow(node, rest) {
            let label = &self.nodes[child];
            walked.tokens += common;
            walked.unlocked += if label.locks == 0 { common } else { 0 };
            run = if label.window.is_some() {
                run + common
            } else {
                0
            };
            if self.windows.is_none() || self.is_usable(walked.tokens, run) {
                found = walked;
                end = Some((child, common));
            }
            if common < label.tokens.len() {
                break;
            }
            (node, rest) = (child, &rest[common..]);
        }
        if let (Some((node, common)), Some(_)) = (end, &self.windows) {
            found.unlocked_window = self.unlocked_window(node, common, found.tokens);
        }
        found
    }

    /// The child of `node` with which `tokens` continue, and how many of its tokens they have, in
    /// whole pages.
    pub(crate) fn follow(&self, node: NodeId, tokens: &[u32]) -> Option<(NodeId, usize)> {
        let child = self.index.find(&self.nodes, node, tokens)?;
        let common = common_prefix(&self.nodes[child].tokens, tokens);
        Some((child, common / self.page_size * self.page_size))
    }

    /// Finds the longest cached prefix of `tokens` that can be used for a request of `priority`, marks it as
    /// used now, locks it, and appends its slots to `slots`. A match that ends inside an edge
    /// splits the edge there, so that locks and recency are exact to the page.
    pub fn match_prefix(
        &mut self,
        namespace: &str,
        tokens: &[u32],
        priority: i32,
        slots: &mut Vec<u32>,
    ) -> PrefixLock {
        self.apply_releases();
        let Some(&root) = self.roots.get(namespace) else {
            return self.lock(None, 0);
        };
        let before = slots.len();
        let usable = match self.windows {
            Some(_) => self.peek(namespace, tokens).tokens,
            None => tokens.len(),
        };
        let access = Access { uses: 1, priority };
        let node = self.descend(root, &tokens[..usable], access, slots);
        self.lock(Some(node), slots.len() - before)
    }

    /// Caches `tokens`, which a request of `priority` computed in the caller's `slots`, one
    /// slot per token.
    ///
    /// Where the tree has a prefix already, it keeps its own slots, writes them over the
    /// caller's, and returns the caller's as duplicates. The slots of the tail that fills no
    /// whole page still belong to the caller. A request that inserts its tokens piece by
    /// piece, as it computes them, counts as one use of each token.
    ///
    /// # Panics
    /// If there is not one slot per token.
    pub fn insert(
        &mut self,
        namespace: &str,
        tokens: &[u32],
        priority: i32,
        slots: &mut [u32],
    ) -> Insertion {
        assert_eq!(tokens.len(), slots.len(), "one KV slot per token");
        self.apply_releases();
        let whole = tokens.len() / self.page_size * self.page_size;
        if whole == 0 {
            return Insertion {
                lock: self.lock(None, 0),
                duplicates: Vec::new(),
            };
        }
        let root = self.root(namespace);
        let mut present = std::mem::take(&mut self.present);
        present.clear();
        let access = Access { uses: 0, priority };
        let mut node = self.descend(root, &tokens[..whole], access, &mut present);
        let mut duplicates = Vec::new();
        for (own, &kept) in slots.iter_mut().zip(&present) {
            if *own != kept {
                duplicates.push(std::mem::replace(own, kept));
            }
        }
        let new = present.len()..whole;
        if !new.is_empty() {
            node = self.append(node, &tokens[new.clone()], priority, &slots[new]);
        }
        self.present = present;
        Insertion {
            lock: self.lock(Some(node), whole),
            duplicates,
        }
    }

    /// Takes at least `count` slots of unlocked prefixes out of the tree, or all of them if
    /// there are fewer, and appends them to `slots`. The last leaf is shortened from its end
    /// by whole pages instead of being removed, because its beginning is still a valid prefix.
    pub fn evict(&mut self, count: usize, slots: &mut Vec<u32>) {
        self.evict_with(count, slots, |_, _| {});
    }

    /// Does what [`evict`](Self::evict) does, and calls `before_eviction` with each leaf that
    /// is about to lose slots.
    pub(crate) fn evict_with(
        &mut self,
        count: usize,
        slots: &mut Vec<u32>,
        mut before_eviction: impl FnMut(&Self, NodeId),
    ) {
        self.apply_releases();
        let enough = slots.len().saturating_add(count);
        while slots.len() < enough {
            let Some(leaf) = self.leaves.first() else {
                return;
            };
            before_eviction(self, leaf);
            let len = self.nodes[leaf].tokens.len();
            let wanted = (enough - slots.len()).min(len);
            let keep = len - wanted.next_multiple_of(self.page_size);
            self.cut(leaf, keep, slots);
        }
    }

    /// The whole prefix that ends with `node`.
    pub(crate) fn path(&self, node: NodeId) -> Path {
        let mut edges = Vec::new();
        let (mut id, priority) = (node, self.nodes[node].priority);
        let namespace = loop {
            let node = &self.nodes[id];
            match &node.parent {
                Parent::Namespace(name) => break Arc::clone(name),
                Parent::Node(parent) => {
                    edges.push(node);
                    id = *parent;
                }
            }
        };
        let edges = || edges.iter().rev();
        Path {
            namespace,
            tokens: edges().flat_map(|node| &node.tokens).copied().collect(),
            slots: edges().flat_map(|node| &node.slots).copied().collect(),
            priority,
        }
    }

    /// Cached tokens that no lock covers.
    pub fn evictable(&mut self) -> usize {
        self.apply_releases();
        self.evictable
    }

    /// Cached tokens under at least one lock.
    pub fn protected(&mut self) -> usize {
        self.apply_releases();
        self.protected
    }

    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// Walks from `root` down along `tokens` as far as the tree has them, splits the edge
    /// inside which the tokens and the tree differ, and appends the slots of the walk to
    /// `slots`. Returns the last node of the walk.
    fn descend(
        &mut self,
        root: NodeId,
        tokens: &[u32],
        access: Access,
        slots: &mut Vec<u32>,
    ) -> NodeId {
        self.clock += 1;
        let (mut node, mut rest) = (root, tokens);
        while let Some(mut child) = self.index.find(&self.nodes, node, rest) {
            let label = &self.nodes[child].tokens;
            let common = common_prefix(label, rest) / self.page_size * self.page_size;
            if common < label.len() {
                child = self.split(child, common);
            }
            self.nodes[node].latest_child = Some(child);
            self.touch(child, access);
            slots.extend_from_slice(&self.nodes[child].slots);
            (node, rest) = (child, &rest[common..]);
        }
        node
    }

    /// Records `access` in a node, and moves the node in the eviction order.
    fn touch(&mut self, id: NodeId, access: Access) {
        let node = &mut self.nodes[id];
        let was_leaf = node.is_idle_leaf() && self.leaves.remove(id, node);
        node.last_used = self.clock;
        node.uses += access.uses;
        node.priority = node.priority.max(access.priority);
        if was_leaf {
            self.leaves.insert(id, node);
        }
    }

    /// Splits the edge of `id` after `at` tokens and returns the new upper node. `id` remains
    /// the lower node, so that locks on it still cover the whole path.
    pub(crate) fn split(&mut self, id: NodeId, at: usize) -> NodeId {
        self.index.remove(&self.nodes, id);
        let lower = &mut self.nodes[id];
        let tokens = lower.tokens.split_off(at);
        let slots = lower.slots.split_off(at);
        let pages = at / self.page_size;
        let hashes = lower.hashes.split_off(pages.min(lower.hashes.len()));
        let window = lower.window.as_mut();
        let window = window.map(|window| Box::new(window.split_off_front(at)));
        let idle_window = window.as_ref().filter(|window| window.locks == 0);
        let idle_window = idle_window.map(|window| window.last_used);
        let mut upper = Node {
            // A placeholder; the two parents are swapped below.
            parent: Parent::Node(id),
            tokens: std::mem::replace(&mut lower.tokens, tokens),
            slots: std::mem::replace(&mut lower.slots, slots),
            window,
            hashes: std::mem::replace(&mut lower.hashes, hashes),
            children: 1,
            latest_child: Some(id),
            locks: lower.locks,
            last_used: lower.last_used,
            created: lower.created,
            uses: lower.uses,
            priority: lower.priority,
        };
        std::mem::swap(&mut upper.parent, &mut lower.parent);
        let upper = self.nodes.insert(upper);
        if let (Some(last_used), Some(windows)) = (idle_window, &mut self.windows) {
            windows.idle.insert((last_used, upper));
        }
        self.nodes[id].parent = Parent::Node(upper);
        self.index.insert(&self.nodes, upper);
        self.index.insert(&self.nodes, id);
        upper
    }

    /// Adds a leaf with `tokens` and their `slots` below `parent`.
    fn append(&mut self, parent: NodeId, tokens: &[u32], priority: i32, slots: &[u32]) -> NodeId {
        let hashes = self.hashes_below(parent, tokens);
        let above = &mut self.nodes[parent];
        if above.is_idle_leaf() {
            self.leaves.remove(parent, above);
        }
        above.children += 1;
        let id = self.nodes.insert(Node {
            parent: Parent::Node(parent),
            tokens: tokens.to_vec(),
            slots: slots.to_vec(),
            window: None,
            hashes,
            children: 0,
            latest_child: None,
            locks: 0,
            last_used: self.clock,
            created: self.clock,
            uses: 1,
            priority,
        });
        self.nodes[parent].latest_child = Some(id);
        self.index.insert(&self.nodes, id);
        self.leaves.insert(id, &self.nodes[id]);
        self.evictable += tokens.len();
        self.note_stored(id);
        id
    }

    /// Shortens an idle leaf to `keep` tokens and appends the slots of the others to `slots`.
    /// If `keep` is zero, removes the leaf, and also its namespace if it was the last leaf.
    fn cut(&mut self, leaf: NodeId, keep: usize, slots: &mut Vec<u32>) {
        self.note_removed(leaf, keep);
        self.cut_window(leaf, keep);
        let node = &mut self.nodes[leaf];
        self.evictable -= node.tokens.len() - keep;
        slots.extend_from_slice(&node.slots[keep..]);
        if keep > 0 {
            node.tokens.truncate(keep);
            node.slots.truncate(keep);
            node.hashes.truncate(keep / self.page_size);
            return;
        }
        let parent = node.parent().expect("a leaf is not a root");
        self.leaves.remove(leaf, node);
        self.index.remove(&self.nodes, leaf);
        self.nodes.remove(leaf);
        let above = &mut self.nodes[parent];
        above.children -= 1;
        if above.is_idle_leaf() {
            self.leaves.insert(parent, above);
        } else if let (0, Parent::Namespace(name)) = (above.children, &above.parent) {
            self.roots.remove(name);
            self.nodes.remove(parent);
        }
    }

    /// The root of `namespace`, created if there is none.
    fn root(&mut self, namespace: &str) -> NodeId {
        if let Some(&root) = self.roots.get(namespace) {
            return root;
        }
        let name: Arc<str> = namespace.into();
        let root = self.nodes.insert(Node {
            parent: Parent::Namespace(Arc::clone(&name)),
            tokens: Vec::new(),
            slots: Vec::new(),
            window: None,
            hashes: Vec::new(),
            children: 0,
            latest_child: None,
            locks: 0,
            last_used: self.clock,
            created: self.clock,
            uses: 0,
            priority: i32::MIN,
        });
        self.roots.insert(name, root);
        root
    }

    /// Locks the path that ends with `node` and is `tokens` long.
    fn lock(&mut self, node: Option<NodeId>, tokens: usize) -> PrefixLock {
        // Locking a root protects no tokens; it would only keep an empty namespace alive.
        let node = node.filter(|_| tokens > 0);
        if let Some(id) = node {
            self.leaves.remove(id, &self.nodes[id]);
        }
        let mut above = node;
        while let Some(id) = above {
            let node = &mut self.nodes[id];
            if node.locks == 0 {
                self.evictable -= node.tokens.len();
                self.protected += node.tokens.len();
            }
            node.locks += 1;
            above = node.parent();
        }
        PrefixLock::new(node, tokens, &self.released)
    }

    /// Unlocks the paths of the locks that were dropped since the last call.
    pub(crate) fn apply_releases(&mut self) {
        while let Some(release) = self.released.pop() {
            let id = release.node;
            let mut above = Some(id);
            while let Some(id) = above {
                let node = &mut self.nodes[id];
                node.locks -= 1;
                if node.locks == 0 {
                    self.evictable += node.tokens.len();
                    self.protected -= node.tokens.len();
                }
                above = node.parent();
            }
            self.unlock_window(id, release.window);
            let node = &self.nodes[id];
            if node.is_idle_leaf() {
                self.leaves.insert(id, node);
            }
        }
    }
}
