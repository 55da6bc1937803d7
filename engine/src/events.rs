//! Reports of the engine's steps for observers that measure them.

use std::fmt;
use std::time::Instant;

use crate::stats::{EngineStats, KvStats};

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
    /// Requests that held slots after the step, and requests that held none.
    pub running: usize,
    pub waiting: usize,
    /// The pools after the step.
    pub kv: KvStats,
    pub host: KvStats,
}

/// Called on the engine thread after each step, before the final events of its requests are
/// sent. It must not block.
pub struct StepObserver {
    /// Whether [`StepReport::requests`] is filled in.
    pub requests: bool,
    pub observe: Box<dyn FnMut(StepReport) + Send>,
}

impl fmt::Debug for StepObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepObserver")
            .field("requests", &self.requests)
            .finish_non_exhaustive()
    }
}

impl StepReport {
    /// `batch` has the request id and the number of tokens of each sequence; `before` and
    /// `after` are the statistics around the step, whose counters differ by what the step did.
    pub(crate) fn new(
        [started, scheduled, forwarded, finished]: [Instant; 4],
        batch: impl Iterator<Item = (u64, usize)>,
        with_requests: bool,
        failed: bool,
        [before, after]: [&EngineStats; 2],
    ) -> Self {
        let mut report = Self {
            started,
            scheduled,
            forwarded,
            finished,
            prefill_rows: 0,
            prefill_tokens: 0,
            decode_rows: 0,
            failed,
            requests: Vec::new(),
            started_requests: after.started - before.started,
            queried_tokens: after.prompt_tokens - before.prompt_tokens,
            cached_tokens: after.cached_tokens - before.cached_tokens,
            generated_tokens: after.generated_tokens - before.generated_tokens,
            running: after.running,
            waiting: after.waiting,
            kv: after.kv,
            host: after.host,
        };
        if with_requests {
            report.requests.reserve_exact(batch.size_hint().0);
        }
        for (request, tokens) in batch {
            if with_requests {
                report.requests.push((request, tokens));
            }
            match tokens {
                1 => report.decode_rows += 1,
                tokens => {
                    report.prefill_rows += 1;
                    report.prefill_tokens += tokens;
                }
            }
        }
        report
    }
}
