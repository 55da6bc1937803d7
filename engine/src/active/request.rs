//! The state of one request in the engine.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use hearth_forward::{Adapter, TokenMask, panic_text};
use tokio::sync::mpsc::UnboundedSender;

use super::forced::UnsentForced;
use super::outcome::Outcome;
use super::phase::Phase;
use crate::constraint::{ForcedTextPredictor, RequestGrammar};
use crate::inbox::NewRequest;
use crate::pooling::Pool;
use crate::request::{Event, FinishReason, TokenEvent, Usage};
use crate::request_id::RequestId;
use crate::sampling::logprobs::{TokenLogprobs, token_logprobs};
use crate::sampling::params::SamplingParams;
use crate::sampling::sampler::{SampleError, Sampled, SamplerState};
use crate::speculation::RequestSpeculation;

#[derive(Debug)]
pub(crate) struct ActiveRequest {
    pub id: RequestId,
    pub namespace: String,
    pub adapter: Option<Arc<Adapter>>,
    /// The step since which the request waits for a slot for its adapter.
    pub awaits_adapter_since: Option<u64>,
    /// The caller's name for the request.
    pub name: Option<String>,
    pub priority: i32,
    pub params: SamplingParams,
    /// Prompt and output. A preempted request returns to the queue with its output here, and
    /// computes both again as if all of it were prompt.
    pub tokens: Vec<u32>,
    pub prompt_len: usize,
    /// Prompt tokens reused at the first start; `None` before it.
    pub cached_tokens: Option<usize>,
    /// How the request ends, once that is known. It leaves at the end of the step.
    pub outcome: Option<Outcome>,
    /// Created at the first start, because it can be as large as the vocabulary.
    pub(super) sampler: Option<SamplerState>,
    /// Sampled and forced tokens, including the one that stopped the request.
    pub(super) generated: usize,
    pub(super) grammar: Option<RequestGrammar>,
    pub(super) forced_text: ForcedTextPredictor,
    /// `[vocab_size]` logits of the next token, while the grammar is late.
    pub(super) late_row: Option<Vec<f32>>,
    pub(super) unsent_forced: Option<UnsentForced>,
    /// Whether the whole prompt has been computed.
    pub(super) prompt_is_done: bool,
    pub(super) phase: Phase,
    /// One entry per prompt token so far, until they are sent.
    pub(super) prompt_logprobs: Vec<Option<TokenLogprobs>>,
    /// Taken when the prompt is done.
    pool: Option<Pool>,
    /// True if tokens may be drafted.
    pub(super) may_speculate: bool,
    /// Taken when the first draft is made.
    pub(super) prediction: Vec<u32>,
    /// Created with the first draft.
    pub(super) speculation: Option<Box<RequestSpeculation>>,
    events: UnboundedSender<Event>,
    /// Events that are sent when the device is busy again.
    pub(super) outbox: Vec<Event>,
    /// When the request was accepted.
    pub(super) queued: Instant,
    /// When the request got slots for the first time.
    pub(super) started: Option<Instant>,
}

impl ActiveRequest {
    pub fn new(new: NewRequest, forced_text: &ForcedTextPredictor) -> Self {
        let NewRequest {
            id,
            request,
            events,
            queued,
        } = new;
        let prompt_logprobs = match request.params.prompt_logprobs {
            // The first token has no log-probability, because nothing is computed before it.
            Some(_) => {
                let last = request.prompt.len().saturating_sub(1);
                vec![None; request.params.prompt_logprobs_from.min(last) + 1]
            }
            None => Vec::new(),
        };
        // Without an output there is nothing to constrain.
        let constraint = request.constraint.filter(|_| request.params.max_tokens > 0);
        let grammar = constraint
            .map(|constrain| RequestGrammar::begin(&constrain, request.params.max_tokens));
        Self {
            id,
            namespace: namespace(request.namespace, request.adapter.as_deref()),
            adapter: request.adapter,
            awaits_adapter_since: None,
            name: request.id,
            priority: request.priority,
            params: request.params,
            prompt_len: request.prompt.len(),
            tokens: request.prompt,
            cached_tokens: None,
            outcome: None,
            sampler: None,
            generated: 0,
            grammar,
            forced_text: forced_text.clone(),
            late_row: None,
            unsent_forced: None,
            prompt_is_done: false,
            prompt_logprobs,
            phase: Phase::from(request.transfer),
            may_speculate: !request.no_speculation && request.pooling.is_none(),
            prediction: request.prediction,
            speculation: None,
            pool: request.pooling.map(Pool::new),
            events,
            outbox: Vec::new(),
            queued,
            started: None,
        }
    }

