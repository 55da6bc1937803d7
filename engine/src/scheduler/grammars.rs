//! The answers of grammars, which arrive at any time.

use hearth_forward::SampleRequest;

use super::Scheduler;
use crate::batch::{SampleKind, Sampling, StepBatch};
use crate::constraint::WaitBudget;
use crate::running::Running;

impl Scheduler {
    /// Applies the answers of the grammars of running requests. `likely` is the time to wait
    /// for requests that cannot continue without an answer, or after whose last token text is
    /// often forced; `unlikely` is for the others.
    pub(super) fn poll_running_grammars(
        &mut self,
        likely: &mut WaitBudget,
        unlikely: &mut WaitBudget,
    ) {
        for Running { request, .. } in &mut self.running {
            let tokens = if request.is_worth_waiting_for() {
                request.poll_grammar(likely)
            } else {
                request.poll_grammar(unlikely)
            };
            self.counters.generated_tokens += tokens.sampled as u64;
            self.counters.forced_tokens += tokens.forced as u64;
        }
    }

    /// The sample requests for the `sample_rows` of `batch`; `None` while some are not known.
    /// With `must_answer`, because the executor waits, they are always returned: a request
    /// whose mask is late then gets its row of logits.
    pub fn sample_requests(
        &mut self,
        batch: &mut StepBatch,
        budget: &mut WaitBudget,
        must_answer: bool,
    ) -> Option<Vec<SampleRequest>> {
        let mut sample_requests = Vec::new();
        let on_device = |sampling| sampling == Some(Sampling::OnDevice);
        for grant in batch.grants.iter().filter(|g| on_device(g.sampling)) {
            let running = &mut self.running[grant.request];
            sample_requests.push(match running.request.sample_request(budget) {
                None if must_answer => SampleRequest::Logits,
                sample_request => sample_request?,
            });
        }
        let kinds = sample_requests.iter().map(SampleKind::from);
        batch.sample_kinds.extend(kinds);
        Some(sample_requests)
    }

    /// Queues the requests whose grammars have answered what their outputs begin with.
    pub(super) fn poll_waiting_grammars(&mut self, budget: &mut WaitBudget) {
        self.may_start |= self.waiting.awaits_grammars();
        for (request, outcome) in self.waiting.poll_grammars(budget) {
            self.finish(request, outcome);
        }
    }

    /// Waits a moment for a grammar, because there is nothing to compute.
    pub fn await_grammars(&mut self) {
        let mut budget = WaitBudget::idle();
        self.poll_running_grammars(&mut budget, &mut WaitBudget::none());
        self.poll_waiting_grammars(&mut budget);
        self.finish_ended();
    }

    /// Whether requests wait for their grammars.
    pub fn awaits_grammars(&self) -> bool {
        let late = self.running.iter().any(|r| r.request.is_late());
        late || self.waiting.awaits_grammars()
    }
}
