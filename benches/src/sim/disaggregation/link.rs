//! The network links of the nodes.

use crate::sim::cost::KV_BYTES;

/// One link for each node, and a switch between them that never delays a transfer. A transfer
/// occupies its sender's link first. It occupies its receiver's link from the same time on, or, if
/// other transfers arrive there, after these; the switch keeps its bytes until then. Each link
/// serves its transfers one after another, in the order in which they come to it.
#[derive(Debug)]
pub struct Links {
    /// Gigabits per second, which are bits per nanosecond.
    speed: u64,
    /// The time in nanoseconds at which each node's link is free.
    free: Vec<u64>,
    /// The bytes of all transfers.
    pub bytes: u64,
}

impl Links {
    pub fn new(nodes: usize, gigabits: u64) -> Self {
        Self {
            speed: gigabits,
            free: vec![0; nodes],
            bytes: 0,
        }
    }

    /// Queues the KV of `tokens` tokens at its sender. Returns the time at which the transfer
    /// starts.
    pub fn send(&mut self, now: u64, from: usize, tokens: u64) -> u64 {
        let start = now.max(self.free[from]);
        self.free[from] = start + transfer_ns(tokens, self.speed);
        self.bytes += tokens * KV_BYTES;
        start
    }

    /// Queues the KV of `tokens` tokens, whose transfer starts now, at its receiver. Returns the
    /// time at which all of it has arrived.
    pub fn receive(&mut self, now: u64, to: usize, tokens: u64) -> u64 {
        self.free[to] = now.max(self.free[to]) + transfer_ns(tokens, self.speed);
        self.free[to]
    }
}

/// The nanoseconds that the KV of `tokens` tokens occupies a link of `gigabits` Gbit/s.
pub fn transfer_ns(tokens: u64, gigabits: u64) -> u64 {
    (tokens * KV_BYTES * 8).div_ceil(gigabits)
}
