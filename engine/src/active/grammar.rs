//! How the answers of a request's grammar change its output.

use std::ops::Range;
use std::task::Poll;
use std::time::Instant;

use hearth_forward::SampleRequest;

use super::forced::UnsentForced;
use super::outcome::Outcome;
use super::request::ActiveRequest;
use crate::constraint::{NextTokens, PANICKED, Progress, RequestGrammar, WaitBudget};
use crate::request::{Event, FinishReason, TokenEvent};
use crate::sampling::logprobs::token_logprobs;

/// How many tokens became known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NewTokens {
    pub sampled: usize,
    pub forced: usize,
}

impl NewTokens {
    fn sampled(is_sampled: bool) -> Self {
        Self {
            sampled: usize::from(is_sampled),
            forced: 0,
        }
    }
}

impl std::ops::AddAssign for NewTokens {
    fn add_assign(&mut self, other: Self) {
        self.sampled += other.sampled;
        self.forced += other.forced;
    }
}

impl ActiveRequest {
    /// Whether nothing of the request can be computed before its grammar answers. Tokens that
    /// the grammar forces after the prompt may be cached together with the prompt, and after
    /// the last token that the request may generate there is nothing to compute.
    pub fn is_late(&self) -> bool {
        let unknown = |grammar: &RequestGrammar| !grammar.progress_is_known();
        let needs_answer = self.output_len() == 0 || self.remaining() == 0;
        self.late_row.is_some() || needs_answer && self.grammar.as_ref().is_some_and(unknown)
    }

    /// Whether an answer is likely to save a row of the next step.
    pub fn is_worth_waiting_for(&self) -> bool {
        let last = self.tokens.last().expect("no prompt is empty");
        self.is_late() || self.forced_text.predicts(*last)
    }

    /// Samples the next token from its `[vocab_size]` logits, unless the grammar forces what
    /// comes next. If the grammar is late, the logits are copied, and
    /// [`poll_grammar`](Self::poll_grammar) samples from the copy.
    pub fn sample(&mut self, logits: &mut [f32]) -> NewTokens {
        self.sample_within(logits, &mut WaitBudget::none())
    }

    /// As [`sample`](Self::sample), but waits for the grammar.
    pub(super) fn sample_within(
        &mut self,
        logits: &mut [f32],
        budget: &mut WaitBudget,
    ) -> NewTokens {
        let tokens = self.try_sample(logits, budget);
        tokens.unwrap_or_else(|| {
            self.late_row = Some(logits.to_vec());
            NewTokens::default()
        })
    }

    /// What the executor is to sample after the last token; `None` if the grammar has not
    /// answered yet. Because the device is busy, this changes nothing but which answers are
    /// known.
    pub fn sample_request(&mut self, budget: &mut WaitBudget) -> Option<SampleRequest> {
        if self.outcome.is_some() {
            return Some(SampleRequest::Nothing);
        }
        let mask = match &mut self.grammar {
            None => None,
            Some(grammar) => match grammar.peek_next(budget) {
                Poll::Ready(NextTokens::Mask(mask)) => Some(mask),
                Poll::Ready(NextTokens::NoChoice) => return Some(SampleRequest::Nothing),
                Poll::Pending => return None,
            },
        };
        let sampler = self.sampler.as_ref();
        let sampler = sampler.expect("a running request was started");
        let params = sampler.sample_params(self.output_len(), mask);
        Some(SampleRequest::Token(params))
    }

    /// Drops the grammar's answers, under which the executor has sampled a token.
    pub(super) fn drop_answers(&mut self) {
        let Some(grammar) = &mut self.grammar else {
            return;
        };
        if !grammar.progress_is_known()
            && let Poll::Ready(progress) = grammar.poll_progress(&mut WaitBudget::none())
        {
            self.apply_progress(progress);
        }
        debug_assert!(
            self.unsent_forced.is_none(),
            "no token is sampled where text is forced"
        );
        if let Some(grammar) = &mut self.grammar {
            grammar.drop_mask();
        }
    }

    /// As [`sample`](Self::sample); `None` if the grammar has not answered yet.
    fn try_sample(&mut self, logits: &mut [f32], budget: &mut WaitBudget) -> Option<NewTokens> {
        let Some(grammar) = &mut self.grammar else {
            return Some(NewTokens::sampled(self.sample_under(None, logits)));
        };
        if !grammar.progress_is_known() {
            let Poll::Ready(progress) = grammar.poll_progress(budget) else {
                return None;
            };
            self.apply_progress(progress);
            if let Some(unsent) = &self.unsent_forced
                && self.params.logprobs.is_some()
                && !unsent.positions.is_empty()
            {
                self.note_forced_logprob(logits);
            }
            if self.unsent_forced.is_some() || self.outcome.is_some() {
                let forced = self.send_forced();
                return Some(NewTokens { sampled: 0, forced });
            }
        }
        let grammar = self.grammar.as_mut()?;
        match grammar.poll_mask(budget) {
            Poll::Ready(Ok(mask)) => {
                let is_sampled = self.sample_under(Some(&mask), logits);
                Some(NewTokens::sampled(is_sampled))
            }
            Poll::Ready(Err(error)) => {
                self.outcome = Some(grammar_failed(error));
                Some(NewTokens::default())
            }
            Poll::Pending => None,
        }
    }

