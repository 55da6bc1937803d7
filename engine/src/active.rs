//! A request inside the engine, waiting or running.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::sync::mpsc::UnboundedSender;

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
    /// Sampled tokens, the one that stopped the request included.
    generated: usize,
    /// One entry per prompt token so far, until they are sent.
    prompt_logprobs: Vec<Option<TokenLogprobs>>,
    events: UnboundedSender<Event>,
}

impl ActiveRequest {
    pub fn new(submission: Submission) -> Self {
        let Submission {
            id,
            request,
            events,
        } = submission;
        let prompt_logprobs = match request.params.prompt_logprobs {
            // Nothing comes before the first token that could predict it.
            Some(_) => vec![None],
            None => Vec::new(),
        };
        Self {
            id,
            namespace: request.namespace.unwrap_or_default(),
            name: request.id,
            params: request.params,
            prompt_len: request.prompt.len(),
            tokens: request.prompt,
            cached_tokens: None,
            outcome: None,
            sampler: None,
            generated: 0,
            prompt_logprobs,
            events,
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
        self.cached_tokens = Some(reused);
        self.sampler = Some(SamplerState::new(&self.params, &self.tokens));
        self.send(Event::Started {
            prompt_tokens: self.prompt_len,
            cached_tokens: reused,
        });
        true
    }

    /// Notes the log-probability of the next prompt token, `[vocab]` logits
    /// having come out of the one before it.
    pub fn note_prompt_logprob(&mut self, logits: &[f32]) {
        let token = self.tokens[self.prompt_logprobs.len()];
        let top_n = self.params.prompt_logprobs.unwrap_or(0);
        self.prompt_logprobs
            .push(Some(prompt_logprob(logits, token, top_n)));
    }

    /// The whole prompt is computed.
    pub fn prompt_done(&mut self) {
        if self.prompt_logprobs.len() == self.prompt_len {
            let logprobs = std::mem::take(&mut self.prompt_logprobs);
            self.send(Event::PromptLogprobs(logprobs));
        }
        if self.params.max_tokens == 0 {
            self.outcome = Some(Outcome::Finished(FinishReason::Length));
        }
    }

    /// Samples the next token from its `[vocab]` logits, and ends the request if
    /// it is the last or cannot be had. Returns whether there is one.
    pub fn sample(&mut self, logits: &mut [f32]) -> bool {
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
        self.send(Event::Token(TokenEvent { id, logprob }));
        if self.remaining() == 0 {
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
