//! Compressed edges: chains of states that leave no choice, each as one step.

use super::table::Table;

/// The most bytes of one edge: longer chains become several edges.
const MAX_EDGE_BYTES: usize = 64;
/// The most bytes that are forced at once, rounded up to whole edges.
const MAX_JUMP_BYTES: usize = 4096;

/// The only way from one state to another.
#[derive(Clone, Copy, Debug)]
struct Edge {
    /// The bytes are `path_bytes[start..end]`, at least one.
    start: u32,
    end: u32,
    to: u32,
}

/// The edges of a machine's states.
#[derive(Debug)]
pub(super) struct Edges {
    /// `[states]`.
    edges: Vec<Option<Edge>>,
    path_bytes: Vec<u8>,
}

impl Edges {
    /// Compresses every chain of states without a choice. The states of a chain share its
    /// bytes, so that their edges take no more room than the chain.
    pub fn new(table: &Table) -> Self {
        let ways = table.only_ways();
        let mut edges: Vec<Option<Edge>> = vec![None; ways.len()];
        let mut path_bytes = Vec::new();
        // Heads of chains come first: if a chain were started in its middle, the part before it
        // would end there.
        let mut is_head = vec![true; ways.len()];
        for &(_, to) in ways.iter().flatten() {
            is_head[to as usize] = false;
        }
        let (heads, rest): (Vec<u32>, Vec<u32>) =
            (0..table.states()).partition(|&state| is_head[state as usize]);
        for head in heads.into_iter().chain(rest) {
            let (mut chain, mut state) = (Vec::new(), head);
            let start = path_bytes.len() as u32;
            while let Some((byte, to)) = ways[state as usize]
                && edges[state as usize].is_none()
                && chain.len() < MAX_EDGE_BYTES
            {
                chain.push(state);
                path_bytes.push(byte);
                state = to;
            }
            let end = path_bytes.len() as u32;
            for (start, &member) in (start..).zip(&chain) {
                edges[member as usize] = Some(Edge {
                    start,
                    end,
                    to: state,
                });
            }
        }
        Self { edges, path_bytes }
    }

    /// The bytes that must follow `state`, up to a choice, and the state after them.
    pub fn forced(&self, mut state: u32) -> (Vec<u8>, u32) {
        let mut bytes = Vec::new();
        while let Some(edge) = self.edges[state as usize]
            && bytes.len() < MAX_JUMP_BYTES
        {
            bytes.extend_from_slice(&self.path_bytes[edge.start as usize..edge.end as usize]);
            state = edge.to;
        }
        (bytes, state)
    }

    /// The memory that the edges take.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.edges) + self.path_bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regex::{MAX_PATTERN_BYTES, parse};
    use crate::ticket::Ticket;

    #[test]
    fn the_edges_of_a_long_literal_share_its_bytes() {
        let hir = parse(&"abcdefgh".repeat(1000), MAX_PATTERN_BYTES).unwrap();
        let edges = Edges::new(&Table::new(&hir, &Ticket::default()).unwrap());
        assert_eq!(edges.forced(0).0.len(), MAX_JUMP_BYTES);
        assert!(edges.path_bytes.len() < 9000);
    }
}
