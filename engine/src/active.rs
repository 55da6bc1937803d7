//! A request inside the engine, waiting or running.

mod ahead;
mod following;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use crate::constraint::{Constrained, Habits, Mask};
use crate::device::panic_text;
use crate::inbox::{RequestId, Submission};
use crate::kv::RequestKv;
use crate::logprobs::{TokenLogprobs, token_logprobs};
use crate::params::SamplingParams;
use crate::pooling::Pool;
use crate::request::{Event, FinishReason, TokenEvent, Usage};
use crate::sampler::{SampleError, Sampled, SamplerState};
pub(crate) use ahead::Ahead;
pub(crate) use following::Heard;
use following::Unsent;

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
    habits: Habits,
    /// Logits of the next token, `[vocab]`, while its grammar is late.
    late_row: Option<Vec<f32>>,
    unsent: Option<Unsent>,
    /// Whether the prompt was computed once.
    prompt_is_done: bool,
    /// One entry per prompt token so far, until they are sent.
    prompt_logprobs: Vec<Option<TokenLogprobs>>,
    /// Taken when the prompt is done.
    pool: Option<Pool>,
    events: UnboundedSender<Event>,
    /// What there was no time to send yet.
    outbox: Vec<Event>,
    queued: Instant,
}

impl ActiveRequest {
    pub fn new(submission: Submission, habits: &Habits) -> Self {
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
        let constrained =
            constrained.map(|constrain| Constrained::begin(&constrain, request.params.max_tokens));
        Self {
            id,
            namespace: request.namespace.unwrap_or_default(),
            name: request.id,
            priority: request.priority,
            params: request.params,
            prompt_len: request.prompt.len(),
            tokens: request.prompt,
            cached_tokens: None,
            outcome: None,
            sampler: None,
            generated: 0,
            constrained,
            habits: habits.clone(),
            late_row: None,
            unsent: None,
            prompt_is_done: false,
            prompt_logprobs,
            pool: request.pooling.map(Pool::new),
            events,
            outbox: Vec::new(),
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
    /// log-probabilities or hidden states are still to be computed.
    pub fn reusable(&self) -> usize {
        let known = self.missing_logprobs().start.min(self.tokens.len() - 1);
        let pool = self.pool.as_ref();
        pool.map_or(known, |pool| pool.reusable().min(known))
    }

    /// The positions of `start..end` whose hidden states are wanted.
    pub fn wanted_hidden(&self, start: usize, end: usize) -> Range<usize> {
        match &self.pool {
            Some(pool) => pool.wanted(start..end, self.prompt_len),
            None => start..start,
        }
    }

    /// Takes the `[hidden_size]` hidden state of the next wanted position.
    pub fn pool(&mut self, hidden: &[f32]) {
        if let Some(pool) = &mut self.pool {
            pool.take(hidden);
        }
    }

    /// The positions whose logits are still wanted for the log-probabilities of the
    /// tokens after them, which were not sampled: the prompt's, and what a grammar forced.
    fn missing_logprobs(&self) -> Range<usize> {
        let forced = self.missing_forced_logprobs();
        match self.prompt_logprobs.len().checked_sub(1) {
            // What is forced before those are sent follows the prompt.
            Some(first) if forced.is_empty() => first..self.prompt_len - 1,
            Some(first) => first..forced.end,
            None => forced,
        }
    }

    /// Those of them that are in `start..end`.
    pub fn wanted_logprobs(&self, start: usize, end: usize) -> Range<usize> {
        let missing = self.missing_logprobs();
        let first = missing.start.max(start);
        first..missing.end.min(end).max(first)
    }

    /// Whether a token is to be sampled after the last one.
    pub fn samples_next(&self) -> bool {
        self.remaining() > 0 && self.unsent.as_ref().is_none_or(|unsent| !unsent.is_last())
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
    pub fn preempted(&mut self) {
        // Its token is computed again.
        self.late_row = None;
        self.send(Event::Preempted { at: Instant::now() });
        self.deliver();
    }

    /// Notes the log-probability of the next token of those that were not sampled,
    /// `[vocab]` logits having come out of the one before it.
    pub fn note_logprob(&mut self, logits: &[f32]) {
        if self.prompt_logprobs.is_empty() || self.prompt_logprobs.len() == self.prompt_len {
            return self.note_forced_logprob(logits);
        }
        let token = self.tokens[self.prompt_logprobs.len()];
        let top_n = self.params.prompt_logprobs.unwrap_or(0);
        let logprobs = token_logprobs(logits, token, top_n, &self.params.logprob_ids);
        self.prompt_logprobs.push(Some(logprobs));
    }

    /// Whether the prompt is computed for the first time, with `computed` tokens.
    pub fn is_prompt_done(&self, computed: usize) -> bool {
        !self.prompt_is_done && computed >= self.prompt_len
    }

    /// The whole prompt is computed.
    pub fn prompt_done(&mut self) {
        self.prompt_is_done = true;
        if self.prompt_logprobs.len() == self.prompt_len {
            let logprobs = std::mem::take(&mut self.prompt_logprobs);
            self.send(Event::PromptLogprobs(logprobs));
        }
        if let Some(pool) = self.pool.take() {
            self.send(Event::Embedding(pool.vector()));
        }
        if self.params.max_tokens == 0 && self.outcome.is_none() {
            self.outcome = Some(Outcome::Finished(FinishReason::Length));
        }
    }

    /// Samples the next token from its `[vocab]` logits, and ends the request if
    /// it is the last or cannot be had. Returns whether there is one.
    fn sample_under(&mut self, mask: Option<&Mask>, logits: &mut [f32]) -> bool {
        let position = self.output_len();
        let sampler = self
            .sampler
            .as_mut()
            .expect("a running request was started");
        let sample = || match mask {
            Some(mask) => sampler.sample_masked(logits, mask, position),
            None => sampler.sample(logits, position),
        };
        // A panic here would be a bug of ours; it need not end the others' requests.
        let sampled = catch_unwind(AssertUnwindSafe(sample))
            .map_err(|panic| format!("sampling panicked: {}", panic_text(&*panic)))
            .and_then(|result| result.map_err(|error| error.to_string()));
        match sampled {
            Ok(sampled) => self.accept(sampled),
            Err(error) => self.outcome = Some(Outcome::Failed(error)),
        }
        !matches!(self.outcome, Some(Outcome::Failed(_)))
    }

    /// Whether the next token is all that is wanted of the row before it.
    pub fn needs_no_logits(&self) -> bool {
        self.params.logprobs.is_none()
    }

    /// Goes on with the token, of `vocab`, that the executor chose. Returns whether there is
    /// one.
    pub fn take(&mut self, token: Option<u32>, vocab: usize) -> bool {
        self.forget_answers();
        match token {
            Some(token) => {
                if let Some(sampler) = &mut self.sampler {
                    sampler.record(token);
                }
                self.accept(Sampled {
                    token,
                    logprob: None,
                });
            }
            None => {
                let error = SampleError::NoToken { vocab_size: vocab };
                self.outcome = Some(Outcome::Failed(error.to_string()));
            }
        }
        token.is_some()
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
            // Whether this was the last is heard later: a whole output ends as one, also
            // with the last token that it may have.
            constrained.advance(id, remaining);
        } else if remaining == 0 {
            self.outcome = Some(Outcome::Finished(FinishReason::Length));
        }
    }

    /// The last event and where to send it, if anyone listens.
    pub fn end(mut self, outcome: Outcome) -> Option<(UnboundedSender<Event>, Event)> {
        self.deliver();
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

    fn send(&mut self, event: Event) {
        self.outbox.push(event);
    }

    /// Sends what there is to send: to wake who waits for it takes longer than to sample it.
    pub fn deliver(&mut self) {
        for event in self.outbox.drain(..) {
            // A consumer that is gone has withdrawn the request; the next step sees it.
            let _ = self.events.send(event);
        }
    }
}

/// A request that holds slots.
#[derive(Debug)]
pub(crate) struct Running {
    pub request: ActiveRequest,
    pub kv: RequestKv,
    /// Whether others may share what was computed of it last.
    pub shares: bool,
}

impl Running {
    /// Tokens to put through the model before the next one can be sampled; 1
    /// for a request that decodes.
    pub fn pending(&self) -> usize {
        self.request.tokens.len() - self.kv.computed
    }
}
