//! The parts of the scheduler's requests and of the prefix cache that a viewer sees.

use hearth_radix::{CachedEdge, Outline};

use super::Scheduler;
use crate::picture::{MOST_RUNNING, RunningRequest};

impl Scheduler {
    /// The requests that hold slots, in the order of their start; the first [`MOST_RUNNING`].
    pub fn running_requests(&self) -> Vec<RunningRequest> {
        let running = self.running.iter().take(MOST_RUNNING);
        let shown = running.map(|running| RunningRequest {
            id: running.request.id.number(),
            prompt: running.request.prompt_len,
            cached: running.request.cached_tokens.unwrap_or(0),
            computed: running.kv.computed,
            tokens: running.request.tokens.len(),
        });
        shown.collect()
    }

    /// At most `nodes` nodes of the prefix cache; see [`hearth_radix::TieredCache::outline`].
    pub fn outline(&mut self, nodes: usize) -> Outline {
        let running = self.running.iter().map(|running| &running.kv);
        self.kv.outline(running, nodes)
    }

    /// The last `most` tokens of the prefix that ends with a `node`, and how many the node has.
    pub fn cached_prefix(&self, node: u64, most: usize) -> Option<(Vec<u32>, usize)> {
        self.kv.cached_prefix(node, most)
    }

    /// All that the device has cached.
    pub fn cached_prefixes(&self) -> Vec<CachedEdge> {
        self.kv.contents()
    }
}
