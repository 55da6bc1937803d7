//! The sampling of one request.
//!
//! The order of the steps is vLLM V1's: logit bias, `min_tokens`, repetition, presence and
//! frequency penalties, temperature, min-p, top-k, top-p over the probability that the two filters
//! before it left, and the random draw. A grammar's mask comes before all of them.

use std::collections::HashMap;

use hearth_forward::{LogitEdit, SampleParams, TokenMask};
use thiserror::Error;

use super::logprobs::{TokenLogprobs, token_logprobs};
use super::params::SamplingParams;
use super::penalties::Penalties;
use super::softmax::{clean_and_max, index_at, sum, weigh, weight};
use super::top_k::{Candidate, top_k};
use super::top_p::keep_top_p;
use super::{mask, rng};

/// A sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    pub token: u32,
    /// If the request asked for log-probabilities.
    pub logprob: Option<TokenLogprobs>,
}

/// Why no token could be sampled. Only the request in question fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SampleError {
    #[error(
        "no token can be sampled: each of the {vocab_size} logits is NaN (the model overflowed) or \
         -inf (the masks forbid every token)"
    )]
    NoToken { vocab_size: usize },
}

/// The sampling of one request.
#[derive(Debug)]
pub struct SamplerState {
    greedy: bool,
    temperature: f32,
    top_k: Option<usize>,
    top_p: f32,
    min_p: f32,
    min_tokens: usize,
    /// EOS and stop tokens; empty if `min_tokens` is 0.
    stop_ids: Vec<u32>,
    logit_bias: Vec<(u32, f32)>,
    penalties: Option<Penalties>,
    seed: u64,
    logprobs: Option<usize>,
    logprob_ids: Vec<u32>,
    /// The row that log-probabilities are computed from. Its allocation is reused in every step.
    raw: Vec<f32>,
    /// Its allocation is reused likewise.
    candidates: Vec<Candidate>,
}

impl SamplerState {
    /// The sampler of a request with validated `params`; `prompt` counts for the repetition
    /// penalty.
    pub fn new(params: &SamplingParams, prompt: &[u32]) -> Self {
        let stop_ids = match params.min_tokens {
            0 => Vec::new(),
            _ => [params.eos_token_ids.as_slice(), &params.stop_token_ids].concat(),
        };
        Self {
            greedy: params.is_greedy(),
            temperature: params.temperature,
            top_k: params.top_k.map(|k| k as usize),
            top_p: params.top_p,
            min_p: params.min_p,
            min_tokens: params.min_tokens,
            stop_ids,
            logit_bias: params.logit_bias.clone(),
            penalties: Penalties::new(params, prompt),
            seed: params.seed.unwrap_or_else(rng::fresh_seed),
            logprobs: params.logprobs,
            logprob_ids: params.logprob_ids.clone(),
            raw: Vec::new(),
            candidates: Vec::new(),
        }
    }

    /// Samples the output token after `generated` others from `logits` (`[vocab_size]`, overwritten)
    /// and counts it for the penalties. Tokens whose logits are -inf or NaN are never sampled.
    ///
    /// # Errors
    /// If no token is left to sample.
    pub fn sample(&mut self, logits: &mut [f32], generated: usize) -> Result<Sampled, SampleError> {
        self.keep_raw(logits);
        self.draw(logits, generated)
    }

    /// As [`sample`](Self::sample), but only from the tokens in `mask`. Log-probabilities are
    /// relative to these tokens. If `mask` has only one token, whose probability would be 1, they
    /// are the model's own, as for a forced token.
    ///
    /// # Errors
    /// If no token is left to sample.
    pub(crate) fn sample_masked(
        &mut self,
        logits: &mut [f32],
        mask: &[u32],
        generated: usize,
    ) -> Result<Sampled, SampleError> {
        let allowed: u32 = mask.iter().map(|word| word.count_ones()).sum();
        if allowed == 1 {
            self.keep_raw(logits);
            mask::apply(mask, logits);
        } else {
            mask::apply(mask, logits);
            self.keep_raw(logits);
        }
        self.draw(logits, generated)
    }

    fn keep_raw(&mut self, logits: &[f32]) {
        if self.logprobs.is_some() {
            self.raw.clear();
            self.raw.extend_from_slice(logits);
        }
    }

    fn draw(&mut self, logits: &mut [f32], generated: usize) -> Result<Sampled, SampleError> {
        self.adjust(logits, generated);
        let token = self.pick(logits, generated)?;
        if let Some(penalties) = &mut self.penalties {
            penalties.record(token);
        }
        let logprob = self
            .logprobs
            .map(|top_n| token_logprobs(&self.raw, token, top_n, &self.logprob_ids));
        Ok(Sampled { token, logprob })
    }

    /// Whether the sampled token depends on the earlier output tokens other than through its
    /// logits.
    pub fn depends_on_output(&self) -> bool {
        self.penalties.is_some()
    }

