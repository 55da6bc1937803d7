//! A snapshot of the engine, taken between steps.

/// Where the KV slots are. Every slot is in exactly one of the four places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvStats {
    pub total: usize,
    /// On the free list.
    pub free: usize,
    /// Cached, and used by no running request: the next to go when room is needed.
    pub evictable: usize,
    /// Cached, and read by at least one running request.
    pub protected: usize,
    /// Held by running requests outside the cache.
    pub held: usize,
}

impl KvStats {
    /// Cached tokens, in use or not.
    pub fn cached(&self) -> usize {
        self.evictable + self.protected
    }

    /// Whether no slot is lost and none is counted twice. Always true; tests
    /// look, and debug builds at every step.
    pub fn is_conserved(&self) -> bool {
        self.free + self.cached() + self.held == self.total
    }
}

/// The engine at the end of its latest step. Counters count from the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    pub kv: KvStats,
    /// The second pool, in the host's memory: copies of what was cached, `protected`
    /// while a request is about to take them back. All zero without one.
    pub host: KvStats,
    /// Requests that hold no slots yet, or had to give them back.
    pub waiting: usize,
    /// Requests that hold slots.
    pub running: usize,
    /// Nothing is computed until somebody resumes.
    pub paused: bool,
    pub steps: u64,
    /// Prompt tokens of started requests, cached ones included.
    pub prompt_tokens: u64,
    /// Prompt tokens that were not computed because the cache had them.
    pub cached_tokens: u64,
    /// Of them, those that came from the host.
    pub host_tokens: u64,
    /// Tokens copied to the host, and back.
    pub demoted_tokens: u64,
    pub loaded_tokens: u64,
    /// Tokens sampled.
    pub generated_tokens: u64,
    /// Output tokens that a grammar forced: forward passes saved.
    pub forced_tokens: u64,
    /// Tokens that went through the model: prompts, outputs, and what was
    /// computed again after a preemption.
    pub computed_tokens: u64,
    /// Requests taken in: those that wait, run, or have ended.
    pub received: u64,
    /// Requests that got slots, each counted once.
    pub started: u64,
    pub finished: u64,
    pub cancelled: u64,
    pub failed: u64,
    /// Times a running request went back to the queue for want of slots.
    pub preemptions: u64,
}

impl EngineStats {
    pub fn is_idle(&self) -> bool {
        self.waiting == 0 && self.running == 0
    }
}
