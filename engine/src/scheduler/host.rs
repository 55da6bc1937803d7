//! What is copied to the host's memory and back.

use super::Scheduler;
use crate::active::{Outcome, Running};
use crate::batch::StepBatch;
use hearth_forward::CopyDirection;

impl Scheduler {
    /// Counts what was copied, and caches what was loaded as if it had been computed.
    pub(super) fn take_in_copies(&mut self, batch: &StepBatch) {
        for copy in &batch.copies {
            *match copy.direction {
                CopyDirection::ToHost => &mut self.counters.demoted_tokens,
                CopyDirection::ToDevice => &mut self.counters.loaded_tokens,
            } += copy.device.len() as u64;
        }
        for load in &batch.loads {
            let Running { kv, shares, .. } = &mut self.running[load.request];
            kv.loaded(load.tokens);
            *shares = true;
        }
    }

    /// The copies of `batch` failed. Nobody knows which of them were made: what the host
    /// has is forgotten, and the requests that took from it end. The forward of the others
    /// is not concerned.
    pub fn fail_copies(&mut self, batch: &mut StepBatch, error: &str) {
        for running in &mut self.running {
            running.kv.lose_host();
        }
        for load in batch.loads.drain(..) {
            let failed = Outcome::Failed(error.to_owned());
            self.running[load.request].request.outcome = Some(failed);
        }
        batch.copies.clear();
        // Those that were to follow are of no use without it.
        drop(self.kv.take_copies());
        self.kv.forget_host();
    }
}