    /// How an executor samples the output token after `generated` others so that the result is
    /// that of [`sample`](Self::sample), under `mask` if there is one.
    pub fn sample_params(&self, generated: usize, mask: Option<TokenMask>) -> SampleParams {
        SampleParams {
            temperature: if self.greedy { 0.0 } else { self.temperature },
            top_k: self.top_k.and_then(|k| u32::try_from(k).ok()),
            top_p: self.top_p,
            min_p: self.min_p,
            draw: rng::uniform(self.seed, generated as u64),
            mask,
            edits: self.edits(generated),
        }
    }

    /// The edits that amount to [`adjust`](Self::adjust).
    fn edits(&self, generated: usize) -> Vec<LogitEdit> {
        let too_early = generated < self.min_tokens;
        if self.logit_bias.is_empty() && self.penalties.is_none() && !too_early {
            return Vec::new();
        }
        let mut edits = match &self.penalties {
            Some(penalties) => penalties.edits(),
            None => HashMap::new(),
        };
        for &(token, bias) in &self.logit_bias {
            edits.entry(token).or_insert(untouched(token)).bias += bias;
        }
        if too_early {
            for &token in &self.stop_ids {
                edits.entry(token).or_insert(untouched(token)).bias = f32::NEG_INFINITY;
            }
        }
        edits.into_values().collect()
    }

    /// Counts a token that was sampled elsewhere, or forced, as part of the output.
    pub fn record(&mut self, token: u32) {
        if let Some(penalties) = &mut self.penalties {
            penalties.record(token);
        }
    }

    /// Applies everything that can change which token is the most likely.
    fn adjust(&self, logits: &mut [f32], generated: usize) {
        for &(token, bias) in &self.logit_bias {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
        if generated < self.min_tokens {
            for &token in &self.stop_ids {
                if let Some(logit) = logits.get_mut(token as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        if let Some(penalties) = &self.penalties {
            penalties.apply(logits);
        }
    }

    fn pick(&mut self, logits: &mut [f32], generated: usize) -> Result<u32, SampleError> {
        let nothing = SampleError::NoToken {
            vocab_size: logits.len(),
        };
        let max = clean_and_max(logits).ok_or(nothing)?;
        if self.greedy {
            // The first of equal logits is taken, so that ties do not depend on anything else.
            let token = logits
                .iter()
                .position(|&logit| logit == max)
                .ok_or(nothing)?;
            return Ok(token as u32);
        }
        let draw = rng::uniform(self.seed, generated as u64);
        let token = match self.top_k {
            Some(k) if k < logits.len() => self.draw_from_top_k(logits, k, max, draw),
            _ => self.draw_from_all(logits, max, draw),
        };
        token.ok_or(nothing)
    }

    /// Turns the whole row into weights and filters those in place.
    fn draw_from_all(&self, logits: &mut [f32], max: f32, draw: f64) -> Option<u32> {
        weigh(logits, max, self.temperature);
        let weights = logits;
        if self.min_p > 0.0 {
            // The most likely token weighs 1, so min_p is a bound on weights.
            for weight in weights.iter_mut() {
                *weight = if *weight < self.min_p { 0.0 } else { *weight };
            }
        }
        if self.top_p < 1.0 {
            keep_top_p(weights, self.top_p);
        }
        let target = draw * sum(weights);
        index_at(weights, target).map(|token| token as u32)
    }

    /// Weighs only the `k` most likely tokens.
    fn draw_from_top_k(&mut self, logits: &[f32], k: usize, max: f32, draw: f64) -> Option<u32> {
        let candidates = &mut self.candidates;
        top_k(logits, k, candidates);
        for candidate in candidates.iter_mut() {
            candidate.value = weight(candidate.value, max, self.temperature);
        }
        // Min-p leaves the same tokens before and after top-k, because both keep the head of one
        // ranking.
        candidates.retain(|candidate| candidate.value > 0.0 && candidate.value >= self.min_p);
        candidates.sort_unstable_by(Candidate::ranking);
        if self.top_p < 1.0 {
            let enough = f64::from(self.top_p) * total(candidates);
            let mut sum = 0f64;
            candidates.retain(|candidate| {
                let needed = sum < enough;
                sum += f64::from(candidate.value);
                needed
            });
        }
        // The draw goes through the tokens in the order of their ids, as over the whole row, and
        // not of their ranks: two tokens whose nearly equal logits are rounded differently in
        // another batch then keep their places.
        candidates.sort_unstable_by_key(|candidate| candidate.token);
        let mut left = draw * total(candidates);
        let drawn = candidates.iter().find(|candidate| {
            left -= f64::from(candidate.value);
            left < 0.0
        });
        // Rounding may move the draw past the last candidate.
        drawn.or(candidates.last()).map(|candidate| candidate.token)
    }
}

fn untouched(token: u32) -> LogitEdit {
    LogitEdit {
        token,
        bias: 0.0,
        factor: 1.0,
        amount: 0.0,
    }
}

fn total(candidates: &[Candidate]) -> f64 {
    candidates
        .iter()
        .map(|candidate| f64::from(candidate.value))
        .sum()
}
