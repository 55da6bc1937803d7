//! A request inside the engine, waiting or running.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use crate::constraint::{Constrained, Settled, apply};
use crate::inbox::{RequestId, Submission};
use crate::kv::RequestKv;
use crate::logprobs::{TokenLogprobs, prompt_logprob};
use crate::params::SamplingParams;
use crate::request::{Event, FinishReason, TokenEvent, Usage};
use crate::sampler::{Sampled, SamplerState};
use crate::step::panic_text;

/// How a request left the engine.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Finished(FinishReason),
    /// Its consumer has enough; nobody listens.
    Satisfied,
    /// Its consumer is gone; nobody listens.
    Cancelled,
    Failed(String),
}

#[derive(Debug)]
pub(crate) struct ActiveRequest {
    pub id: RequestId,
    pub namespace: String,
    /// What its caller calls it.
    pub name: Option<String>,
    pub priority: i32,
    pub params: SamplingParams,
    /// Prompt and output. A preempted request comes back with its output here,
    /// and computes both again as if all were prompt.
    pub tokens: Vec<u32>,
    pub prompt_len: usize,
    /// Prompt tokens reused at the first start; `None` before it.
    pub cached_tokens: Option<usize>,
    /// Set when the request is to leave at the end of the step.
    pub outcome: Option<Outcome>,
    /// Made at the first start: it can be as large as the vocabulary.
    sampler: Option<SamplerState>,
    /// Sampled and forced tokens, the one that stopped the request included.
    generated: usize,
    constrained: Option<Constrained>,
    /// What the grammar forces at the very beginning; in `tokens` already, so that it is
    /// computed with the prompt. Taken when the prompt is done.
    beginning: Option<Result<Settled, String>>,
    /// Whether the prompt was computed once.
    prompt_is_done: bool,
    /// One entry per prompt token so far, until they are sent.
    prompt_logprobs: Vec<Option<TokenLogprobs>>,
    events: UnboundedSender<Event>,
    queued: Instant,
}

impl ActiveRequest {
    pub fn new(submission: Submission) -> Self {
        let Submission {
            id,
            request,
            events,
            queued,
        } = submission;
        let prompt_logprobs = match request.params.prompt_logprobs {
            // Nothing that is computed comes before the first of them to predict it.
            Some(_) => {
                let last = request.prompt.len().saturating_sub(1);
                vec![None; request.params.prompt_logprobs_from.min(last) + 1]
            }
            None => Vec::new(),
        };
        // Without an output there is nothing to constrain.
        let constrained = request.constraint.filter(|_| request.params.max_tokens > 0);
        let mut constrained =
            constrained.map(|constrain| Constrained::begin(&constrain, request.params.max_tokens));
        let beginning = constrained.as_mut().and_then(Constrained::settle);
        let prompt_len = request.prompt.len();
        let mut tokens = request.prompt;
        if let Some(Ok(settled)) = &beginning {
            tokens.extend_from_slice(&settled.forced);
        }
        Self {
            id,
            namespace: request.namespace.unwrap_or_default(),
            name: request.id,
            priority: request.priority,
            params: request.params,
            prompt_len,
            tokens,
            cached_tokens: None,
            outcome: None,
            sampler: None,
            generated: 0,
            constrained,
            beginning,
            prompt_is_done: false,
            prompt_logprobs,
            events,
            queued,
        }
    }

