//! Processes the output of a completed step.

use std::time::Duration;

use hearth_forward::ForwardOutput;

use super::Scheduler;
use crate::active::{NewTokens, Outcome};
use crate::batch::{SampleKind, Sampling, StepBatch};
use crate::constraint::WaitBudget;
use crate::running::Running;

impl Scheduler {
    /// Takes the output of `batch`, which took the device the time `took`: samples, and finds
    /// the requests that are done. The device may be idle meanwhile, so whatever can wait is left
    /// to [`flush_step`](Self::flush_step).
    pub fn complete(&mut self, batch: &StepBatch, output: &mut ForwardOutput, took: Duration) {
        self.complete_copies(batch);
        self.counters.computed_tokens += batch.tokens() as u64;
        let vocab_size = self.limits.vocab_size;
        let mut rows = output.logits.chunks_exact_mut(vocab_size);
        let hidden_size = output.hidden.len() / batch.forward.hidden_rows.len().max(1);
        let mut hidden = output.hidden.chunks_exact(hidden_size.max(1));
        let mut sampled = output.sampled.iter();
        let mut late_rows = output.sample_logits.chunks_exact_mut(vocab_size);
        let mut sample_kinds = batch.sample_kinds.iter();
        let mut for_drafts = WaitBudget::for_next_row();
        let speculation = &mut self.speculation;
        for grant in &batch.grants {
            let Running {
                request,
                kv,
                to_cache,
                ..
            } = &mut self.running[grant.request];
            kv.computed += grant.tokens;
            request.note_computed(kv.computed);
            for row in rows.by_ref().take(grant.scored_rows) {
                request.note_logprob(row);
            }
            for state in hidden.by_ref().take(grant.hidden_rows) {
                request.add_hidden(state);
            }
            // A prompt is cached as soon as it is computed, not when its request is done.
            *to_cache |= grant.tokens > 1 || request.output_len() == 0;
            if request.completes_prompt(kv.computed) {
                request.prompt_done();
            }
            self.counters.forced_tokens += request.send_forced() as u64;
            // Forced tokens or a withdrawal may have ended the request meanwhile.
            let continues = request.outcome.is_none();
            let mut tokens = NewTokens::default();
            match grant.sampling {
                None => {}
                Some(Sampling::OnHost) => {
                    let draft = &batch.forward.tokens[grant.draft.clone()];
                    if continues {
                        let accepted;
                        (tokens, accepted) =
                            request.sample_draft(&mut rows, draft, &mut for_drafts);
                        kv.computed += accepted;
                        let by_model = request.is_drafted_by_model();
                        let counters = &mut self.counters;
                        speculation.record(draft.len(), accepted, by_model, counters);
                    } else {
                        rows.by_ref().take(draft.len() + 1).for_each(drop);
                    }
                }
                Some(Sampling::OnDevice) => {
                    match sample_kinds.next().expect("each row has a sample request") {
                        SampleKind::Token => {
                            let token = sampled.next();
                            let token = token.expect("the executor's tokens were counted");
                            if continues {
                                let is_sampled = request.take_sampled(*token, vocab_size);
                                tokens.sampled = usize::from(is_sampled);
                            }
                        }
                        SampleKind::Logits => {
                            let row = late_rows.next();
                            let row = row.expect("the executor's sample logits were counted");
                            if continues {
                                tokens = request.sample(row);
                            }
                        }
                        // The grammar has answered what comes instead of a sampled token.
                        SampleKind::Nothing if continues => tokens = request.sample(&mut []),
                        SampleKind::Nothing => {}
                    }
                }
            }
            self.counters.generated_tokens += tokens.sampled as u64;
            self.counters.forced_tokens += tokens.forced as u64;
        }
        // The grammars are polled after all rows, so that the workers evaluate those of several
        // requests at the same time.
        let mut for_forced_text = WaitBudget::for_forced_text(took);
        self.poll_running_grammars(&mut WaitBudget::for_next_row(), &mut for_forced_text);
        self.remove_ended();
    }

    /// Ends the requests of a step that failed. None of its tokens are cached.
    pub fn fail(&mut self, batch: &StepBatch, error: &str) {
        self.complete_copies(batch);
        self.adapters.fail_loads(&batch.adapter_loads);
        for grant in &batch.grants {
            self.running[grant.request].request.outcome = Some(Outcome::Failed(error.to_owned()));
        }
        self.remove_ended();
    }

    /// The device is lost, and with it the keys and values in every slot: ends all running
    /// requests, and forgets everything in the cache. Waiting requests hold nothing there.
    pub fn lose_device(&mut self, batch: &StepBatch, error: &str) {
        self.fail(batch, error);
        for running in &mut self.running {
            running.kv.lose_host();
            running.request.outcome = Some(Outcome::Failed(error.to_owned()));
        }
        self.finish_ended();
        for transfer in self.transfers.drain(..) {
            transfer.refuse(error);
        }
        self.drop_restores(error);
        drop(self.kv.take_copies());
        self.adapters.forget();
        self.kv.forget_host();
        self.flush_cache();
    }

    /// Does what [`complete`](Self::complete) left to do: caches the computed tokens, sends the
    /// sampled ones, and frees the slots of requests that have ended.
    pub fn flush_step(&mut self) {
        let mut running = std::mem::take(&mut self.running);
        for running in &mut running {
            if std::mem::take(&mut running.to_cache) {
                self.cache(running);
            }
            self.kv.free_behind(&mut running.kv);
            running.request.send_outbox();
        }
        self.running = running;
        for mut ended in std::mem::take(&mut self.ended) {
            let outcome = ended.request.outcome.take();
            let outcome = outcome.expect("an ended request has an outcome");
            // After a failure, the contents of the slots are unknown.
            if !matches!(outcome, Outcome::Failed(_)) {
                self.cache(&mut ended);
            }
            self.speculation.end(ended.request.id);
            self.kv.release(ended.kv);
            self.finish(ended.request, outcome);
        }
        self.settle_restores();
    }

    /// Puts the computed tokens of a request into the cache, and tells the queue about them.
    pub(super) fn cache(&mut self, running: &mut Running) {
        let Running { request, kv, .. } = running;
        let new = self.kv.insert(request, kv);
        self.waiting
            .cached(&request.namespace, &request.tokens, new.start, new.end);
    }

    /// Forgets every cached prefix that no running request reads. Returns how many tokens they
    /// had.
    pub fn flush_cache(&mut self) -> usize {
        self.new_token_ratio.reset();
        self.speculation.flush();
        self.kv.flush()
    }
}
