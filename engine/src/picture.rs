//! A bounded picture of the engine at one moment, for people to look at.

use hearth_radix::Outline;

use crate::stats::EngineStats;

/// The engine while a step is in flight, or idle.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    pub stats: EngineStats,
    /// The step in flight: requests by their [`Generation::id`](crate::Generation::id) and the
    /// tokens that it computes for each. Empty if none is in flight.
    pub batch: Vec<(u64, usize)>,
    /// Requests that hold slots, in the order of their start; the first [`MOST_RUNNING`] of them.
    pub running: Vec<RunningRequest>,
    pub cache: Outline,
}

/// Most requests in a [`Picture`].
pub const MOST_RUNNING: usize = 128;

/// A request that holds slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningRequest {
    /// Its [`Generation::id`](crate::Generation::id).
    pub id: u64,
    /// Tokens of its prompt.
    pub prompt: usize,
    /// Tokens of its prompt that were cached when it started.
    pub cached: usize,
    /// Tokens whose keys and values are in their slots.
    pub computed: usize,
    /// Tokens of its prompt and of its output so far.
    pub tokens: usize,
}

/// A cached prefix that ends with a node of the prefix cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedPrefix {
    /// The last tokens of the prefix.
    pub tokens: Vec<u32>,
    /// How many tokens the node itself has.
    pub own: usize,
}
