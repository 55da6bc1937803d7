//! The sampling parameters of a request, and their bounds.

use std::fmt;

use thiserror::Error;

/// The most alternatives that a request may ask for at each token (the OpenAI API's own limit).
pub const MAX_LOGPROBS: usize = 20;

/// The most entries of `logit_bias`, `stop_token_ids` and `logprob_ids`: every entry costs time at
/// every token.
pub const MAX_TOKEN_ENTRIES: usize = 1024;

/// How one request is sampled. The defaults are those of the OpenAI API: plain sampling from the
/// model's distribution.
///
/// Stop *strings* are not among them: they are matched on text, outside the engine thread
/// (see [`crate::output`]).
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// The most tokens to generate. 0 only computes the prompt (to fill the cache, or for
    /// `prompt_logprobs`).
    pub max_tokens: usize,
    /// Before this many tokens neither EOS nor a stop token can be sampled.
    pub min_tokens: usize,
    /// Logits are divided by it; 0 is greedy decoding.
    pub temperature: f32,
    /// Keep the smallest set of tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keep this many most likely tokens; `None` keeps all.
    pub top_k: Option<u32>,
    /// Drop tokens less likely than this fraction of the most likely one; 0 drops none.
    pub min_p: f32,
    /// Divides the positive and multiplies the negative logits of tokens in prompt or output; 1 is
    /// off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of each token in the output; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted for each occurrence from the logit of each token in the output; 0 is off.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// The same seed gives the same tokens, whatever else is in the batch. `None` draws a random
    /// seed.
    pub seed: Option<u64>,
    /// Report log-probabilities of output tokens, with this many alternatives (0: of the token
    /// only).
    pub logprobs: Option<usize>,
    /// The same for the tokens of the prompt.
    pub prompt_logprobs: Option<usize>,
    /// Tokens whose log-probabilities are always reported where any are reported.
    pub logprob_ids: Vec<u32>,
    /// The first prompt token that `prompt_logprobs` concerns. It has no log-probability itself,
    /// because nothing is computed before it: the prompt up to here may come from the cache.
    pub prompt_logprobs_from: usize,
    /// Tokens that end the output, in addition to EOS.
    pub stop_token_ids: Vec<u32>,
    /// The model's end-of-sequence tokens.
    pub eos_token_ids: Vec<u32>,
    /// EOS does not end the output (for benchmarks).
    pub ignore_eos: bool,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            max_tokens: 16,
            min_tokens: 0,
            temperature: 1.0,
            top_p: 1.0,
            top_k: None,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
            logprobs: None,
            prompt_logprobs: None,
            logprob_ids: Vec::new(),
            prompt_logprobs_from: 0,
            stop_token_ids: Vec::new(),
            eos_token_ids: Vec::new(),
            ignore_eos: false,
        }
    }
}

/// The values that a parameter may have.
#[derive(Clone, Copy, Debug)]
pub enum Floats {
    /// Both ends included.
    Between(f32, f32),
    /// Above 0 and at most 1.
    Share,
    /// Above 0.
    Positive,
}

pub const TEMPERATURE: Floats = Floats::Between(0.0, 2.0);
pub const TOP_P: Floats = Floats::Share;
pub const MIN_P: Floats = Floats::Between(0.0, 1.0);
pub const REPETITION_PENALTY: Floats = Floats::Positive;
pub const PRESENCE_PENALTY: Floats = Floats::Between(-2.0, 2.0);
pub const FREQUENCY_PENALTY: Floats = Floats::Between(-2.0, 2.0);
pub const LOGIT_BIAS: Floats = Floats::Between(-100.0, 100.0);

impl fmt::Display for Floats {
    /// Worded to follow "must be".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Between(low, high) => write!(f, "between {low} and {high}"),
            Self::Share => f.write_str("above 0 and at most 1"),
            Self::Positive => write!(f, "above 0 and at most {:e}", f32::MAX),
        }
    }
}

impl Floats {
    fn check(self, field: &'static str, value: f32) -> Result<(), ParamError> {
        // No comparison holds for NaN.
        let fits = match self {
            Self::Between(low, high) => (low..=high).contains(&value),
            Self::Share => value > 0.0 && value <= 1.0,
            Self::Positive => value > 0.0 && value <= f32::MAX,
        };
        match fits {
            true => Ok(()),
            false => Err(ParamError::new(field, self.to_string(), value)),
        }
    }
}