    pub fn output_len(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Tokens that the request may still generate.
    pub fn remaining(&self) -> usize {
        self.params.max_tokens - self.output_len()
    }

    /// How many of `tokens` may come from the cache. Never all of them, because the next token
    /// is sampled from the output of the last one; and no position whose log-probabilities or
    /// hidden state are still to be computed.
    pub fn reusable(&self) -> usize {
        let known = self.missing_logprobs().start.min(self.tokens.len() - 1);
        let pool = self.pool.as_ref();
        pool.map_or(known, |pool| pool.reusable().min(known))
    }

    /// The positions within `start..end` whose hidden states are wanted.
    pub fn wanted_hidden(&self, start: usize, end: usize) -> Range<usize> {
        match &self.pool {
            Some(pool) => pool.wanted(start..end, self.prompt_len),
            None => start..start,
        }
    }

    /// Takes the `[hidden_size]` hidden state of the next wanted position.
    pub fn add_hidden(&mut self, hidden: &[f32]) {
        if let Some(pool) = &mut self.pool {
            pool.add(hidden);
        }
    }

    /// The positions whose logits are still wanted for the log-probabilities of the tokens
    /// after them that were not sampled: prompt tokens and forced tokens.
    fn missing_logprobs(&self) -> Range<usize> {
        let forced = self.missing_forced_logprobs();
        match self.prompt_logprobs.len().checked_sub(1) {
            // Tokens that are forced before the prompt's log-probabilities are sent follow the
            // prompt immediately.
            Some(first) if forced.is_empty() => first..self.prompt_len - 1,
            Some(first) => first..forced.end,
            None => forced,
        }
    }

    /// The positions within `start..end` whose logits are still wanted for log-probabilities.
    pub fn wanted_logprobs(&self, start: usize, end: usize) -> Range<usize> {
        let missing = self.missing_logprobs();
        let first = missing.start.max(start);
        first..missing.end.min(end).max(first)
    }

    /// Whether a token is to be sampled after the last one.
    pub fn samples_next(&self) -> bool {
        let forced = self.unsent_forced.as_ref();
        self.remaining() > 0 && forced.is_none_or(|unsent| !unsent.is_last())
    }

    /// The request got its slots, `reused` of them from the cache. Returns whether this is its
    /// first start.
    pub fn start(&mut self, reused: usize) -> bool {
        let is_first = self.started.is_none();
        if is_first {
            self.started = Some(Instant::now());
            let prompt = &self.tokens[..self.prompt_len];
            self.sampler = Some(SamplerState::new(&self.params, prompt));
            match self.is_receiving() {
                // The other engine knows how much of the prompt it reused.
                true => self.send_later(Event::Receiving {
                    from: reused,
                    tokens: self.tokens.len(),
                }),
                false => self.send_started(reused),
            }
        } else {
            self.send_later(Event::Resumed { at: Instant::now() });
        }
        self.note_computed(reused);
        is_first
    }

    /// The request gave its slots back. The cache has `computed` of its tokens, for the moment.
    pub fn preempted(&mut self, computed: usize) {
        // The position before it is computed again.
        self.late_row = None;
        self.interrupt_transfer(computed);
        self.send_later(Event::Preempted { at: Instant::now() });
        self.send_outbox();
    }

    /// Notes the log-probability of the next prompt token or forced token that lacks one, by
    /// the `[vocab_size]` logits of the position before it.
    pub fn note_logprob(&mut self, logits: &[f32]) {
        if self.prompt_logprobs.is_empty() || self.prompt_logprobs.len() == self.prompt_len {
            return self.note_forced_logprob(logits);
        }
        let token = self.tokens[self.prompt_logprobs.len()];
        let top_n = self.params.prompt_logprobs.unwrap_or(0);
        let logprobs = token_logprobs(logits, token, top_n, &self.params.logprob_ids);
        self.prompt_logprobs.push(Some(logprobs));
    }

    /// Whether `computed` tokens complete the prompt for the first time.
    pub fn completes_prompt(&self, computed: usize) -> bool {
        !self.prompt_is_done && computed >= self.prompt_len
    }

    /// The whole prompt has been computed.
    pub fn prompt_done(&mut self) {
        self.prompt_is_done = true;
        if self.prompt_logprobs.len() == self.prompt_len {
            let logprobs = std::mem::take(&mut self.prompt_logprobs);
            self.send_later(Event::PromptLogprobs(logprobs));
        }
        if let Some(pool) = self.pool.take() {
            self.send_later(Event::Embedding(pool.vector()));
        }
        if self.params.max_tokens == 0 && self.outcome.is_none() {
            self.outcome = Some(Outcome::Finished(FinishReason::Length));
        }
    }

    /// Samples the next token from its `[vocab_size]` logits, and ends the request if the token
    /// is the last or cannot be sampled. Returns whether a token was sampled.
    pub(super) fn sample_under(&mut self, mask: Option<&TokenMask>, logits: &mut [f32]) -> bool {
        let position = self.output_len();
        let sampler = self
            .sampler
            .as_mut()
            .expect("a running request was started");
        let sample = || match mask {
            Some(mask) => sampler.sample_masked(logits, mask, position),
            None => sampler.sample(logits, position),
        };
        // A panic here would be a bug of the sampler; it must not end other requests.
        let sampled = catch_unwind(AssertUnwindSafe(sample))
            .map_err(|panic| format!("sampling panicked: {}", panic_text(&*panic)))
            .and_then(|result| result.map_err(|error| error.to_string()));
        match sampled {
            Ok(sampled) => self.accept(sampled),
            Err(error) => self.outcome = Some(Outcome::Failed(error)),
        }
        !matches!(self.outcome, Some(Outcome::Failed(_)))
    }

    /// Whether only the next token is wanted of the row before it, and no logits.
    pub fn needs_no_logits(&self) -> bool {
        self.params.logprobs.is_none()
    }

    /// Takes the token that the executor sampled from `vocab_size` tokens, and ends the
    /// request if there is none. Returns whether there is one.
    pub fn take_sampled(&mut self, token: Option<u32>, vocab_size: usize) -> bool {
        self.drop_answers();
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
                let error = SampleError::NoToken { vocab_size };
                self.outcome = Some(Outcome::Failed(error.to_string()));
            }
        }
        token.is_some()
    }

    pub(super) fn accept(&mut self, sampled: Sampled) {
        let id = sampled.token;
        self.generated += 1;
        if self.is_sending() {
            return self.finish_sending(sampled);
        }
        if self.params.is_stop_token(id) {
            let reason = FinishReason::Stop { token: Some(id) };
            self.outcome = Some(Outcome::Finished(reason));
            return;
        }
        self.send_token(sampled);
        let remaining = self.remaining();
        if let Some(grammar) = &mut self.grammar {
            // The grammar's answer will tell whether this token was the last: an output that
            // is complete finishes as complete even with the last token that it may have.
            grammar.advance(id, remaining);
        } else if remaining == 0 {
            self.outcome = Some(Outcome::Finished(FinishReason::Length));
        }
    }

    /// Appends a sampled token to the output.
    pub(super) fn send_token(&mut self, sampled: Sampled) {
        let Sampled { token: id, logprob } = sampled;
        self.tokens.push(id);
        let at = Instant::now();
        self.send_later(Event::Token(TokenEvent {
            id,
            logprob,
            at,
            run: 1,
            drafts: self.draft_counts(),
        }));
    }

    /// Ends the request. Returns its final event and where to send it, unless the consumer
    /// reads no more events.
    pub fn finish(mut self, outcome: Outcome) -> Option<(UnboundedSender<Event>, Event)> {
        self.send_outbox();
        let usage = Usage {
            prompt_tokens: self.prompt_len,
            cached_tokens: self.cached_tokens.unwrap_or(0),
            completion_tokens: self.generated,
            drafts: self.draft_counts(),
        };
        let event = match outcome {
            Outcome::Finished(reason) => Event::Finished(reason, usage),
            Outcome::Failed(text) => Event::Failed(text),
            Outcome::Refused(text) => Event::Refused(text),
            Outcome::Satisfied | Outcome::Cancelled => return None,
        };
        Some((self.events, event))
    }

    /// Puts `event` into the outbox: to wake its consumer takes longer than to sample a token,
    /// and the device may be waiting.
    pub(super) fn send_later(&mut self, event: Event) {
        self.outbox.push(event);
    }

    /// Sends the events in the outbox.
    pub fn send_outbox(&mut self) {
        self.mark_run();
        for event in self.outbox.drain(..) {
            // A consumer that is gone has withdrawn the request, which the next step sees.
            let _ = self.events.send(event);
        }
    }
}

