//! What the engine tells about its steps, for whoever measures.

use std::fmt;
use std::time::Instant;

use crate::stats::EngineStats;

/// One step: a forward of the model and what led to it and followed it.
#[derive(Clone, Debug)]
pub struct StepReport {
    pub started: Instant,
    /// The batch was chosen and went to the device.
    pub scheduled: Instant,
    /// The logits were on the host, or the forward had failed.
    pub forwarded: Instant,
    /// Tokens were sampled. They are sent, and requests start, while the device is at the
    /// next step: it has waited from `forwarded` to the next `scheduled`, if there was work.
    pub finished: Instant,
    /// Sequences that computed more than one token, and how many tokens.
    pub prefill_rows: usize,
    pub prefill_tokens: usize,
    pub decode_rows: usize,
    pub failed: bool,
    /// The requests in the batch, by the ids that [`Generation::id`](crate::Generation::id)
    /// has, and how many tokens each computed.
    pub requests: Vec<(u64, usize)>,
    /// Requests that started for the first time.
    pub started_requests: u64,
    /// The engine before the step and after it; counters differ by what the step did.
    pub before: EngineStats,
    pub after: EngineStats,
}

/// Called on the engine thread after each step, before its last events are sent. It
/// must not wait for anything.
pub struct StepObserver(pub Box<dyn FnMut(StepReport) + Send>);

impl fmt::Debug for StepObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StepObserver")
    }
}

/// Takes the times of a step, if somebody wants them.
#[derive(Debug)]
pub(crate) struct StepWatch {
    started: Instant,
    before: EngineStats,
    scheduled: Instant,
}

impl StepWatch {
    pub fn start(before: EngineStats) -> Self {
        let started = Instant::now();
        Self {
            started,
            before,
            scheduled: started,
        }
    }

    pub fn scheduled(&mut self) {
        self.scheduled = Instant::now();
    }

    /// `batch`: for each sequence its request's id and its tokens.
    pub fn finish(
        self,
        forwarded: Instant,
        batch: impl Iterator<Item = (u64, usize)>,
        failed: bool,
        after: EngineStats,
    ) -> StepReport {
        let mut report = StepReport {
            started: self.started,
            scheduled: self.scheduled,
            forwarded,
            finished: Instant::now(),
            prefill_rows: 0,
            prefill_tokens: 0,
            decode_rows: 0,
            failed,
            requests: Vec::with_capacity(batch.size_hint().0),
            started_requests: after.started - self.before.started,
            before: self.before,
            after,
        };
        for (request, tokens) in batch {
            report.requests.push((request, tokens));
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
