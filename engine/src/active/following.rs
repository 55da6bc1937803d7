//! What a grammar says of a request's output, and when.

use std::ops::Range;
use std::task::Poll;
use std::time::Instant;

use super::{ActiveRequest, Outcome};
use crate::constraint::{Constrained, Grace, Next, Settled};
use crate::executor::Choice;
use crate::logprobs::{TokenLogprobs, token_logprobs};
use crate::request::{Event, FinishReason, TokenEvent};

/// What was forced and is in `tokens`, so that it is computed with what is before it, but
/// was not told to the consumer: the prompt comes first, and so do log-probabilities.
#[derive(Debug)]
pub(super) struct Unsent {
    /// Where in `tokens`.
    places: Range<usize>,
    /// Of the first of them, as far as they are computed.
    logprobs: Vec<TokenLogprobs>,
    /// Whether a token follows that ends the output and is none of it.
    stops: bool,
    /// If the output ends with them.
    end: Option<FinishReason>,
}

impl Unsent {
    pub fn is_last(&self) -> bool {
        self.end.is_some()
    }
}

/// How many tokens became known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Heard {
    pub sampled: usize,
    pub forced: usize,
}

impl std::ops::AddAssign for Heard {
    fn add_assign(&mut self, other: Self) {
        self.sampled += other.sampled;
        self.forced += other.forced;
    }
}

impl ActiveRequest {
    /// Whether nothing of it can be computed before its grammar answers. What follows the
    /// prompt by force may be cached with it; and after the last token that it may have
    /// there is nothing to compute.
    pub fn is_late(&self) -> bool {
        let unsettled = |c: &Constrained| !c.is_settled();
        let alone = self.output_len() == 0 || self.remaining() == 0;
        self.late_row.is_some() || alone && self.constrained.as_ref().is_some_and(unsettled)
    }

    /// Whether an answer is likely to save a row of the next step.
    pub fn is_worth_waiting_for(&self) -> bool {
        let last = self.tokens.last().expect("no prompt is empty");
        self.is_late() || self.habits.expects_force(*last)
    }

    /// Samples the next token from its `[vocab]` logits, unless its grammar is late: then it
    /// keeps a copy and [`hear`](Self::hear) does; or unless it forces what comes next.
    pub fn sample(&mut self, logits: &mut [f32]) -> Heard {
        let heard = self.follow(logits, &mut Grace::none());
        heard.unwrap_or_else(|| {
            self.late_row = Some(logits.to_vec());
            Heard::default()
        })
    }

    /// What the executor is asked for after the last token; `None` if the grammar's answer is
    /// not there yet. Nothing changes but what is known of the answer: the device is at work.
    pub fn choice(&mut self, grace: &mut Grace) -> Option<Choice> {
        if self.outcome.is_some() {
            return Some(Choice::Nothing);
        }
        let mask = match &mut self.constrained {
            None => None,
            Some(constrained) => match constrained.next(grace) {
                Poll::Ready(Next::Mask(mask)) => Some(mask),
                Poll::Ready(Next::NoChoice) => return Some(Choice::Nothing),
                Poll::Pending => return None,
            },
        };
        let sampler = self.sampler.as_ref();
        let sampler = sampler.expect("a running request was started");
        let choice = sampler.choice(self.output_len(), mask);
        Some(Choice::Token(choice))
    }

    /// The token was chosen under the grammar's answers, of which nothing is left to do.
    pub(super) fn forget_answers(&mut self) {
        let Some(constrained) = &mut self.constrained else {
            return;
        };
        if !constrained.is_settled()
            && let Poll::Ready(settled) = constrained.settled(&mut Grace::none())
        {
            self.settle(settled);
        }
        debug_assert!(self.unsent.is_none(), "where text is forced none is chosen");
        if let Some(constrained) = &mut self.constrained {
            constrained.drop_mask();
        }
    }

