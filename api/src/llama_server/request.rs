//! The JSON of a request to `/completion`.

use hearth_engine::SamplingParams;
use hearth_engine::output::TextOptions;
use serde::Deserialize;
use serde::de::IgnoredAny;
use uuid::Uuid;

use crate::error::{ApiError, out_of_bounds};
use crate::fields::adapters::ScaledAdapters;
use crate::fields::bounds::{alternatives, at_least, at_most};
use crate::fields::capped::{Capped, Noticed};
use crate::fields::sampling::SamplingFields;
use crate::fields::structured::{Asked, GivenSchema, StructuredFields};
use crate::fields::wire::OneOrMany;
use crate::grammars::{GrammarOptions, Whitespace};
use crate::llama_server::bias::Biases;
use crate::llama_server::prompts::Prompts;
use crate::prompt;
use crate::served::Served;

/// Most entries of `response_fields`.
const MAX_RESPONSE_FIELDS: usize = 64;
/// llama-server's number for a random seed, beside -1.
const RANDOM_SEED: i64 = u32::MAX as i64;

/// llama-server's completion request. It also has the fields that this server does not implement, so
/// that they are refused by name unless their value changes nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CompletionRequest {
    pub prompt: Prompts,
    pub model: Option<String>,
    n_predict: Option<i64>,
    n_cmpl: Option<i64>,
    pub stream: Option<bool>,
    cache_prompt: Option<bool>,
    cache_salt: Option<String>,
    stop: Option<OneOrMany>,
    temperature: Option<f64>,
    top_k: Option<i64>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    seed: Option<i64>,
    repeat_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    repeat_last_n: Option<i64>,
    logit_bias: Option<Biases>,
    ignore_eos: Option<bool>,
    n_probs: Option<i64>,
    grammar: Option<String>,
    json_schema: Option<GivenSchema>,
    complete: Option<bool>,
    pub return_tokens: Option<bool>,
    pub timings_per_token: Option<bool>,
    response_fields: Option<Capped<String, MAX_RESPONSE_FIELDS>>,
    pub lora: Option<ScaledAdapters>,
    // Hints for the cache of a slot, without an effect: all requests share one cache, and no context
    // is shifted.
    #[serde(rename = "id_slot")]
    _id_slot: Option<i64>,
    #[serde(rename = "n_keep")]
    _n_keep: Option<i64>,
    n_cache_reuse: Option<i64>,
    // Samplers that this server does not have. Their settings have no effect where they are off.
    typical_p: Option<f64>,
    tfs_z: Option<f64>,
    top_n_sigma: Option<f64>,
    dynatemp_range: Option<f64>,
    #[serde(rename = "dynatemp_exponent")]
    _dynatemp_exponent: Option<f64>,
    mirostat: Option<i64>,
    #[serde(rename = "mirostat_tau")]
    _mirostat_tau: Option<f64>,
    #[serde(rename = "mirostat_eta")]
    _mirostat_eta: Option<f64>,
    dry_multiplier: Option<f64>,
    #[serde(rename = "dry_base")]
    _dry_base: Option<f64>,
    #[serde(rename = "dry_allowed_length")]
    _dry_allowed_length: Option<i64>,
    #[serde(rename = "dry_penalty_last_n")]
    _dry_penalty_last_n: Option<i64>,
    #[serde(rename = "dry_sequence_breakers")]
    _dry_sequence_breakers: Option<Noticed>,
    xtc_probability: Option<f64>,
    #[serde(rename = "xtc_threshold")]
    _xtc_threshold: Option<f64>,
    samplers: Option<IgnoredAny>,
    penalize_nl: Option<bool>,
    min_keep: Option<i64>,
    n_indent: Option<i64>,
    n_discard: Option<i64>,
    t_max_predict_ms: Option<i64>,
    post_sampling_probs: Option<bool>,
    return_progress: Option<bool>,
    image_data: Option<Noticed>,
}

/// The bound on the output of each prompt.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// The checkpoint's suggestion, or else the end of the context.
    Suggested,
    /// The end of the context.
    Context,
    /// A number of tokens, or fewer where the context ends before.
    Tokens(usize),
}

impl Limit {
    /// The most output tokens where the context has room for `room`.
    pub fn within(self, served: &Served, room: usize) -> usize {
        match self {
            Self::Suggested => prompt::suggested(served, room),
            Self::Context => room,
            Self::Tokens(tokens) => tokens.min(room),
        }
    }
}

/// The checked fields that are the same for all prompts of a request.
#[derive(Debug)]
pub struct Checked {
    /// Everything except `max_tokens`, which depends on the length of the prompt.
    pub params: SamplingParams,
    pub limit: Limit,
    pub copies: usize,
    pub text: TextOptions,
    pub namespace: Option<String>,
    pub asked: Option<Asked>,
    pub response_fields: Vec<String>,
}

