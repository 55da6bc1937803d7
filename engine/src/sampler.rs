//! From a row of logits to a token.
//!
//! The order is vLLM's: logit bias, `min_tokens`, repetition, presence and frequency penalties,
//! temperature, top-k, top-p, min-p, draw. A grammar's mask comes before all of it: the caller sets
//! the logits of forbidden tokens to -inf.

use thiserror::Error;

use crate::logprobs::{TokenLogprobs, prompt_logprob};
use crate::params::SamplingParams;
use crate::penalties::Penalties;
use crate::rng;
use crate::softmax::{clean_and_max, index_at, sum, weigh, weight};
use crate::topk::{Candidate, top_k};

/// A sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    pub token: u32,
    /// If the request asked for log-probabilities.
    pub logprob: Option<TokenLogprobs>,
}

/// Why no token could be sampled; it concerns this request alone.
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
    enders: Vec<u32>,
    logit_bias: Vec<(u32, f32)>,
    penalties: Option<Penalties>,
    seed: u64,
    logprobs: Option<usize>,
    /// The row as the model gave it, kept from step to step for its allocation.
    raw: Vec<f32>,
    candidates: Vec<Candidate>,
}

impl SamplerState {
    /// The sampler of a request with validated `params`; `prompt` counts for the repetition
    /// penalty.
    pub fn new(params: &SamplingParams, prompt: &[u32]) -> Self {
        let enders = match params.min_tokens {
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
            enders,
            logit_bias: params.logit_bias.clone(),
            penalties: Penalties::new(params, prompt),
            seed: params.seed.unwrap_or_else(rng::fresh_seed),
            logprobs: params.logprobs,
            raw: Vec::new(),
            candidates: Vec::new(),
        }
    }

    /// Samples the output token after `generated` others from `logits` (`[vocab]`, overwritten) and
    /// counts it for the penalties. -inf and NaN are never sampled.
    ///
    /// # Errors
    /// If no token is left to sample.
    pub fn sample(&mut self, logits: &mut [f32], generated: usize) -> Result<Sampled, SampleError> {
        if self.logprobs.is_some() {
            self.raw.clear();
            self.raw.extend_from_slice(logits);
        }
        self.adjust(logits, generated);
        let token = self.choose(logits, generated)?;
        self.record(token);
        let logprob = self
            .logprobs
            .map(|top_n| prompt_logprob(&self.raw, token, top_n));
        Ok(Sampled { token, logprob })
    }

    /// Counts `token` as part of the output although it was not sampled here (text that a grammar
    /// forces, output replayed after a preemption).
    pub fn record(&mut self, token: u32) {
        if let Some(penalties) = &mut self.penalties {
            penalties.record(token);
        }
    }

    /// Everything that can change which token is the most likely.
    fn adjust(&self, logits: &mut [f32], generated: usize) {
        for &(token, bias) in &self.logit_bias {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
        if generated < self.min_tokens {
            for &token in &self.enders {
                if let Some(logit) = logits.get_mut(token as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        if let Some(penalties) = &self.penalties {
            penalties.apply(logits);
        }
    }

    fn choose(&mut self, logits: &mut [f32], generated: usize) -> Result<u32, SampleError> {
        let nothing = SampleError::NoToken {
            vocab_size: logits.len(),
        };
        let max = clean_and_max(logits).ok_or(nothing)?;
        if self.greedy {
            // The first of equals, so that ties do not depend on anything.
            let token = logits
                .iter()
                .position(|&logit| logit == max)
                .ok_or(nothing)?;
            return Ok(token as u32);
        }
        let draw = rng::uniform(self.seed, generated as u64);
        match self.top_k {
            Some(k) if k < logits.len() => {
                top_k(logits, k, f32::NEG_INFINITY, &mut self.candidates);
                self.candidates.sort_unstable_by(Candidate::ranking);
                for candidate in &mut self.candidates {
                    candidate.value = weight(candidate.value, max, self.temperature);
                }
                let total = self.candidates.iter().map(|c| f64::from(c.value)).sum();
                self.cut_at_top_p(total);
            }
            _ => {
                weigh(logits, max, self.temperature);
                if self.top_p >= 1.0 {
                    // The most likely token weighs 1, so min_p is a bound on weights.
                    if self.min_p > 0.0 {
                        for weight in logits.iter_mut() {
                            *weight = if *weight < self.min_p { 0.0 } else { *weight };
                        }
                    }
                    let target = draw * sum(logits);
                    return Ok(index_at(logits, target).ok_or(nothing)? as u32);
                }
                self.gather_top_p(logits);
            }
        }
        self.candidates
            .retain(|candidate| candidate.value >= self.min_p);
        self.draw(draw).ok_or(nothing)
    }

    /// Collects the candidates of `weights` that top-p keeps, without sorting the whole row: few
    /// tokens nearly always carry the mass, so it tries few and then more.
    fn gather_top_p(&mut self, weights: &[f32]) {
        const FIRST_TRY: usize = 64;
        const GROWTH: usize = 8;
        let total = sum(weights);
        let mut k = FIRST_TRY;
        loop {
            top_k(weights, k, 0.0, &mut self.candidates);
            let all = self.candidates.len() < k || k >= weights.len();
            self.candidates.sort_unstable_by(Candidate::ranking);
            if self.cut_at_top_p(total) || all {
                return;
            }
            k *= GROWTH;
        }
    }

    /// Drops, from candidates in rank order, those after the one that brings the running sum to
    /// `top_p` of `total`. Whether it was reached.
    fn cut_at_top_p(&mut self, total: f64) -> bool {
        let enough = f64::from(self.top_p) * total;
        let mut running = 0f64;
        for (i, candidate) in self.candidates.iter().enumerate() {
            running += f64::from(candidate.value);
            if running >= enough {
                self.candidates.truncate(i + 1);
                return true;
            }
        }
        false
    }

    /// The candidate at `draw` in [0, 1) of the line on which each takes its weight.
    fn draw(&mut self, draw: f64) -> Option<u32> {
        // In the order of ids, not of rank: two tokens whose nearly equal logits are rounded
        // differently in another batch then keep their places.
        self.candidates
            .sort_unstable_by_key(|candidate| candidate.token);
        let total: f64 = self.candidates.iter().map(|c| f64::from(c.value)).sum();
        let mut target = draw * total;
        let mut last = None;
        for candidate in self
            .candidates
            .iter()
            .filter(|candidate| candidate.value > 0.0)
        {
            last = Some(candidate.token);
            target -= f64::from(candidate.value);
            if target < 0.0 {
                break;
            }
        }
        last
    }
}