    /// Goes on from `[vocab]` logits; `None` if the grammar's answer is not there yet.
    fn follow(&mut self, logits: &mut [f32], grace: &mut Grace) -> Option<Heard> {
        let sampled = |got: bool| Heard {
            sampled: usize::from(got),
            forced: 0,
        };
        let Some(constrained) = &mut self.constrained else {
            return Some(sampled(self.sample_under(None, logits)));
        };
        if !constrained.is_settled() {
            let Poll::Ready(settled) = constrained.settled(grace) else {
                return None;
            };
            self.settle(settled);
            if let Some(unsent) = &self.unsent
                && self.params.logprobs.is_some()
                && !unsent.places.is_empty()
            {
                self.note_forced_logprob(logits);
            }
            if self.unsent.is_some() || self.outcome.is_some() {
                let forced = self.send_forced();
                return Some(Heard { sampled: 0, forced });
            }
        }
        let constrained = self.constrained.as_mut()?;
        match constrained.mask(grace) {
            Poll::Ready(Ok(mask)) => Some(sampled(self.sample_under(Some(&mask), logits))),
            Poll::Ready(Err(error)) => {
                self.outcome = Some(Outcome::Failed(error));
                Some(Heard::default())
            }
            Poll::Pending => None,
        }
    }

    /// Goes on by what its grammar has answered, as far as it has.
    pub fn hear(&mut self, grace: &mut Grace) -> Heard {
        let mut heard = Heard::default();
        if self.outcome.is_some() {
            return heard;
        }
        if let Some(mut row) = self.late_row.take() {
            match self.follow(&mut row, grace) {
                Some(followed) => heard += followed,
                None => self.late_row = Some(row),
            }
        }
        let (None, None, Some(constrained)) =
            (&self.outcome, &self.late_row, &mut self.constrained)
        else {
            return heard;
        };
        if !constrained.is_settled()
            && let Poll::Ready(settled) = constrained.settled(grace)
        {
            self.settle(settled);
            heard.forced += self.send_forced();
        }
        heard
    }

    fn settle(&mut self, settled: Result<Settled, String>) {
        match settled {
            Ok(settled) => {
                if self.output_len() > 0 {
                    let saves = settled.complete || !settled.forced.is_empty();
                    let last = self.tokens.last().expect("no prompt is empty");
                    self.habits.note(*last, saves);
                }
                self.append_forced(settled);
            }
            Err(error) => self.outcome = Some(Outcome::Failed(error)),
        }
    }

    /// Appends what follows by force up to a stop token, and sees whether the output is
    /// whole or as long as it may be.
    fn append_forced(&mut self, settled: Settled) {
        let Settled {
            mut forced,
            complete,
        } = settled;
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
        self.unsent = Some(Unsent {
            places: from..self.tokens.len(),
            logprobs: Vec::new(),
            stops: stop_token.is_some(),
            end,
        });
    }

    /// The positions whose logits are wanted for the log-probabilities of forced tokens;
    /// past the end if none are.
    pub(super) fn missing_forced_logprobs(&self) -> Range<usize> {
        match &self.unsent {
            Some(unsent) if self.params.logprobs.is_some() => {
                let Range { start, end } = unsent.places;
                start + unsent.logprobs.len() - 1..end - 1
            }
            _ => self.tokens.len()..self.tokens.len(),
        }
    }

    pub(super) fn note_forced_logprob(&mut self, logits: &[f32]) {
        let top_n = self.params.logprobs.unwrap_or(0);
        let unsent = self.unsent.as_mut().expect("its row was wanted");
        let token = self.tokens[unsent.places.start + unsent.logprobs.len()];
        let logprob = token_logprobs(logits, token, top_n, &self.params.logprob_ids);
        unsent.logprobs.push(logprob);
    }

    /// Counts and sends what was forced, once all of it is known, and ends the request if
    /// its output ends with it. Returns how many tokens that is.
    pub fn send_forced(&mut self) -> usize {
        let with_logprobs = self.params.logprobs.is_some();
        let is_known =
            |unsent: &mut Unsent| !with_logprobs || unsent.logprobs.len() == unsent.places.len();
        if !self.prompt_is_done {
            return 0;
        }
        let Some(unsent) = self.unsent.take_if(is_known) else {
            return 0;
        };
        let forced = &self.tokens[unsent.places.clone()];
        let count = forced.len() + usize::from(unsent.stops);
        self.generated += count;
        if !forced.is_empty() {
            let at = Instant::now();
            let mut logprobs = unsent.logprobs.into_iter();
            let event = |&id| TokenEvent {
                id,
                logprob: logprobs.next(),
                at,
            };
            let events = forced.iter().map(event).collect();
            if let Some(sampler) = &mut self.sampler {
                forced.iter().for_each(|&id| sampler.record(id));
            }
            self.send(Event::Forced(events));
        }
        self.outcome = self.outcome.take().or(unsent.end.map(Outcome::Finished));
        count
    }
}