impl CompletionRequest {
    /// Checks everything except the prompts and the adapter.
    ///
    /// # Errors
    /// 400 with field, bound and value.
    pub fn check(&mut self, served: &Served) -> Result<Checked, ApiError> {
        self.refuse_unsupported()?;
        self.refuse_window()?;
        let seed = self.seed.filter(|&seed| seed != -1 && seed != RANDOM_SEED);
        let fields = SamplingFields {
            temperature: self.temperature,
            top_p: self.top_p,
            // llama-server keeps all tokens at 0 and below.
            top_k: self.top_k.map(|top_k| top_k.max(0)),
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed,
            n: self.n_cmpl,
            ignore_eos: self.ignore_eos.unwrap_or(false),
            stop: self.stop.take().unwrap_or_default(),
            cache_salt: self.cache_salt.take(),
            ..SamplingFields::default()
        };
        let asked = self.asked(served.grammars.defaults.whitespace, fields.ignore_eos)?;
        let logit_bias = self.logit_bias.take();
        let params = SamplingParams {
            logit_bias: logit_bias.map_or(Ok(Vec::new()), |given| given.tokens(served))?,
            logprobs: alternatives("n_probs", self.n_probs)?.filter(|&n| n > 0),
            ..fields.params(&served.defaults)?
        };
        let text = TextOptions {
            stop: fields.stop_strings()?.to_vec(),
            ..TextOptions::default()
        };
        let limit = match self.n_predict {
            Some(-1) => Limit::Context,
            given => at_least("n_predict", 0, given)?.map_or(Limit::Suggested, Limit::Tokens),
        };
        let response_fields = self.response_fields.take().unwrap_or_default();
        let given = response_fields.given;
        at_most("response_fields", MAX_RESPONSE_FIELDS, "names", given)?;
        Ok(Checked {
            limit,
            copies: fields
                .copies()
                .map_err(|error| error.renamed("n", "n_cmpl"))?,
            text,
            namespace: self.namespace(&fields)?,
            asked,
            response_fields: response_fields.items,
            params,
        })
    }

    /// The part of the prefix cache that the request uses. One without `cache_prompt` gets a part that
    /// no other request has.
    fn namespace(&self, fields: &SamplingFields) -> Result<Option<String>, ApiError> {
        let salt = fields.namespace()?;
        Ok(match self.cache_prompt {
            Some(false) => Some(format!("alone:{}", Uuid::now_v7().simple())),
            _ => salt,
        })
    }

    fn asked(&mut self, whitespace: Whitespace, no_eos: bool) -> Result<Option<Asked>, ApiError> {
        let fields = StructuredFields {
            // llama-server's clients send an empty grammar for none.
            grammar: self.grammar.take().filter(|grammar| !grammar.is_empty()),
            json_schema: self.json_schema.take(),
            options: GrammarOptions::completing(self.complete),
            ..StructuredFields::default()
        };
        fields.asked(whitespace, no_eos)
    }

    /// Penalties here look at the whole context. A window of another length is refused where a penalty
    /// would use it: clients send the window beside penalties that are off.
    fn refuse_window(&self) -> Result<(), ApiError> {
        let on = |given: Option<f64>, off: f64| given.is_some_and(|value| value != off);
        let penalises = on(self.repeat_penalty, 1.0)
            || on(self.presence_penalty, 0.0)
            || on(self.frequency_penalty, 0.0);
        match self.repeat_last_n {
            Some(given) if given != -1 && penalises => {
                let bound = "left out or -1 beside a penalty, because penalties here look at the \
                             whole context";
                Err(out_of_bounds("repeat_last_n", bound, given))
            }
            _ => Ok(()),
        }
    }

    fn refuse_unsupported(&self) -> Result<(), ApiError> {
        let is = |given: Option<f64>, off: f64| given.is_some_and(|value| value != off);
        let above = |given: Option<i64>, most: i64| given.is_some_and(|value| value > most);
        let fields = [
            ("n_cache_reuse", above(self.n_cache_reuse, 0)),
            ("typical_p", is(self.typical_p, 1.0)),
            ("tfs_z", is(self.tfs_z, 1.0)),
            ("top_n_sigma", self.top_n_sigma.is_some_and(|n| n > 0.0)),
            ("dynatemp_range", is(self.dynatemp_range, 0.0)),
            ("mirostat", self.mirostat.is_some_and(|mode| mode != 0)),
            ("dry_multiplier", is(self.dry_multiplier, 0.0)),
            ("xtc_probability", is(self.xtc_probability, 0.0)),
            ("samplers", self.samplers.is_some()),
            ("penalize_nl", self.penalize_nl == Some(true)),
            ("min_keep", above(self.min_keep, 1)),
            ("n_indent", above(self.n_indent, 0)),
            ("n_discard", above(self.n_discard, 0)),
            ("t_max_predict_ms", above(self.t_max_predict_ms, 0)),
            (
                "post_sampling_probs",
                self.post_sampling_probs == Some(true),
            ),
            ("return_progress", self.return_progress == Some(true)),
            (
                "image_data",
                self.image_data.as_ref().is_some_and(|data| data.given > 0),
            ),
        ];
        match fields.into_iter().find(|(_, asked)| *asked) {
            Some((field, _)) => Err(ApiError::unsupported(field)),
            None => Ok(()),
        }
    }
}
