//! Slots of layers that attend a window.
//!
//! Some layers of a model attend only the last few positions ("sliding windows"). Their keys and
//! values lie in a pool of their own, in *window slots*, while those of the other layers lie in the
//! slots that the tree has for every token. A request gives up window slots that its next tokens do
//! not attend, and so does the tree: a node has window slots for all of its tokens or for none.
//!
//! A prefix can be used if the tree has the window slots that the token after it attends. So a match
//! may be shorter than what the tree has of the tokens, and a lock protects the window slots at its
//! end apart from the other slots. Nodes lose their window slots in the order of their last use,
//! from the front; where a node keeps a part of them it is split there.

use crate::check::{Violation, ensure};
use crate::lock::PrefixLock;
use crate::node::{NodeId, NodeWindow};
use crate::tree::RadixTree;
use crate::window_slots::Windows;

impl RadixTree {
    /// Keeps window slots as well, for layers whose tokens attend `reach` positions before their own.
    pub fn with_windows(mut self, reach: usize) -> Self {
        self.windows = Some(Windows::new(reach));
        self
    }

    /// The first of the `tokens` of a prefix whose window slot is needed after it, rounded down to a
    /// page; `tokens` for a tree without window slots.
    pub fn window_start(&self, tokens: usize) -> usize {
        let reach = self.windows.as_ref().map_or(0, |windows| windows.reach);
        tokens.saturating_sub(reach) / self.page_size * self.page_size
    }

    /// True if a prefix of `tokens` can be used, of whose last tokens `run` have window slots.
    pub(crate) fn is_usable(&self, tokens: usize, run: usize) -> bool {
        run >= tokens - self.window_start(tokens)
    }

    /// Window slots that no lock covers, of those that a match of the prefix of `tokens` would lock.
    /// The prefix ends after the first `common` tokens of `node`.
    pub(crate) fn unlocked_window(&self, node: NodeId, common: usize, tokens: usize) -> usize {
        let (mut id, mut len) = (node, common);
        let mut left = tokens - self.window_start(tokens);
        let mut unlocked = 0;
        while left > 0 {
            let node = &self.nodes[id];
            let covered = len.min(left);
            if node.window.as_ref().is_some_and(|window| window.locks == 0) {
                unlocked += covered;
            }
            left -= covered;
            match node.parent() {
                Some(parent) => (id, len) = (parent, self.nodes[parent].tokens.len()),
                None => break,
            }
        }
        unlocked
    }

    /// Has `lock` protect the window slots that the tokens after its prefix attend, and appends
    /// these slots to `slots`.
    pub fn lock_window(&mut self, lock: &mut PrefixLock, slots: &mut Vec<u32>) {
        let (Some(node), Some(_)) = (lock.node(), &self.windows) else {
            return;
        };
        let tokens = lock.tokens();
        let wanted = tokens - self.window_start(tokens);
        let path = self.last_nodes(node, tokens, wanted);
        for &id in path.iter().rev() {
            let window = self.nodes[id].window.as_mut();
            let window = window.expect("a usable prefix has window slots at its end");
            let windows = self.windows.as_mut().expect("the tree has window slots");
            if window.locks == 0 {
                windows.idle.remove(&(window.last_used, id));
                windows.evictable -= window.slots.len();
                windows.protected += window.slots.len();
            }
            window.locks += 1;
            window.last_used = self.clock;
            slots.extend_from_slice(&window.slots);
        }
        lock.window = wanted;
    }

    /// Has `lock` protect only the window slots of its prefix from the position `from` on, a multiple of
    /// the page size: tokens that were computed since attend no earlier ones.
    pub fn shrink_window(&mut self, lock: &mut PrefixLock, from: usize) {
        let keep = lock.tokens().saturating_sub(from);
        let (Some(node), true) = (lock.node(), keep < lock.window) else {
            return;
        };
        let kept = self.last_nodes(node, lock.tokens(), keep);
        let above = match kept.last() {
            Some(&first) => self.nodes[first].parent(),
            None => Some(node),
        };
        if let Some(above) = above {
            self.unlock_window(above, lock.window - keep);
        }
        lock.window = keep;
    }

    /// Gives the tree `window`, the window slots of the positions from `from` on, as far as `lock`
    /// covers them, and has the lock protect those that the tokens after it attend.
    ///
    /// Where the tree has window slots already, it keeps its own, writes them over the caller's, and
    /// returns the caller's as duplicates. The window slots of positions that the lock does not cover
    /// still belong to the caller.
    ///
    /// # Panics
    /// If `from` is not a multiple of the page size, or if the window slots that are needed after the
    /// prefix are neither in the tree nor among the caller's.
    pub fn insert_window(
        &mut self,
        lock: &mut PrefixLock,
        from: usize,
        window: &mut [u32],
    ) -> Vec<u32> {
        assert!(from.is_multiple_of(self.page_size), "whole pages of slots");
        let mut duplicates = Vec::new();
        let (Some(node), Some(_)) = (lock.node(), &self.windows) else {
            return duplicates;
        };
        let given = lock.tokens().saturating_sub(from);
        let mut end = given;
        for id in self.last_nodes(node, lock.tokens(), given) {
            let node = &mut self.nodes[id];
            let own = &mut window[end - node.tokens.len()..end];
            end -= own.len();
            if let Some(present) = &node.window {
                for (own, &kept) in own.iter_mut().zip(&present.slots) {
                    if *own != kept {
                        duplicates.push(std::mem::replace(own, kept));
                    }
                }
                continue;
            }
            node.window = Some(Box::new(NodeWindow {
                slots: own.to_vec(),
                locks: 0,
                last_used: self.clock,
            }));
            let windows = self.windows.as_mut().expect("the tree has window slots");
            windows.idle.insert((self.clock, id));
            windows.evictable += own.len();
        }
        self.lock_window(lock, &mut Vec::new());
        duplicates
    }

