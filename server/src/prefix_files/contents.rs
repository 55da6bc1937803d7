//! Cuts what is cached into the blocks that files hold.

use std::sync::Arc;

use hearth_engine::CachedEdge;

use super::block::{BLOCK, PrefixDigest};

/// A block of a cached prefix.
#[derive(Clone, Copy, Debug)]
pub struct CachedBlock {
    /// The place of the edge in which the block ends.
    edge: usize,
    /// Tokens from the beginning of the prompt to the end of the block.
    pub end: usize,
    /// [`PrefixDigest`] of those tokens.
    pub digest: u64,
    /// The cache's counter at the latest use.
    pub used: u64,
}

impl CachedBlock {
    /// The first token of the block.
    pub fn from(&self) -> usize {
        (self.end - 1) / BLOCK * BLOCK
    }

    pub fn namespace<'a>(&self, edges: &'a [CachedEdge]) -> &'a Arc<str> {
        &edges[self.edge].namespace
    }

    /// The tokens from the beginning of the prompt to the end of the block.
    pub fn tokens(&self, edges: &[CachedEdge]) -> Vec<u32> {
        let above = std::iter::successors(Some(self.edge), |&at| edges[at].parent);
        let mut above: Vec<usize> = above.collect();
        above.reverse();
        let tokens = above.iter().flat_map(|&at| &edges[at].tokens);
        tokens.take(self.end).copied().collect()
    }
}

/// The digests of blocks that begin at the token `from` and end before the last of `tokens`.
pub fn shorter(namespace: &str, tokens: &[u32], from: usize) -> Vec<u64> {
    let mut digest = PrefixDigest::new(namespace);
    let digests = tokens[..tokens.len() - 1].iter().map(|&token| {
        digest.push(token);
        digest.value()
    });
    digests.skip(from).collect()
}

/// The blocks of all of `edges`, those that were used last first. A block comes after those of the
/// tokens before it.
pub fn blocks(edges: &[CachedEdge]) -> Vec<CachedBlock> {
    let mut is_leaf = vec![true; edges.len()];
    for parent in edges.iter().filter_map(|edge| edge.parent) {
        is_leaf[parent] = false;
    }
    let mut blocks = Vec::new();
    // The digest and the number of the tokens up to the end of each edge.
    let mut ends = Vec::<(PrefixDigest, usize)>::with_capacity(edges.len());
    for (at, edge) in edges.iter().enumerate() {
        let (mut digest, mut end) = match edge.parent {
            Some(parent) => ends[parent],
            None => (PrefixDigest::new(&edge.namespace), 0),
        };
        let whole = end + edge.tokens.len();
        for &token in &edge.tokens {
            digest.push(token);
            end += 1;
            if end.is_multiple_of(BLOCK) || (is_leaf[at] && end == whole) {
                blocks.push(CachedBlock {
                    edge: at,
                    end,
                    digest: digest.value(),
                    used: edge.last_used,
                });
            }
        }
        ends.push((digest, end));
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
        let tokens = blocks[1].tokens(&edges);
        assert_eq!((tokens.len(), tokens[300]), (310, 2000));
        let shorter = shorter("n", &tokens, blocks[1].from());
        assert_eq!(shorter.len(), 53);
        let mut digest = PrefixDigest::new("n");
        tokens[..309].iter().for_each(|&token| digest.push(token));
        assert_eq!(shorter.last(), Some(&digest.value()));
    }
}
