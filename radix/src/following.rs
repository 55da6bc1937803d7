//! The tokens that other requests had after the same tokens.

use crate::lock::PrefixLock;
use crate::node::NodeId;
use crate::tree::RadixTree;

/// The most edges that a walk follows. This bounds its cost in a tree that branches at every
/// token.
const MOST_EDGES: usize = 64;

impl RadixTree {
    /// Appends to `following` at most `most` tokens that the tree has after `tokens` in
    /// `namespace`. Where several continuations are cached, it takes the one that was matched or
    /// inserted last. Nothing is appended if the tree does not have all of `tokens`, or if they
    /// branch too often.
    ///
    /// The walk begins below `lock`, which covers the first of the tokens, and reads only:
    /// nothing is locked, split or marked as used.
    pub fn following(
        &self,
        namespace: &str,
        lock: Option<&PrefixLock>,
        tokens: &[u32],
        most: usize,
        following: &mut Vec<u32>,
    ) {
        let locked = lock.and_then(|lock| Some((lock.node()?, lock.tokens())));
        let root = || Some((*self.roots.get(namespace)?, 0));
        let Some((mut node, skipped)) = locked.or_else(root) else {
            return;
        };
        let mut rest = tokens.get(skipped..).unwrap_or_default();
        let enough = following.len() + most;
        for _ in 0..MOST_EDGES {
            if following.len() == enough {
                return;
            }
            // Less than a page has no entry in the index.
            let child = match rest.len() < self.page_size {
                true => self.latest_child(node),
                false => self.index.find(&self.nodes, node, rest),
            };
            let Some(child) = child else { return };
            let label = self.nodes[child].tokens.as_slice();
            if let Some(below) = rest.strip_prefix(label) {
                (node, rest) = (child, below);
                continue;
            }
            let Some(after) = label.strip_prefix(rest) else {
                return;
            };
            let missing = enough - following.len();
            following.extend_from_slice(&after[..after.len().min(missing)]);
            (node, rest) = (child, &[]);
        }
    }

    /// The child of `parent` that was matched or inserted last, if it still exists.
    fn latest_child(&self, parent: NodeId) -> Option<NodeId> {
        let latest = self.nodes[parent].latest_child?;
        let node = self.nodes.get(latest)?;
        (node.parent() == Some(parent)).then_some(latest)
    }
}
