//! A snapshot of the engine, taken between steps.

use std::time::Duration;

use hearth_radix::KvUsage;

use crate::speculation::MAX_DRAFT;

/// Where the KV slots of one pool are. Every slot is counted in exactly one of `free`,
/// `evictable`, `protected` and `held`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvStats {
    /// All slots of the pool.
    pub total: usize,
    /// Slots on the free list.
    pub free: usize,
    /// Cached, and read by no running request: the first to be evicted.
    pub evictable: usize,
    /// Cached, and read by at least one running request.
    pub protected: usize,
    /// Held by running requests outside the cache.
    pub held: usize,
}

impl KvStats {
    /// The slots of a pool in this state, of which requests hold `held` outside the cache.
    pub(crate) fn of(usage: KvUsage, held: usize) -> Self {
        Self {
            total: usage.total,
            free: usage.free,
            evictable: usage.evictable,
            protected: usage.protected,
            held,
        }
    }

    /// Cached tokens, in use or not.
    pub fn cached(&self) -> usize {
        self.evictable + self.protected
    }

    /// Whether no slot is lost and none is counted twice. This is always true: tests check
    /// it, and debug builds check it at every step.
    pub fn is_conserved(&self) -> bool {
        self.free + self.cached() + self.held == self.total
    }
}

/// The engine at the end of its latest step. Counters count from the start of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    pub kv: KvStats,
    /// The window slots, of layers that attend a window. All fields are zero where these have no
    /// pool of their own.
    pub window: KvStats,
    /// The second pool, in the host's memory: copies of cached tokens. They are `protected`
    /// while a request is about to copy them back. All fields are zero without such a pool.
    pub host: KvStats,
    /// Requests that hold no slots yet, or were preempted.
    pub waiting: usize,
    /// The part of `waiting` that could not start even if there were room: their grammars have not
    /// answered yet, or a running request is about to compute the prefix of their prompts.
    pub deferred: usize,
    /// Requests that hold slots.
    pub running: usize,
    /// The part of `running` that only holds slots, until their contents have been sent to or
    /// received from another engine.
    pub transferring: usize,
    /// Nothing is computed until an operator resumes the engine.
    pub paused: bool,
    pub steps: u64,
    /// Prompt tokens of started requests, cached tokens included.
    pub prompt_tokens: u64,
    /// Prompt tokens that were not computed because they were cached.
    pub cached_tokens: u64,
    /// The part of `cached_tokens` that came from the host's memory.
    pub host_tokens: u64,
    /// Tokens copied from the device to the host.
    pub demoted_tokens: u64,
    /// Tokens copied from the host back to the device.
    pub loaded_tokens: u64,
    /// Tokens of cached prefixes that were read to be kept elsewhere.
    pub saved_tokens: u64,
    /// Tokens that were put into the cache from outside.
    pub restored_tokens: u64,
    /// Tokens sampled.
    pub generated_tokens: u64,
    /// Output tokens that a grammar forced; each saved a forward pass.
    pub forced_tokens: u64,
    /// How often the next tokens of a request were drafted and computed.
    pub drafts: u64,
    /// Tokens of these drafts.
    pub drafted_tokens: u64,
    /// The part of `drafted_tokens` that became output; each saved a step of its request.
    pub accepted_tokens: u64,
    /// The slots of the draft model. All fields are zero without one.
    pub draft_kv: KvStats,
    /// Forward passes of the draft model.
    pub draft_forwards: u64,
    /// Tokens that went through the draft model.
    pub draft_model_tokens: u64,
    /// The part of `draft_forwards` that failed.
    pub draft_failures: u64,
    /// How long the draft model has made drafts.
    pub draft_time: Duration,
    /// The part of `accepted_tokens` at each place of a draft, from the first.
    pub accepted_at: [u64; MAX_DRAFT],
    /// Tokens that went through the model: prompts, outputs, drafts, and tokens that were
    /// computed again after a preemption.
    pub computed_tokens: u64,
    /// Tokens whose keys and values were read for another engine.
    pub sent_tokens: u64,
    /// Tokens whose keys and values came from another engine.
    pub received_tokens: u64,
    /// Requests that another engine was to compute and did not.
    pub failed_transfers: u64,
    /// Requests that the engine thread took in, whether they wait, run or have ended.
    pub received: u64,
    /// Requests that got slots, each counted once.
    pub started: u64,
    pub finished: u64,
    pub cancelled: u64,
    pub failed: u64,
    /// How often a running request went back to the queue because slots ran out.
    pub preemptions: u64,
}

impl EngineStats {
    pub fn is_idle(&self) -> bool {
        self.waiting == 0 && self.running == 0
    }
}
