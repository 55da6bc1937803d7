//! Answers of grammars, which come when they come.

use super::Scheduler;
use crate::active::Running;
use crate::batch::{Asked, StepBatch};
use crate::constraint::Grace;
use crate::executor::Choice;

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

    /// What the executor is asked for at the rows of `batch` where it chooses, once all of it
    /// is known; `finally` it is, as it has waited as long as it may: of a request whose mask is
    /// late then it gives the logits.
    pub fn choices(
        &mut self,
        batch: &mut StepBatch,
        grace: &mut Grace,
        finally: bool,
    ) -> Option<Vec<Choice>> {
        let mut choices = Vec::new();
        for grant in batch.grants.iter().filter(|grant| grant.chooses) {
            let choice = self.running[grant.request].request.choice(grace);
            choices.push(match choice {
                None if finally => Choice::Logits,
                choice => choice?,
            });
        }
        batch.asked.extend(choices.iter().map(Asked::from));
        Some(choices)
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
