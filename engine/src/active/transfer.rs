//! A request whose prompt and output are computed by two engines.

use std::time::Instant;

use super::outcome::Outcome;
use super::phase::Phase;
use super::request::ActiveRequest;
use crate::request::Event;
use crate::sampling::sampler::Sampled;
use crate::transfer::{RemoteOutput, RemoteToken, TransferError};

impl ActiveRequest {
    /// Whether the request only holds slots and takes no part in forward passes.
    pub fn is_parked(&self) -> bool {
        matches!(self.phase, Phase::Sent | Phase::Receiving)
    }

    /// Tokens that the request may still generate in this engine.
    pub fn remaining_here(&self) -> usize {
        match self.phase {
            Phase::Sent => 0,
            Phase::Sending => self.remaining().min(1),
            Phase::Receiving | Phase::Local => self.remaining(),
        }
    }

    pub fn is_receiving(&self) -> bool {
        self.phase == Phase::Receiving
    }

    /// Whether the request ends here after one sampled token, because another engine continues it.
    pub(super) fn is_sending(&self) -> bool {
        self.phase == Phase::Sending
    }

    /// Tells the caller that the first `computed` tokens can be read.
    pub fn note_computed(&mut self, computed: usize) {
        if self.is_sending() {
            self.send_later(Event::Computed { tokens: computed });
        }
    }

    /// Takes the token after the prompt, which the other engine continues. A stop token is sent
    /// like any other, because only the other engine ends the output.
    pub(super) fn finish_sending(&mut self, sampled: Sampled) {
        self.phase = Phase::Sent;
        // Its answers are of no use here.
        self.grammar = None;
        self.send_token(sampled);
    }

    /// The request gave its slots back. It is computed here from now on if the keys and values
    /// were to be received, and fails if they were to be read.
    pub(super) fn interrupt_transfer(&mut self, reused: usize) {
        match self.phase {
            Phase::Receiving => self.continue_locally(reused),
            Phase::Sent => {
                let reason = "the KV slots were needed for other requests before they were sent";
                self.outcome = Some(Outcome::Failed(reason.to_owned()));
            }
            Phase::Sending | Phase::Local => {}
        }
    }

    /// Nothing more is received: the request is computed here, `reused` tokens excepted.
    pub fn continue_locally(&mut self, reused: usize) {
        self.phase = Phase::Local;
        self.send_started(reused);
    }

    /// Whether `output` can be what the other engine computed for this request, if the keys
    /// and values of `written` tokens are here.
    ///
    /// # Errors
    /// The first fact that contradicts the request.
    pub fn check_remote(
        &self,
        written: usize,
        output: &RemoteOutput,
        vocab_size: usize,
    ) -> Result<(), TransferError> {
        let wrong = |what| Err(TransferError::Output(what));
        let wanted = match self.params.prompt_logprobs {
            Some(_) => self.prompt_len,
            None => 0,
        };
        if output.prompt_logprobs.len() != wanted {
            return wrong("the number of log-probabilities of prompt tokens");
        }
        let forced = match self.params.logprobs {
            Some(_) => self.output_len(),
            None => 0,
        };
        if output.forced.len() != forced {
            return wrong("the number of log-probabilities of forced tokens");
        }
        match &output.sampled {
            Some(_) if !self.samples_next() => wrong("a token after the end of the output"),
            None if self.samples_next() => wrong("no sampled token"),
            Some(token) if token.id as usize >= vocab_size => wrong("the id of the token"),
            Some(token) if token.logprob.is_some() != self.params.logprobs.is_some() => {
                wrong("the log-probability of the token")
            }
            Some(_) if written != self.tokens.len() => wrong("keys and values are missing"),
            _ => Ok(()),
        }
    }

    /// Continues after `output`, which was [checked](Self::check_remote).
    pub fn receive(&mut self, output: RemoteOutput) {
        let RemoteOutput {
            cached_tokens,
            prompt_logprobs,
            forced,
            sampled,
        } = output;
        self.phase = Phase::Local;
        self.send_started(cached_tokens);
        self.prompt_logprobs = prompt_logprobs;
        if let Some(unsent) = &mut self.unsent_forced {
            unsent.logprobs = forced;
        }
        self.prompt_done();
        self.send_forced();
        if let (None, Some(RemoteToken { id, logprob })) = (&self.outcome, sampled) {
            self.drop_answers();
            if let Some(sampler) = &mut self.sampler {
                sampler.record(id);
            }
            self.accept(Sampled { token: id, logprob });
        }
    }

    /// Sends the event that tells how much of the prompt was reused.
    pub(super) fn send_started(&mut self, reused: usize) {
        let cached_tokens = reused.min(self.prompt_len);
        self.cached_tokens = Some(cached_tokens);
        let started = self.started.unwrap_or_else(Instant::now);
        self.send_later(Event::Started {
            prompt_tokens: self.prompt_len,
            cached_tokens,
            queued: self.queued,
            started,
        });
    }
}
