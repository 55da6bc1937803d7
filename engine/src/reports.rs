//! Reports of completed steps, from their making until the observer has them.
//!
//! A step costs the engine thread the writing of its report into memory that it reuses. The observer,
//! whose code and memory have left the processor's caches by the time of the next step, is called
//! for many steps at once.

use std::time::{Duration, Instant};

use crate::batch::StepBatch;
use crate::events::{Occupancy, StepObserver, StepReport};

/// Reports that are handed over together at the most.
const MOST: usize = 64;
/// The time after which further reports are handed over.
const GATHER: Duration = Duration::from_millis(10);

/// Numbers after a step. All counts begin at the start of the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepCounts {
    pub started: u64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub generated_tokens: u64,
    pub occupancy: Occupancy,
}

#[derive(Debug, Default)]
pub(crate) struct Reports {
    observer: Option<StepObserver>,
    gathered: Vec<StepReport>,
    /// The numbers of the latest report.
    before: StepCounts,
    /// The end of the latest step that was handed over.
    handed_over: Option<Instant>,
}

impl Reports {
    /// Reports to `observer` from now on, when the engine's numbers are `now`.
    pub fn start(&mut self, observer: StepObserver, now: StepCounts) {
        self.hand_over();
        self.gathered.reserve_exact(MOST);
        (self.observer, self.before) = (Some(observer), now);
    }

    /// True if an observer gets reports.
    pub fn are_wanted(&self) -> bool {
        self.observer.is_some()
    }

    fn wants_requests(&self) -> bool {
        self.observer.as_ref().is_some_and(|o| o.requests)
    }

    /// Adds the report of a step, after which the engine's numbers are `after`.
    pub fn add(
        &mut self,
        batch: &StepBatch,
        [started, scheduled, forwarded, finished]: [Instant; 4],
        failed: bool,
        after: StepCounts,
    ) {
        let before = std::mem::replace(&mut self.before, after);
        let (mut prefill_rows, mut prefill_tokens) = (0, 0);
        for grant in batch.grants.iter().filter(|grant| grant.tokens != 1) {
            prefill_rows += 1;
            prefill_tokens += grant.tokens;
        }
        let requests = match self.wants_requests() {
            true => batch.grants.iter().map(|g| (g.id, g.tokens)).collect(),
            false => Vec::new(),
        };
        self.gathered.push(StepReport {
            started,
            scheduled,
            forwarded,
            finished,
            prefill_rows,
            prefill_tokens,
            decode_rows: batch.grants.len() - prefill_rows,
            failed,
            requests,
            started_requests: after.started - before.started,
            queried_tokens: after.prompt_tokens - before.prompt_tokens,
            cached_tokens: after.cached_tokens - before.cached_tokens,
            generated_tokens: after.generated_tokens - before.generated_tokens,
            occupancy: after.occupancy,
        });
    }

    /// Hands the reports over if it is time to.
    pub fn hand_over_due(&mut self) {
        let Some(latest) = self.gathered.last() else {
            return;
        };
        let is_due = self
            .handed_over
            .is_none_or(|at| latest.finished.saturating_duration_since(at) >= GATHER);
        if is_due || self.wants_requests() || self.gathered.len() >= MOST {
            self.hand_over();
        }
    }

    /// Hands all reports over, because no step may follow for a while.
    pub fn hand_over(&mut self) {
        let Some(latest) = self.gathered.last() else {
            return;
        };
        self.handed_over = Some(latest.finished);
        if let Some(observer) = &mut self.observer {
            (observer.observe)(self.gathered.drain(..));
        }
    }
}
