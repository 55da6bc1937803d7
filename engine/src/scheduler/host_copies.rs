//! Copies between the device and the host's memory.

use hearth_forward::CopyDirection;

use super::Scheduler;
use crate::active::Outcome;
use crate::batch::StepBatch;
use crate::running::Running;

impl Scheduler {
    /// Counts the copies of a completed step. Tokens that were loaded from the host are cached
    /// as if they had been computed.
    pub(super) fn complete_copies(&mut self, batch: &StepBatch) {
        for copy in &batch.copies {
            *match copy.direction {
                CopyDirection::ToHost => &mut self.counters.demoted_tokens,
                CopyDirection::ToDevice => &mut self.counters.loaded_tokens,
            } += copy.device.len() as u64;
        }
        for load in &batch.loads {
            let Running { kv, to_cache, .. } = &mut self.running[load.request];
            kv.loaded(load.tokens);
            *to_cache = true;
        }
    }

    /// The copies of `batch` failed, and which of them were made is unknown: everything in the
    /// host's memory is forgotten, and the requests that were loading from it end. The forward
    /// pass of the other requests is not affected.
    pub fn fail_copies(&mut self, batch: &mut StepBatch, error: &str) {
        for running in &mut self.running {
            running.kv.lose_host();
        }
        for load in batch.loads.drain(..) {
            let failed = Outcome::Failed(error.to_owned());
            self.running[load.request].request.outcome = Some(failed);
        }
        batch.copies.clear();
        // Copies that are scheduled already refer to the forgotten contents.
        drop(self.kv.take_copies());
        self.kv.forget_host();
    }
}
