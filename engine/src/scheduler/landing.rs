//! What is done with what the device computed.

use super::Scheduler;
use crate::active::{ActiveRequest, Heard, Outcome, Running};
use crate::batch::{Asked, StepBatch};
use crate::constraint::Grace;
use crate::executor::Logits;
use crate::request::FinishReason;

impl Scheduler {
    /// Takes in what the forward of `batch` computed: samples, and sees who is done. The
    /// device waits for it; what can wait is left to [`settle`](Self::settle).
    pub fn advance(&mut self, batch: &StepBatch, logits: &mut Logits) {
        self.take_in_copies(batch);
        self.counters.computed_tokens += batch.tokens() as u64;
        let mut rows = logits.values.chunks_exact_mut(logits.vocab);
        let hidden_rows = batch.forward.hidden_rows.len().max(1);
        let mut hidden = logits
            .hidden
            .chunks_exact((logits.hidden.len() / hidden_rows).max(1));
        let mut chosen = logits.chosen.iter();
        let mut undecided = logits.undecided.chunks_exact_mut(logits.vocab);
        let mut asked = batch.asked.iter();
        for grant in &batch.grants {
            let Running {
                request,
                kv,
                shares,
            } = &mut self.running[grant.request];
            kv.computed += grant.tokens;
            for row in rows.by_ref().take(grant.scored_rows) {
                request.note_logprob(row);
            }
            for state in hidden.by_ref().take(grant.hidden_rows) {
                request.pool(state);
            }
            // A prompt is shared as soon as it is computed, not when its request is done.
            *shares |= grant.tokens > 1 || request.output_len() == 0;
            if request.is_prompt_done(kv.computed) {
                request.prompt_done();
            }
            self.counters.forced_tokens += request.send_forced() as u64;
            // What is forced may have ended it, or its consumer meanwhile.
            let goes_on = request.outcome.is_none();
            let mut heard = Heard::default();
            if grant.samples {
                let row = rows.next().expect("the executor's rows were counted");
                if goes_on {
                    heard = request.sample(row);
                }
            } else if grant.chooses {
                match asked.next().expect("each was asked for something") {
                    Asked::Token => {
                        let token = chosen.next().expect("the executor's tokens were counted");
                        if goes_on {
                            heard.sampled = usize::from(request.take(*token, logits.vocab));
                        }
                    }
                    Asked::Logits => {
                        let row = undecided.next().expect("they were counted, too");
                        if goes_on {
                            heard = request.sample(row);
                        }
                    }
                    // Its grammar said what comes instead.
                    Asked::Nothing if goes_on => heard = request.sample(&mut []),
                    Asked::Nothing => {}
                }
            }
            self.counters.generated_tokens += heard.sampled as u64;
            self.counters.forced_tokens += heard.forced as u64;
        }
        // After all rows, so that grammars of several requests are worked out together.
        let mut to_jump = Grace::to_jump(self.step_took);
        self.hear_grammars(&mut Grace::to_follow(), &mut to_jump);
        self.part();
    }

    /// Ends the requests of a forward that failed. Nothing of it is cached.
    pub fn fail(&mut self, batch: &StepBatch, error: &str) {
        self.take_in_copies(batch);
        for grant in &batch.grants {
            self.running[grant.request].request.outcome = Some(Outcome::Failed(error.to_owned()));
        }
        self.part();
    }

    /// The device is gone, and with it every slot's keys and values: ends all that run, and
    /// forgets what is cached. Requests that wait hold nothing there.
    pub fn lose_device(&mut self, batch: &StepBatch, error: &str) {
        self.fail(batch, error);
        for running in &mut self.running {
            running.kv.lose_host();
            running.request.outcome = Some(Outcome::Failed(error.to_owned()));
        }
        self.retire_done();
        drop(self.kv.take_copies());
        self.kv.forget_host();
        self.flush_cache();
    }

    /// Takes the requests with an outcome out of `running`.
    pub(super) fn part(&mut self) {
        let done = |running: &mut Running| running.request.outcome.is_some();
        let before = self.running.len();
        self.leaving.extend(self.running.extract_if(.., done));
        self.may_start |= self.running.len() < before;
    }

    /// As [`part`](Self::part), at once with all that is to do then.
    pub(super) fn retire_done(&mut self) {
        self.part();
        self.settle();
    }

    /// Does what is left to do of a step: caches what it computed, sends what it sampled, and
    /// takes back what those hold who are done.
    pub fn settle(&mut self) {
        let mut running = std::mem::take(&mut self.running);
        for running in &mut running {
            if std::mem::take(&mut running.shares) {
                self.checkpoint(running);
            }
            running.request.deliver();
        }
        self.running = running;
        for mut running in std::mem::take(&mut self.leaving) {
            let outcome = running.request.outcome.take().expect("it is done");
            // Of what failed nobody knows what its slots hold.
            if !matches!(outcome, Outcome::Failed(_)) {
                self.checkpoint(&mut running);
            }
            self.kv.release(running.kv);
            self.bid_farewell(running.request, outcome);
        }
    }

    /// Caches what was computed of a request, and tells those who wait for it.
    pub(super) fn checkpoint(&mut self, running: &mut Running) {
        let Running { request, kv, .. } = running;
        let new = self.kv.checkpoint(request, kv);
        self.waiting
            .cached(&request.namespace, &request.tokens, new.start, new.end);
    }

    /// Forgets every cached prefix that no running request reads; returns how
    /// many tokens they had.
    pub fn flush_cache(&mut self) -> usize {
        self.ratio.reset();
        self.kv.flush()
    }

    pub(super) fn bid_farewell(&mut self, request: ActiveRequest, outcome: Outcome) {
        *match outcome {
            Outcome::Finished(FinishReason::Cancelled | FinishReason::Aborted)
            | Outcome::Cancelled => &mut self.counters.cancelled,
            Outcome::Finished(_) | Outcome::Satisfied => &mut self.counters.finished,
            Outcome::Failed(_) => &mut self.counters.failed,
        } += 1;
        self.farewells.extend(request.end(outcome));
    }
}
