//! Reports of the engine's steps for observers that measure them.

use std::fmt;
use std::time::Instant;
use std::vec::Drain;

/// One step: a forward pass of the model with its scheduling and sampling.
#[derive(Clone, Debug)]
pub struct StepReport {
    pub started: Instant,
    /// When the batch was complete and went to the device. If the device was still busy with
    /// the step before, `started` and `scheduled` are both the time at which that step was
    /// complete.
    pub scheduled: Instant,
    /// When the output was on the host, or the forward pass had failed.
    pub forwarded: Instant,
    /// When the tokens were sampled. They are sent, and requests start, while the device
    /// computes the next step; so the device is idle from `forwarded` to the next
    /// `scheduled`, if there is work. With overlap scheduling the device had the next step
    /// already, and this equals `forwarded`, so that no time is counted in two steps.
    pub finished: Instant,
    /// Sequences that computed more than one token.
    pub prefill_rows: usize,
    /// The tokens of those sequences.
    pub prefill_tokens: usize,
    /// Sequences that computed one token.
    pub decode_rows: usize,
    pub failed: bool,
    /// The requests in the batch, by their [`Generation::id`](crate::Generation::id), and the
    /// number of tokens that each computed. Empty unless the observer
    /// [asks for it](StepObserver::requests).
    pub requests: Vec<(u64, usize)>,
    /// Requests that started for the first time.
    pub started_requests: u64,
    /// Their prompt tokens, and how many of those were cached.
    pub queried_tokens: u64,
    pub cached_tokens: u64,
    /// Tokens sampled.
    pub generated_tokens: u64,
    /// The state after the step.
    pub occupancy: Occupancy,
}

/// How full an engine is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Occupancy {
    /// Requests that hold slots, and requests that hold none.
    pub running: usize,
    pub waiting: usize,
    /// The KV slots that running requests use, and all slots of the device.
    pub kv_used: usize,
    pub kv_total: usize,
}

/// Takes the reports of several steps, the oldest first.
type Observe = dyn FnMut(Drain<'_, StepReport>) + Send;

/// Gets the reports of all steps, in their order, on the engine thread.
pub struct StepObserver {
    /// If true, [`StepReport::requests`] is filled in, and the report of each step is then handed over
    /// before the final events of its requests are sent. Otherwise the reports of up to 10 ms are
    /// handed over together, and at the latest when the engine has nothing to compute.
    pub requests: bool,
    /// Must not block.
    pub observe: Box<Observe>,
}

impl fmt::Debug for StepObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepObserver")
            .field("requests", &self.requests)
            .finish_non_exhaustive()
    }
}
