//! Recomputes the tree's invariants from scratch. For tests: every check visits every node.

use std::collections::{HashMap, HashSet};

use crate::node::{Node, NodeId, Parent};
use crate::tree::RadixTree;

/// An invariant that does not hold.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct Violation(String);

pub(crate) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds {
        Ok(())
    } else {
        Err(Violation(otherwise()))
    }
}

impl RadixTree {
    /// Checks every invariant of the tree; O(size of the tree).
    ///
    /// # Errors
    /// The first violation found, in words.
    pub fn check(&mut self) -> Result<(), Violation> {
        self.apply_releases();
        let tree = &*self;
        let mut below = HashMap::<_, (usize, usize)>::new();
        for node in tree.nodes.values() {
            if let Some(parent) = node.parent() {
                let (children, locks) = below.entry(parent).or_default();
                *children += 1;
                *locks += node.locks;
            }
        }
        let mut slots = HashSet::new();
        let (mut evictable, mut protected, mut idle_leaves) = (0, 0, 0);
        for (id, node) in &tree.nodes {
            tree.check_node(id, node, below.get(&id).copied().unwrap_or_default())?;
            for &slot in &node.slots {
                ensure(slots.insert(slot), || {
                    format!("slot {slot} is in the tree twice")
                })?;
            }
            *(if node.locks == 0 {
                &mut evictable
            } else {
                &mut protected
            }) += node.tokens.len();
            idle_leaves += usize::from(node.is_idle_leaf());
        }
        ensure(evictable == tree.evictable, || {
            format!(
                "{evictable} tokens are evictable, {} were counted",
                tree.evictable
            )
        })?;
        ensure(protected == tree.protected, || {
            format!(
                "{protected} tokens are protected, {} were counted",
                tree.protected
            )
        })?;
        ensure(idle_leaves == tree.leaves.len(), || {
            format!(
                "{idle_leaves} idle leaves, {} in the eviction order",
                tree.leaves.len()
            )
        })?;
        tree.check_windows()?;
        let below_roots = tree.nodes.len() - tree.roots.len();
        ensure(below_roots == tree.index.len(), || {
            format!(
                "{below_roots} nodes below roots, {} indexed",
                tree.index.len()
            )
        })
    }

    /// Checks `node`, which has `count` children that have `locks` locks in total.
    fn check_node(
        &self,
        id: NodeId,
        node: &Node,
        (count, locks): (usize, usize),
    ) -> Result<(), Violation> {
        let page = self.page_size;
        ensure(count == node.children, || {
            format!("{id:?} counts {} children, {count} name it", node.children)
        })?;
        ensure(node.tokens.len() == node.slots.len(), || {
            format!(
                "{id:?} has {} tokens in {} slots",
                node.tokens.len(),
                node.slots.len()
            )
        })?;
        let parent = match &node.parent {
            Parent::Namespace(name) => {
                ensure(self.roots.get(name) == Some(&id), || {
                    format!("root {name:?} is lost")
                })?;
                ensure(node.tokens.is_empty(), || {
                    format!("root {name:?} has tokens")
                })?;
                return ensure(count > 0, || format!("namespace {name:?} is empty"));
            }
            Parent::Node(parent) => *parent,
        };
        ensure(
            !node.tokens.is_empty() && node.tokens.len().is_multiple_of(page),
            || {
                format!(
                    "{id:?} has {} tokens with pages of {page}",
                    node.tokens.len()
                )
            },
        )?;
        let hashed =
            self.changes.is_none() || node.hashes == self.hashes_below(parent, &node.tokens);
        ensure(hashed, || format!("{id:?} has wrong hashes"))?;
        ensure(node.locks >= locks, || {
            format!("{id:?} has fewer locks than its children")
        })?;
        ensure(
            self.leaves.contains(id, node) == node.is_idle_leaf(),
            || format!("the eviction order is wrong about whether {id:?} is an idle leaf"),
        )?;
        let above = self
            .nodes
            .get(parent)
            .ok_or_else(|| Violation(format!("{id:?} has a parent that does not exist")))?;
        ensure(
            above.parent().is_none() || above.last_used >= node.last_used,
            || format!("{id:?} was used later than its parent"),
        )?;
        ensure(
            self.index.find(&self.nodes, parent, &node.tokens) == Some(id),
            || format!("{id:?} is not found from its parent"),
        )
    }
}