    pub fn output_len(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Tokens it may still generate.
    pub fn remaining(&self) -> usize {
        self.params.max_tokens - self.output_len()
    }

    /// How much of `tokens` may come from the cache: never all of it, as the
    /// next token is sampled from what the last one computes; and nothing whose
    /// log-probabilities are still to be computed.
    pub fn reusable(&self) -> usize {
        match self.prompt_logprobs.len() {
            0 => self.tokens.len() - 1,
            known => known - 1,
        }
    }

    /// The positions of `start..end` whose logits are wanted for the next prompt token.
    pub fn wanted_prompt_logprobs(&self, start: usize, end: usize) -> Range<usize> {
        let Some(first) = self.prompt_logprobs.len().checked_sub(1) else {
            return start..start;
        };
        let first = first.max(start);
        first..end.min(self.prompt_len - 1).max(first)
    }

    /// The request got its slots, `reused` of them from the cache. Returns
    /// whether it is its first start.
    pub fn start(&mut self, reused: usize) -> bool {
        if self.cached_tokens.is_some() {
            return false;
        }
        // What is forced at the beginning may be cached, too.
        let cached_tokens = reused.min(self.prompt_len);
        self.cached_tokens = Some(cached_tokens);
        let prompt = &self.tokens[..self.prompt_len];
        self.sampler = Some(SamplerState::new(&self.params, prompt));
        self.send(Event::Started {
            prompt_tokens: self.prompt_len,
            cached_tokens,
            queued: self.queued,
            started: Instant::now(),
        });
        true
    }

    /// The request gave its slots back.
    pub fn preempted(&self) {
        self.send(Event::Preempted { at: Instant::now() });
    }

    /// Notes the log-probability of the next prompt token, `[vocab]` logits
    /// having come out of the one before it.
    pub fn note_prompt_logprob(&mut self, logits: &[f32]) {
        let token = self.tokens[self.prompt_logprobs.len()];
        let top_n = self.params.prompt_logprobs.unwrap_or(0);
        self.prompt_logprobs
            .push(Some(prompt_logprob(logits, token, top_n)));
    }

    /// Whether the prompt is computed for the first time, with `computed` tokens.
    pub fn is_prompt_done(&self, computed: usize) -> bool {
        !self.prompt_is_done && computed >= self.prompt_len
    }

    /// The whole prompt is computed, and what follows it by force. Returns how many
    /// tokens that is.
    pub fn prompt_done(&mut self) -> usize {
        self.prompt_is_done = true;
        if self.prompt_logprobs.len() == self.prompt_len {
            let logprobs = std::mem::take(&mut self.prompt_logprobs);
            self.send(Event::PromptLogprobs(logprobs));
        }
        if self.params.max_tokens == 0 {
            self.outcome = Some(Outcome::Finished(FinishReason::Length));
        }
        match self.beginning.take() {
            Some(beginning) => self.take_settled(beginning),
            None => 0,
        }
    }

    /// Takes in what follows the latest token by force. Returns how many tokens that is.
    pub fn settle(&mut self) -> usize {
        if self.outcome.is_some() {
            return 0;
        }
        match self.constrained.as_mut().and_then(Constrained::settle) {
            Some(settled) => {
                if let Ok(Settled { forced, .. }) = &settled {
                    self.tokens.extend_from_slice(forced);
                }
                self.take_settled(settled)
            }
            None => 0,
        }
    }

    /// Counts and sends what was forced, which is in `tokens`, and ends the request if
    /// its output is whole or as long as it may be.
    fn take_settled(&mut self, settled: Result<Settled, String>) -> usize {
        let Settled {
            mut forced,
            complete,
        } = match settled {
            Ok(settled) => settled,
            Err(error) => {
                self.outcome = Some(Outcome::Failed(error));
                return 0;
            }
        };
        let stop = forced.iter().position(|&id| self.params.is_stop_token(id));
        let mut reason = match (complete, self.remaining()) {
            (true, _) => Some(FinishReason::Stop { token: None }),
            (false, 0) => Some(FinishReason::Length),
            (false, _) => None,
        };
        if let Some(stop) = stop {
            let token = Some(forced[stop]);
            reason = Some(FinishReason::Stop { token });
            forced.truncate(stop);
        }
        let count = forced.len() + usize::from(stop.is_some());
        self.generated += count;
        let at = Instant::now();
        let event = |id| TokenEvent {
            id,
            // The grammar leaves one way: of those tokens that are allowed it has all
            // of the probability.
            logprob: self.params.logprobs.map(|top_n| TokenLogprobs {
                token: id,
                logprob: 0.0,
                top: (0..top_n.min(1)).map(|_| (id, 0.0)).collect(),
            }),
            at,
        };
        if !forced.is_empty() {
            let events = forced.iter().map(|&id| event(id)).collect();
            if let Some(sampler) = &mut self.sampler {
                forced.iter().for_each(|&id| sampler.record(id));
            }
            self.send(Event::Forced(events));
        }
        self.outcome = self.outcome.take().or(reason.map(Outcome::Finished));
        count
    }

    /// Samples the next token from its `[vocab]` logits, and ends the request if
    /// it is the last or cannot be had. Returns whether there is one.
    pub fn sample(&mut self, logits: &mut [f32]) -> bool {
        if let Some(constrained) = &self.constrained {
            match constrained.mask() {
                Ok(mask) => apply(&mask, logits),
                Err(error) => {
                    self.outcome = Some(Outcome::Failed(error));
                    return false;
                }
            }
        }
        let position = self.output_len();
        let sampler = self
            .sampler
            .as_mut()
            .expect("a running request was started");
        // A panic here would be a bug of ours; it need not end the others' requests.
        let sampled = catch_unwind(AssertUnwindSafe(|| sampler.sample(logits, position)))
            .map_err(|panic| format!("sampling panicked: {}", panic_text(&*panic)))
            .and_then(|result| result.map_err(|error| error.to_string()));
        match sampled {
            Ok(sampled) => self.accept(sampled),
            Err(error) => self.outcome = Some(Outcome::Failed(error)),
        }
        !matches!(self.outcome, Some(Outcome::Failed(_)))
    }

    fn accept(&mut self, sampled: Sampled) {
        let Sampled { token: id, logprob } = sampled;
        self.generated += 1;
        if self.params.is_stop_token(id) {
            let reason = FinishReason::Stop { token: Some(id) };
            self.outcome = Some(Outcome::Finished(reason));
            return;
        }
        self.tokens.push(id);
        let at = Instant::now();
        self.send(Event::Token(TokenEvent { id, logprob, at }));
        let remaining = self.remaining();
        if let Some(constrained) = &mut self.constrained {
            // Whether this was the last, `settle` sees: a whole output ends as one, also
            // with the last token that it may have.
            constrained.advance(Some(id), remaining);
        } else if remaining == 0 {
            self.outcome = Some(Outcome::Finished(FinishReason::Length));
        }
    }

    /// The last event and where to send it, if anyone listens.
    pub fn end(self, outcome: Outcome) -> Option<(UnboundedSender<Event>, Event)> {
        let usage = Usage {
            prompt_tokens: self.prompt_len,
            cached_tokens: self.cached_tokens.unwrap_or(0),
            completion_tokens: self.generated,
        };
        let event = match outcome {
            Outcome::Finished(reason) => Event::Finished(reason, usage),
            Outcome::Failed(text) => Event::Failed(text),
            Outcome::Satisfied | Outcome::Cancelled => return None,
        };
        Some((self.events, event))
    }

    fn send(&self, event: Event) {
        // A consumer that is gone has withdrawn the request; the next step sees it.
        let _ = self.events.send(event);
    }
}

/// A request that holds slots.
#[derive(Debug)]
pub(crate) struct Running {
    pub request: ActiveRequest,
    pub kv: RequestKv,
}

impl Running {
    /// Tokens to put through the model before the next one can be sampled; 1
    /// for a request that decodes.
    pub fn pending(&self) -> usize {
        self.request.tokens.len() - self.kv.computed
    }
}