    /// Applies the answers that the grammar has given: samples from a late row, and appends
    /// forced tokens.
    pub fn poll_grammar(&mut self, budget: &mut WaitBudget) -> NewTokens {
        let mut tokens = NewTokens::default();
        if self.outcome.is_some() {
            return tokens;
        }
        if let Some(mut row) = self.late_row.take() {
            match self.try_sample(&mut row, budget) {
                Some(sampled) => tokens += sampled,
                None => self.late_row = Some(row),
            }
        }
        let (None, None, Some(grammar)) = (&self.outcome, &self.late_row, &mut self.grammar) else {
            return tokens;
        };
        if !grammar.progress_is_known()
            && let Poll::Ready(progress) = grammar.poll_progress(budget)
        {
            self.apply_progress(progress);
            tokens.forced += self.send_forced();
        }
        tokens
    }

    fn apply_progress(&mut self, progress: Result<Progress, String>) {
        match progress {
            Ok(progress) => {
                if self.output_len() > 0 {
                    let saves_a_row = progress.complete || !progress.forced.is_empty();
                    let last = self.tokens.last().expect("no prompt is empty");
                    self.forced_text.record(*last, saves_a_row);
                }
                self.append_forced(progress);
            }
            Err(error) => self.outcome = Some(grammar_failed(error)),
        }
    }

    /// Appends the forced tokens up to a stop token, and checks whether the output is complete
    /// or has reached its longest length.
    fn append_forced(&mut self, progress: Progress) {
        let Progress {
            mut forced,
            complete,
        } = progress;
        let stop = forced.iter().position(|&id| self.params.is_stop_token(id));
        let stop_token = stop.map(|at| forced[at]);
        forced.truncate(stop.unwrap_or(forced.len()));
        let from = self.tokens.len();
        self.tokens.extend_from_slice(&forced);
        let end = if stop_token.is_some() || complete {
            Some(FinishReason::Stop { token: stop_token })
        } else if self.remaining() == 0 {
            Some(FinishReason::Length)
        } else {
            None
        };
        if forced.is_empty() && end.is_none() {
            return;
        }
        self.unsent_forced = Some(UnsentForced {
            positions: from..self.tokens.len(),
            logprobs: Vec::new(),
            stops: stop_token.is_some(),
            end,
        });
    }

    /// The positions whose logits are wanted for the log-probabilities of forced tokens; an
    /// empty range at the end of `tokens` if none are.
    pub(super) fn missing_forced_logprobs(&self) -> Range<usize> {
        match &self.unsent_forced {
            Some(unsent) if self.params.logprobs.is_some() => {
                let Range { start, end } = unsent.positions;
                start + unsent.logprobs.len() - 1..end - 1
            }
            _ => self.tokens.len()..self.tokens.len(),
        }
    }

    pub(super) fn note_forced_logprob(&mut self, logits: &[f32]) {
        let top_n = self.params.logprobs.unwrap_or(0);
        let unsent = self.unsent_forced.as_mut().expect("its row was wanted");
        let token = self.tokens[unsent.positions.start + unsent.logprobs.len()];
        let logprob = token_logprobs(logits, token, top_n, &self.params.logprob_ids);
        unsent.logprobs.push(logprob);
    }

    /// Sends forced tokens once all of their log-probabilities are known, and ends the request
    /// if its output ends with them. Returns the number of tokens.
    pub fn send_forced(&mut self) -> usize {
        let with_logprobs = self.params.logprobs.is_some();
        let is_known = |unsent: &mut UnsentForced| {
            !with_logprobs || unsent.logprobs.len() == unsent.positions.len()
        };
        if !self.prompt_is_done {
            return 0;
        }
        let Some(unsent) = self.unsent_forced.take_if(is_known) else {
            return 0;
        };
        let forced = &self.tokens[unsent.positions.clone()];
        let count = forced.len() + usize::from(unsent.stops);
        self.generated += count;
        if !forced.is_empty() {
            let at = Instant::now();
            let mut logprobs = unsent.logprobs.into_iter();
            let drafts = self.draft_counts();
            let event = |&id| TokenEvent {
                id,
                logprob: logprobs.next(),
                at,
                run: 1,
                drafts,
            };
            let events = forced.iter().map(event).collect();
            if let Some(sampler) = &mut self.sampler {
                forced.iter().for_each(|&id| sampler.record(id));
            }
            self.send_later(Event::Forced(events));
        }
        self.outcome = self.outcome.take().or(unsent.end.map(Outcome::Finished));
        count
    }
}

/// The outcome of a request whose grammar gave an `error`. The grammar is the client's, and so is
/// its fault, unless it made our code panic.
fn grammar_failed(error: String) -> Outcome {
    match error.starts_with(PANICKED) {
        true => Outcome::Failed(error),
        false => Outcome::Refused(error),
    }
}