    /// Takes at least `count` window slots that no lock covers out of the tree, or all of them if
    /// there are fewer, and appends them to `slots`.
    pub fn evict_window(&mut self, count: usize, slots: &mut Vec<u32>) {
        self.apply_releases();
        let enough = slots.len() + count;
        while slots.len() < enough {
            let first = self.windows.as_ref().and_then(|w| w.idle.first().copied());
            let Some((_, mut id)) = first else { return };
            let wanted = (enough - slots.len()).next_multiple_of(self.page_size);
            if wanted < self.nodes[id].tokens.len() {
                id = self.split(id, wanted);
            }
            let window = self.nodes[id].window.take();
            let window = window.expect("a node of the order has window slots");
            let windows = self.windows.as_mut().expect("the tree has window slots");
            windows.idle.remove(&(window.last_used, id));
            windows.evictable -= window.slots.len();
            slots.extend_from_slice(&window.slots);
        }
    }

    /// Window slots that no lock covers.
    pub fn evictable_window(&mut self) -> usize {
        self.apply_releases();
        self.windows.as_ref().map_or(0, |windows| windows.evictable)
    }

    /// Window slots under at least one lock.
    pub fn protected_window(&mut self) -> usize {
        self.apply_releases();
        self.windows.as_ref().map_or(0, |windows| windows.protected)
    }

    /// Notes that a leaf, which no lock covers, is about to keep only its first `keep` tokens.
    pub(crate) fn cut_window(&mut self, leaf: NodeId, keep: usize) {
        let (Some(window), Some(windows)) = (&mut self.nodes[leaf].window, &mut self.windows)
        else {
            return;
        };
        let gone = window.slots.drain(keep..);
        windows.evictable -= gone.len();
        windows.freed.extend(gone);
        if keep == 0 {
            windows.idle.remove(&(window.last_used, leaf));
        }
    }

    /// Unlocks the last `tokens` window slots of the prefix that ends with `node`.
    pub(crate) fn unlock_window(&mut self, node: NodeId, tokens: usize) {
        let (mut next, mut left) = (Some(node), tokens);
        while let Some(id) = next
            && left > 0
        {
            let node = &mut self.nodes[id];
            left -= node.tokens.len();
            next = node.parent();
            let (Some(window), Some(windows)) = (&mut node.window, &mut self.windows) else {
                continue;
            };
            window.locks -= 1;
            if window.locks == 0 {
                windows.idle.insert((window.last_used, id));
                windows.evictable += window.slots.len();
                windows.protected -= window.slots.len();
            }
        }
    }

    /// The nodes with the last `wanted` of the `tokens` of a prefix that ends with `node`, from the
    /// last to the first. The node in which they begin is split there.
    fn last_nodes(&mut self, node: NodeId, tokens: usize, wanted: usize) -> Vec<NodeId> {
        debug_assert!(wanted <= tokens);
        let mut path = Vec::new();
        let (mut next, mut left) = (node, wanted);
        while left > 0 {
            let len = self.nodes[next].tokens.len();
            if len > left {
                // The lower node keeps the id.
                self.split(next, len - left);
            }
            path.push(next);
            left = left.saturating_sub(len);
            match self.nodes[next].parent() {
                Some(parent) => next = parent,
                None => break,
            }
        }
        path
    }

    /// Checks the invariants of the window slots.
    pub(crate) fn check_windows(&self) -> Result<(), Violation> {
        let Some(windows) = &self.windows else {
            let none = self.nodes.values().all(|node| node.window.is_none());
            return ensure(none, || "a tree without windows has window slots".into());
        };
        let (mut evictable, mut protected, mut idle) = (0, 0, 0);
        for (id, node) in &self.nodes {
            let Some(window) = &node.window else { continue };
            let (tokens, slots) = (node.tokens.len(), window.slots.len());
            ensure(tokens == slots && tokens > 0, || {
                format!("{id:?} has {tokens} tokens in {slots} window slots")
            })?;
            ensure(window.locks <= node.locks, || {
                format!("{id:?} has more locks of its window than of itself")
            })?;
            let is_idle = window.locks == 0;
            let in_order = windows.idle.contains(&(window.last_used, id));
            ensure(is_idle == in_order, || {
                format!("the order of windows is wrong about {id:?}")
            })?;
            *(if is_idle {
                &mut evictable
            } else {
                &mut protected
            }) += slots;
            idle += usize::from(is_idle);
        }
        let counted = (windows.evictable, windows.protected, windows.idle.len());
        ensure((evictable, protected, idle) == counted, || {
            format!(
                "{evictable} window slots are evictable and {protected} protected in {idle} idle nodes, {counted:?} were counted"
            )
        })
    }
}