/// A sampling parameter out of its bounds.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{field}` must be {bound}, got {given}")]
pub struct ParamError {
    /// The parameter, as the API names it.
    pub field: &'static str,
    /// The bound, worded to follow "must be".
    pub bound: String,
    /// The value given.
    pub given: String,
}

impl ParamError {
    fn new(field: &'static str, bound: impl Into<String>, given: impl ToString) -> Self {
        Self {
            field,
            bound: bound.into(),
            given: given.to_string(),
        }
    }
}

impl SamplingParams {
    /// Whether the most likely token is always taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature < Self::GREEDY_BELOW || self.top_k == Some(1)
    }

    /// Temperatures below this count as 0 (vLLM has the same limit).
    const GREEDY_BELOW: f32 = 1e-5;

    /// Whether `token` ends the output.
    pub fn is_stop_token(&self, token: u32) -> bool {
        self.stop_token_ids.contains(&token)
            || (!self.ignore_eos && self.eos_token_ids.contains(&token))
    }

    /// Checks every value against its bound, for a model with `vocab_size` logits.
    ///
    /// `eos_token_ids` come from the model, not the client, and are not checked.
    ///
    /// # Errors
    /// The first value out of bounds, with the bound and the value.
    pub fn validate(&self, vocab_size: usize) -> Result<(), ParamError> {
        if self.min_tokens > self.max_tokens {
            return Err(ParamError::new(
                "min_tokens",
                format!("at most max_tokens ({})", self.max_tokens),
                self.min_tokens,
            ));
        }
        TEMPERATURE.check("temperature", self.temperature)?;
        TOP_P.check("top_p", self.top_p)?;
        if self.top_k == Some(0) {
            return Err(ParamError::new("top_k", "at least 1", 0));
        }
        MIN_P.check("min_p", self.min_p)?;
        REPETITION_PENALTY.check("repetition_penalty", self.repetition_penalty)?;
        PRESENCE_PENALTY.check("presence_penalty", self.presence_penalty)?;
        FREQUENCY_PENALTY.check("frequency_penalty", self.frequency_penalty)?;
        at_most_entries("logit_bias", self.logit_bias.len())?;
        at_most_entries("stop_token_ids", self.stop_token_ids.len())?;
        for &(token, bias) in &self.logit_bias {
            in_vocabulary("logit_bias", token, vocab_size)?;
            LOGIT_BIAS.check("logit_bias", bias)?;
        }
        at_most_entries("logprob_ids", self.logprob_ids.len())?;
        for &token in &self.stop_token_ids {
            in_vocabulary("stop_token_ids", token, vocab_size)?;
        }
        for &token in &self.logprob_ids {
            in_vocabulary("logprob_ids", token, vocab_size)?;
        }
        at_most_logprobs("logprobs", self.logprobs)?;
        at_most_logprobs("prompt_logprobs", self.prompt_logprobs)
    }
}

fn in_vocabulary(field: &'static str, token: u32, vocab_size: usize) -> Result<(), ParamError> {
    if (token as usize) < vocab_size {
        return Ok(());
    }
    let bound = format!("token ids below the vocabulary size ({vocab_size})");
    Err(ParamError::new(field, bound, token))
}

fn at_most_entries(field: &'static str, given: usize) -> Result<(), ParamError> {
    if given <= MAX_TOKEN_ENTRIES {
        return Ok(());
    }
    let bound = format!("at most {MAX_TOKEN_ENTRIES} entries long");
    Err(ParamError::new(field, bound, format!("{given} entries")))
}