/// The namespace of the prefix cache: what the caller keeps apart, and the adapter. The content of the
/// adapter counts and not its name, because keys and values follow from the content.
fn namespace(given: Option<String>, adapter: Option<&Adapter>) -> String {
    // No caller's namespace can look like an adapter's.
    const MARK: char = '\0';
    let given = given.unwrap_or_default();
    match adapter {
        Some(adapter) => format!("{MARK}lora:{}{MARK}{given}", adapter.digest),
        None if given.starts_with(MARK) => format!("{MARK}{given}"),
        None => given,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_of_callers_and_of_adapters_are_apart() {
        let adapter = |digest: &str| Adapter {
            digest: digest.to_owned(),
            ..Adapter::default()
        };
        let (a, b) = (adapter("a"), adapter("b"));
        fn of(given: &str, adapter: Option<&Adapter>) -> String {
            namespace(Some(given.to_owned()), adapter)
        }
        let of_a = of("salt", Some(&a));
        assert_eq!(of_a, of("salt", Some(&adapter("a"))), "the content counts");
        let all = [
            of("", None),
            of("salt", None),
            of_a.clone(),
            of("", Some(&a)),
            of("salt", Some(&b)),
            // A caller may try this to meet the adapter's keys.
            of(&of_a, None),
            of(&of_a[1..], None),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(!all[..index].contains(one), "{one:?}");
        }
    }
}
