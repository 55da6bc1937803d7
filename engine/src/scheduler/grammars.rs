//! Answers of grammars, which come when they come.

use super::Scheduler;
use crate::active::Running;
use crate::constraint::Grace;

impl Scheduler {
    /// Takes in what the grammars of running requests have answered. `likely` is for those
    /// that cannot go on without an answer, or after whose last token text is often forced.
    pub(super) fn hear_grammars(&mut self, likely: &mut Grace, unlikely: &mut Grace) {
        for Running { request, .. } in &mut self.running {
            let heard = if request.is_worth_waiting_for() {
                request.hear(likely)
            } else {
                request.hear(unlikely)
            };
            self.counters.generated_tokens += heard.sampled as u64;
            self.counters.forced_tokens += heard.forced as u64;
        }
    }

    /// Queues the requests whose grammars have begun.
    pub(super) fn begin_grammars(&mut self, grace: &mut Grace) {
        self.may_start |= self.waiting.has_beginners();
        for (request, outcome) in self.waiting.begin_ready(grace) {
            self.bid_farewell(request, outcome);
        }
    }

    /// Waits a moment for a grammar: there was nothing to compute.
    pub fn await_grammars(&mut self) {
        let mut grace = Grace::idle();
        self.hear_grammars(&mut grace, &mut Grace::none());
        self.begin_grammars(&mut grace);
        self.retire_done();
    }

    /// Whether there is nothing to compute until a grammar answers.
    pub fn waits_for_grammars(&self) -> bool {
        let late = self.running.iter().any(|r| r.request.is_late());
        late || self.waiting.has_beginners()
    }
}