fn at_most_logprobs(field: &'static str, value: Option<usize>) -> Result<(), ParamError> {
    match value {
        Some(n) if n > MAX_LOGPROBS => Err(ParamError::new(
            field,
            format!("between 0 and {MAX_LOGPROBS}"),
            n,
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOCAB: usize = 1000;

    fn refused(change: impl FnOnce(&mut SamplingParams)) -> ParamError {
        let mut params = SamplingParams::default();
        change(&mut params);
        params
            .validate(VOCAB)
            .expect_err("the value is out of bounds")
    }

    fn accepted(change: impl FnOnce(&mut SamplingParams)) {
        let mut params = SamplingParams::default();
        change(&mut params);
        assert_eq!(params.validate(VOCAB), Ok(()), "{params:?}");
    }

    #[test]
    fn the_defaults_are_valid() {
        accepted(|_| {});
    }

    #[test]
    fn values_on_the_bounds_are_valid() {
        accepted(|p| p.temperature = 0.0);
        accepted(|p| p.temperature = 2.0);
        accepted(|p| p.top_p = f32::MIN_POSITIVE);
        accepted(|p| p.top_k = Some(u32::MAX));
        accepted(|p| p.min_p = 1.0);
        accepted(|p| p.presence_penalty = -2.0);
        accepted(|p| p.frequency_penalty = 2.0);
        accepted(|p| p.logit_bias = vec![(0, -100.0), (999, 100.0)]);
        accepted(|p| p.logprobs = Some(20));
        accepted(|p| p.max_tokens = 0);
        accepted(|p| p.min_tokens = p.max_tokens);
        accepted(|p| p.stop_token_ids = vec![999]);
        accepted(|p| p.stop_token_ids = vec![1; MAX_TOKEN_ENTRIES]);
        accepted(|p| p.logit_bias = vec![(1, 1.0); MAX_TOKEN_ENTRIES]);
    }

    #[test]
    fn every_float_refuses_nan_and_infinity() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(refused(|p| p.temperature = bad).field, "temperature");
            assert_eq!(refused(|p| p.top_p = bad).field, "top_p");
            assert_eq!(refused(|p| p.min_p = bad).field, "min_p");
            assert_eq!(
                refused(|p| p.repetition_penalty = bad).field,
                "repetition_penalty"
            );
            assert_eq!(
                refused(|p| p.presence_penalty = bad).field,
                "presence_penalty"
            );
            assert_eq!(
                refused(|p| p.frequency_penalty = bad).field,
                "frequency_penalty"
            );
            assert_eq!(
                refused(|p| p.logit_bias = vec![(1, bad)]).field,
                "logit_bias"
            );
        }
    }

    #[test]
    fn values_past_the_bounds_are_refused() {
        assert_eq!(refused(|p| p.temperature = -0.1).field, "temperature");
        assert_eq!(refused(|p| p.temperature = 2.1).field, "temperature");
        assert_eq!(refused(|p| p.top_p = 0.0).field, "top_p");
        assert_eq!(refused(|p| p.top_p = 1.1).field, "top_p");
        assert_eq!(refused(|p| p.top_k = Some(0)).field, "top_k");
        assert_eq!(refused(|p| p.min_p = -0.1).field, "min_p");
        assert_eq!(
            refused(|p| p.repetition_penalty = 0.0).field,
            "repetition_penalty"
        );
        assert_eq!(
            refused(|p| p.presence_penalty = 2.1).field,
            "presence_penalty"
        );
        assert_eq!(
            refused(|p| p.frequency_penalty = -2.1).field,
            "frequency_penalty"
        );
        assert_eq!(
            refused(|p| p.logit_bias = vec![(1000, 1.0)]).field,
            "logit_bias"
        );
        assert_eq!(
            refused(|p| p.logit_bias = vec![(1, 100.5)]).field,
            "logit_bias"
        );
        assert_eq!(
            refused(|p| p.stop_token_ids = vec![1000]).field,
            "stop_token_ids"
        );
        let many = MAX_TOKEN_ENTRIES + 1;
        assert_eq!(
            refused(|p| p.stop_token_ids = vec![1; many]).to_string(),
            "`stop_token_ids` must be at most 1024 entries long, got 1025 entries"
        );
        assert_eq!(
            refused(|p| p.logit_bias = vec![(1, 1.0); many]).field,
            "logit_bias"
        );
        assert_eq!(refused(|p| p.logprobs = Some(21)).field, "logprobs");
        assert_eq!(
            refused(|p| p.prompt_logprobs = Some(21)).field,
            "prompt_logprobs"
        );
        assert_eq!(refused(|p| p.min_tokens = 17).field, "min_tokens");
    }

    #[test]
    fn the_message_names_field_bound_and_value() {
        let message = refused(|p| p.temperature = -1.0).to_string();
        assert_eq!(message, "`temperature` must be between 0 and 2, got -1");
        let message = refused(|p| p.logit_bias = vec![(1234, 1.0)]).to_string();
        assert_eq!(
            message,
            "`logit_bias` must be token ids below the vocabulary size (1000), got 1234"
        );
    }

    #[test]
    fn ignore_eos_keeps_stop_tokens() {
        let mut params = SamplingParams {
            eos_token_ids: vec![2],
            stop_token_ids: vec![7],
            ..SamplingParams::default()
        };
        assert!(params.is_stop_token(2) && params.is_stop_token(7) && !params.is_stop_token(3));
        params.ignore_eos = true;
        assert!(!params.is_stop_token(2) && params.is_stop_token(7));
    }
}
