//! What the engine tells about its steps, for whoever measures.

use std::fmt;
use std::time::Instant;

use crate::stats::EngineStats;

/// One step: a forward of the model and what led to it and followed it.
#[derive(Clone, Debug)]
pub struct StepReport {
    pub started: Instant,
    /// The batch was chosen and went to the device. If that was at another one, both times are
    /// when it was done with that.
    pub scheduled: Instant,
    /// The logits were on the host, or the forward had failed.
    pub forwarded: Instant,
    /// Tokens were sampled. They are sent, and requests start, while the device is at the
    /// next step: it has waited from `forwarded` to the next `scheduled`, if there was work.
    /// If it had that before, this is `forwarded`, so that no time is in two steps.
    pub finished: Instant,
    /// Sequences that computed more than one token, and how many tokens.
    pub prefill_rows: usize,
    pub prefill_tokens: usize,
    pub decode_rows: usize,
    pub failed: bool,
    /// The requests in the batch, by the ids that [`Generation::id`](crate::Generation::id)
    /// has, and how many tokens each computed; empty where the observer does not ask for them.
    pub requests: Vec<(u64, usize)>,
    /// Requests that started for the first time.
    pub started_requests: u64,
    /// The engine before the step and after it; counters differ by what the step did.
    pub before: EngineStats,
    pub after: EngineStats,
}

/// Called on the engine thread after each step, before its last events are sent. It
/// must not wait for anything.
pub struct StepObserver {
    /// Whether it wants to be told of each request in a step.
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
    /// `batch`: for each sequence its request's id and its tokens; `before` and `after` the
    /// step.
    pub(crate) fn finish(
        [started, scheduled, forwarded, finished]: [Instant; 4],
        batch: impl Iterator<Item = (u64, usize)>,
        with_requests: bool,
        failed: bool,
        [before, after]: [EngineStats; 2],
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
            before,
            after,
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
