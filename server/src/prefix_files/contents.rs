//! Cuts what is cached into the blocks that files hold.

use std::collections::HashSet;
use std::sync::Arc;

use hearth_engine::CachedEdge;

use super::block::{BLOCK, PrefixDigest};

/// A block of a cached prefix.
#[derive(Clone, Debug)]
pub struct CachedBlock {
    pub namespace: Arc<str>,
    /// A cached prefix that begins with the block's tokens.
    path: Arc<[u32]>,
    /// Tokens from the beginning of the prompt to the end of the block.
    pub end: usize,
    /// [`PrefixDigest`] of those tokens.
    pub digest: u64,
    /// The cache's counter at the latest use.
    pub used: u64,
}

impl CachedBlock {
    pub fn tokens(&self) -> &[u32] {
        &self.path[..self.end]
    }

    /// The first token of the block.
    pub fn from(&self) -> usize {
        (self.end - 1) / BLOCK * BLOCK
    }

    /// The digests of blocks that begin where this one does and end before it.
    pub fn shorter(&self) -> Vec<u64> {
        let mut digest = PrefixDigest::new(&self.namespace);
        let mut shorter = Vec::new();
        for (at, &token) in self.tokens()[..self.end - 1].iter().enumerate() {
            digest.push(token);
            if at >= self.from() {
                shorter.push(digest.value());
            }
        }
        shorter
    }
}

/// The blocks of all of `edges`, those that were used last first. A block comes after those of the
/// tokens before it.
pub fn blocks(edges: &[CachedEdge]) -> Vec<CachedBlock> {
    let mut is_leaf = vec![true; edges.len()];
    for parent in edges.iter().filter_map(|edge| edge.parent) {
        is_leaf[parent] = false;
    }
    let (mut blocks, mut seen) = (Vec::new(), HashSet::new());
    for leaf in (0..edges.len()).filter(|&at| is_leaf[at]) {
        let above = std::iter::successors(Some(leaf), |&at| edges[at].parent);
        let mut above: Vec<usize> = above.collect();
        above.reverse();
        let tokens = above.iter().flat_map(|&at| &edges[at].tokens);
        let path: Arc<[u32]> = tokens.copied().collect();
        let namespace = &edges[leaf].namespace;
        let mut digest = PrefixDigest::new(namespace);
        let mut end = 0;
        for &at in &above {
            for &token in &edges[at].tokens {
                digest.push(token);
                end += 1;
                let is_end = end % BLOCK == 0 || end == path.len();
                if is_end && seen.insert(digest.value()) {
                    blocks.push(CachedBlock {
                        namespace: Arc::clone(namespace),
                        path: Arc::clone(&path),
                        end,
                        digest: digest.value(),
                        used: edges[at].last_used,
                    });
                }
            }
        }
    }
    blocks.sort_by_key(|block| (std::cmp::Reverse(block.used), block.end));
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_blocks_are_listed_once_and_before_what_follows_them() {
        let edge = |parent, tokens: std::ops::Range<u32>, last_used| CachedEdge {
            namespace: Arc::from("n"),
            parent,
            tokens: tokens.collect(),
            last_used,
        };
        let edges = [
            edge(None, 0..300, 9),
            edge(Some(0), 1000..1300, 5),
            edge(Some(0), 2000..2010, 9),
        ];
        let blocks = blocks(&edges);
        let shown: Vec<_> = blocks
            .iter()
            .map(|block| (block.from(), block.end, block.used))
            .collect();
        assert_eq!(
            shown,
            [(0, 256, 9), (256, 310, 9), (256, 512, 5), (512, 600, 5)]
        );
        assert_eq!(blocks[1].tokens().len(), 310);
        assert_eq!(blocks[1].tokens()[300], 2000);
        assert_eq!(blocks[1].shorter().len(), 53);
        let mut digest = PrefixDigest::new("n");
        blocks[1].tokens()[..309]
            .iter()
            .for_each(|&t| digest.push(t));
        assert_eq!(blocks[1].shorter().last(), Some(&digest.value()));
    }
}
