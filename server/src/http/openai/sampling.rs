//! The fields that chat and text completions share, and their bounds.

use std::collections::BTreeSet;

use hearth_engine::output::{StopRegexError, StopRegexes};
use hearth_engine::params::{MAX_LOGPROBS, MAX_TOKEN_ENTRIES, SamplingParams};
use serde::Deserialize;

use super::super::error::ApiError;
use super::super::exchange;
use super::capped::{Capped, Entries};
use super::structured::StructuredFields;
use super::wire::OneOrMany;

/// Sequences one prompt may be continued into.
pub const MAX_N: i64 = 128;
/// Stop strings per request. OpenAI allows 4; vLLM has no bound; each costs a
/// search per token.
pub const MAX_STOP_STRINGS: usize = 16;
/// Bytes per stop string: what is held back from a stream can grow this long.
pub const MAX_STOP_BYTES: usize = 1024;
/// Bytes of `cache_salt`, which is kept with what the request leaves in the cache.
pub const MAX_SALT_BYTES: usize = 256;
/// Labels per request (OpenAI's bound).
pub const MAX_LABELS: usize = 16;
/// Tokens of an answer whose log-probabilities are asked for, the alternatives and the
/// echoed prompts counted too: some 256 MiB of JSON.
pub const MAX_LOGPROB_ENTRIES: usize = 1 << 22;

/// Declares a request type that has the shared fields beside its own. A macro,
/// because serde's `flatten` neither refuses unknown fields nor keeps the path
/// of a wrong one.
macro_rules! generation_request {
    ($(#[$doc:meta])* $name:ident { $($(#[$own:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$own])* pub $field: $type,)*
            pub model: Option<String>,
            pub max_tokens: Option<i64>,
            pub min_tokens: Option<i64>,
            pub temperature: Option<f64>,
            pub top_p: Option<f64>,
            pub top_k: Option<i64>,
            pub min_p: Option<f64>,
            pub repetition_penalty: Option<f64>,
            pub presence_penalty: Option<f64>,
            pub frequency_penalty: Option<f64>,
            pub logit_bias: Option<$crate::http::openai::sampling::LogitBias>,
            pub seed: Option<i64>,
            pub n: Option<i64>,
            pub stop: Option<$crate::http::openai::wire::OneOrMany>,
            /// SGLang's: a match ends the text, and stays in it.
            pub stop_regex: Option<$crate::http::openai::wire::OneOrMany>,
            pub stop_token_ids: Option<$crate::http::openai::sampling::TokenIds>,
            pub include_stop_str_in_output: Option<bool>,
            pub ignore_eos: Option<bool>,
            pub skip_special_tokens: Option<bool>,
            /// SGLang's name of `include_stop_str_in_output`.
            pub no_stop_trim: Option<bool>,
            pub return_hidden_states: Option<bool>,
            pub stream: Option<bool>,
            pub stream_options: Option<
                $crate::http::openai::wire::Object<$crate::http::openai::sampling::StreamOptions>,
            >,
            /// Requests with different salts share no cached prefixes (vLLM's name).
            pub cache_salt: Option<String>,
            /// Higher goes first (SGLang's field and direction).
            pub priority: Option<i64>,
            pub response_format: Option<
                $crate::http::openai::wire::Object<
                    $crate::http::openai::structured::ResponseFormat,
                >,
            >,
            pub structured_outputs: Option<
                $crate::http::openai::wire::Object<
                    $crate::http::openai::structured::StructuredOutputs,
                >,
            >,
            pub guided_json: Option<$crate::http::openai::structured::GivenSchema>,
            pub guided_regex: Option<String>,
            pub guided_choice: Option<$crate::http::openai::structured::Choices>,
            pub guided_grammar: Option<String>,
            pub regex: Option<String>,
            pub json_schema: Option<$crate::http::openai::structured::GivenSchema>,
            pub ebnf: Option<String>,
            pub grammar: Option<String>,
            pub json_whitespace: Option<$crate::http::openai::structured::JsonWhitespace>,
            /// Append what the grammar forces without sampling it.
            pub jump_forward: Option<bool>,
            /// A label of the request's trace.
            pub user: Option<String>,
            /// More of them.
            pub metadata: Option<$crate::http::openai::sampling::Labels>,
        }

        impl $name {
            /// The shared fields, moved out.
            pub fn take_sampling(&mut self) -> $crate::http::openai::sampling::SamplingFields {
                $crate::http::openai::sampling::SamplingFields {
                    min_tokens: self.min_tokens,
                    temperature: self.temperature,
                    top_p: self.top_p,
                    top_k: self.top_k,
                    min_p: self.min_p,
                    repetition_penalty: self.repetition_penalty,
                    presence_penalty: self.presence_penalty,
                    frequency_penalty: self.frequency_penalty,
                    logit_bias: self.logit_bias.take().unwrap_or_default(),
                    seed: self.seed,
                    n: self.n,
                    stop: self.stop.take().unwrap_or_default(),
                    stop_regex: self.stop_regex.take().unwrap_or_default(),
                    stop_token_ids: self.stop_token_ids.take().unwrap_or_default(),
                    include_stop_str_in_output: self.include_stop_str_in_output.unwrap_or(false)
                        || self.no_stop_trim.unwrap_or(false),
                    return_hidden_states: self.return_hidden_states.unwrap_or(false),
                    ignore_eos: self.ignore_eos.unwrap_or(false),
                    skip_special_tokens: self.skip_special_tokens.unwrap_or(true),
                    stream: self.stream.unwrap_or(false),
                    stream_options: self.stream_options.take().map(|options| options.0),
                    cache_salt: self.cache_salt.take(),
                    priority: self.priority,
                    structured: $crate::http::openai::structured::StructuredFields {
                        response_format: self.response_format.take().map(|format| format.0),
                        structured_outputs: self.structured_outputs.take().map(|given| given.0),
                        guided_json: self.guided_json.take(),
                        guided_regex: self.guided_regex.take(),
                        guided_choice: self.guided_choice.take(),
                        guided_grammar: self.guided_grammar.take(),
                        regex: self.regex.take(),
                        json_schema: self.json_schema.take(),
                        ebnf: self.ebnf.take(),
                        grammar: self.grammar.take(),
                        // A response format here.
                        structural_tag: None,
                        json_whitespace: self.json_whitespace,
                        jump_forward: self.jump_forward,
                        calls: None,
                    },
                    user: self.user.take(),
                    labels: self.metadata.take().unwrap_or_default(),
                }
            }
        }
    };
}
pub(super) use generation_request;

pub type LogitBias = Entries<f64, MAX_TOKEN_ENTRIES>;
pub type TokenIds = Capped<i64, MAX_TOKEN_ENTRIES>;
pub type Labels = Entries<String, MAX_LABELS>;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// A last chunk with the token counts and no choices.
    pub include_usage: Option<bool>,
    /// The token counts so far in every chunk (vLLM).
    pub continuous_usage_stats: Option<bool>,
}

/// What of the usage goes into a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamUsage {
    pub at_end: bool,
    pub in_every_chunk: bool,
}

/// The shared fields as they came, `null` and absent alike.
#[derive(Debug, Default)]
pub struct SamplingFields {
    pub min_tokens: Option<i64>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<i64>,
    pub min_p: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub presence_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub logit_bias: LogitBias,
    pub seed: Option<i64>,
    pub n: Option<i64>,
    pub stop: OneOrMany,
    pub stop_regex: OneOrMany,
    pub stop_token_ids: TokenIds,
    pub include_stop_str_in_output: bool,
    pub return_hidden_states: bool,
    pub ignore_eos: bool,
    pub skip_special_tokens: bool,
    pub stream: bool,
    pub stream_options: Option<StreamOptions>,
    pub cache_salt: Option<String>,
    pub priority: Option<i64>,
    pub structured: StructuredFields,
    pub user: Option<String>,
    pub labels: Labels,
}

/// What a request gets for the fields it leaves out, and what the model says
/// about its ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Defaults {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<u32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    /// Output tokens of a chat that names no limit, where they fit.
    pub max_tokens: Option<usize>,
    pub eos_token_ids: Vec<u32>,
}

impl Defaults {
    /// What a request that says nothing samples with.
    pub fn params(&self) -> SamplingParams {
        let plain = SamplingParams::default();
        SamplingParams {
            temperature: self.temperature.unwrap_or(plain.temperature),
            top_p: self.top_p.unwrap_or(plain.top_p),
            top_k: self.top_k,
            min_p: self.min_p.unwrap_or(plain.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(plain.repetition_penalty),
            eos_token_ids: self.eos_token_ids.clone(),
            ..plain
        }
    }
}

impl SamplingFields {
    /// The engine's parameters, without `max_tokens` and log-probabilities, which
    /// the two APIs spell differently. Ranges of floats are the engine's to check.
    ///
    /// # Errors
    /// 400 with field, bound and value for what does not fit the engine's types.
    pub fn params(&self, defaults: &Defaults) -> Result<SamplingParams, ApiError> {
        let plain = defaults.params();
        let number = |given: Option<f64>, plain: f32| given.map_or(plain, |value| value as f32);
        let top_k = match self.top_k {
            None => plain.top_k,
            // vLLM and SGLang say -1 for "all", older vLLM and transformers 0.
            Some(-1 | 0) => None,
            Some(given) => Some(u32::try_from(given).map_err(|_| {
                out_of_bounds(
                    "top_k",
                    "-1 (all tokens) or between 1 and 4294967295",
                    given,
                )
            })?),
        };
        if self.return_hidden_states {
            return Err(ApiError::unsupported("return_hidden_states"));
        }
        at_most("metadata", MAX_LABELS, "entries", self.labels.given)?;
        let stop_token_ids = &self.stop_token_ids;
        at_most(
            "stop_token_ids",
            MAX_TOKEN_ENTRIES,
            "entries",
            stop_token_ids.given,
        )?;
        let stop_token_ids = stop_token_ids.items.iter().map(|&id| {
            u32::try_from(id)
                .map_err(|_| out_of_bounds("stop_token_ids", "a list of token ids (0 or more)", id))
        });
        Ok(SamplingParams {
            min_tokens: at_least("min_tokens", 0, self.min_tokens)?.unwrap_or(0),
            temperature: number(self.temperature, plain.temperature),
            top_p: number(self.top_p, plain.top_p),
            top_k,
            min_p: number(self.min_p, plain.min_p),
            repetition_penalty: number(self.repetition_penalty, plain.repetition_penalty),
            presence_penalty: number(self.presence_penalty, plain.presence_penalty),
            frequency_penalty: number(self.frequency_penalty, plain.frequency_penalty),
            logit_bias: self.biases()?,
            // Any 64 bits will do: a negative seed is as good as another.
            seed: self.seed.map(i64::cast_unsigned),
            stop_token_ids: stop_token_ids.collect::<Result<_, _>>()?,
            ignore_eos: self.ignore_eos,
            ..plain
        })
    }

    fn biases(&self) -> Result<Vec<(u32, f32)>, ApiError> {
        let LogitBias { items, given } = &self.logit_bias;
        at_most("logit_bias", MAX_TOKEN_ENTRIES, "entries", *given)?;
        let mut seen = BTreeSet::new();
        let bias = |(id, bias): &(String, f64)| {
            let refused = |bound| out_of_bounds("logit_bias", bound, format!("{id:?}"));
            let token: u32 = id
                .parse()
                .map_err(|_| refused("an object whose keys are token ids"))?;
            // "01" and "+1" would be second names of a token.
            if token.to_string() != *id {
                return Err(refused(
                    "an object whose keys are token ids without sign and leading zeros",
                ));
            }
            if !seen.insert(token) {
                return Err(refused("an object that has each token id once"));
            }
            Ok((token, *bias as f32))
        };
        items.iter().map(bias).collect()
    }

    /// The part of the cache that this request shares prefixes in.
    ///
    /// # Errors
    /// 400 for a salt that is empty or longer than [`MAX_SALT_BYTES`].
    pub fn namespace(&self) -> Result<Option<String>, ApiError> {
        match &self.cache_salt {
            Some(salt) if !(1..=MAX_SALT_BYTES).contains(&salt.len()) => {
                let bound = format!("between 1 and {MAX_SALT_BYTES} bytes long");
                let given = format!("{} bytes", salt.len());
                Err(out_of_bounds("cache_salt", &bound, given))
            }
            salt => Ok(salt.clone()),
        }
    }

    /// # Errors
    /// 400 where no policy of the server looks at it, and beyond 32 bits.
    pub fn priority(&self, heeded: bool) -> Result<i32, ApiError> {
        let Some(given) = self.priority else {
            return Ok(0);
        };
        if !heeded {
            let bound = "left out: this server was started neither with --schedule-policy \
                         priority nor with --radix-eviction-policy priority";
            return Err(out_of_bounds("priority", bound, given));
        }
        let bound = format!("between {} and {}", i32::MIN, i32::MAX);
        i32::try_from(given).map_err(|_| out_of_bounds("priority", &bound, given))
    }

    /// Puts the labels into the request's trace.
    pub fn label_trace(&self) {
        let labels = self.labels.items.iter();
        let labels = labels.map(|(name, label)| (name.as_str(), label.as_str()));
        exchange::note_labels(self.user.as_deref(), labels);
    }

    /// Continuations per prompt.
    ///
    /// # Errors
    /// 400 outside 1 to [`MAX_N`].
    pub fn copies(&self) -> Result<usize, ApiError> {
        match self.n.unwrap_or(1) {
            n @ 1..=MAX_N => Ok(n as usize),
            n => Err(out_of_bounds("n", &format!("between 1 and {MAX_N}"), n)),
        }
    }

    /// # Errors
    /// 400 for too many, too long or empty stop strings.
    pub fn stop_strings(&self) -> Result<&[String], ApiError> {
        stops("stop", &self.stop)
    }

    /// What `stop_regex` asks for; nothing where all of it is empty.
    ///
    /// # Errors
    /// 400 for too many or too long ones, and for what cannot end a text.
    pub fn stop_regexes(&self) -> Result<Option<StopRegexes>, ApiError> {
        let OneOrMany(Capped { items, given }) = &self.stop_regex;
        if *given == items.len() && items.iter().all(String::is_empty) {
            return Ok(None);
        }
        let patterns = stops("stop_regex", &self.stop_regex)?;
        let refused = |(index, error): (usize, StopRegexError)| {
            let given = format!("{:?}", patterns[index]);
            out_of_bounds(&format!("stop_regex[{index}]"), &error.to_string(), given)
        };
        StopRegexes::new(patterns).map(Some).map_err(refused)
    }

    /// # Errors
    /// 400 for `stream_options` without `stream`.
    pub fn stream_usage(&self) -> Result<StreamUsage, ApiError> {
        let Some(options) = &self.stream_options else {
            return Ok(StreamUsage::default());
        };
        if !self.stream {
            let message = "`stream_options` must be left out unless `stream` is true";
            return Err(ApiError::field("stream_options", message));
        }
        let at_end = options.include_usage.unwrap_or(false);
        let in_every_chunk = options.continuous_usage_stats.unwrap_or(false);
        if in_every_chunk && !at_end {
            let message = "`stream_options.continuous_usage_stats` must be left out unless \
                           `stream_options.include_usage` is true";
            return Err(ApiError::field(
                "stream_options.continuous_usage_stats",
                message,
            ));
        }
        Ok(StreamUsage {
            at_end,
            in_every_chunk,
        })
    }
}

/// What is in `field` of what ends the text.
fn stops<'a>(field: &str, stops: &'a OneOrMany) -> Result<&'a [String], ApiError> {
    let OneOrMany(Capped { items, given }) = stops;
    at_most(field, MAX_STOP_STRINGS, "strings", *given)?;
    for (index, text) in items.iter().enumerate() {
        if text.is_empty() || text.len() > MAX_STOP_BYTES {
            let bound = format!("between 1 and {MAX_STOP_BYTES} bytes long");
            let param = format!("{field}[{index}]");
            let given = format!("{} bytes", text.len());
            return Err(out_of_bounds(&param, &bound, given));
        }
    }
    Ok(items)
}

/// `given` as a count.
///
/// # Errors
/// 400 below `least`.
pub fn at_least(field: &str, least: usize, given: Option<i64>) -> Result<Option<usize>, ApiError> {
    let Some(given) = given else { return Ok(None) };
    match usize::try_from(given) {
        Ok(value) if value >= least => Ok(Some(value)),
        _ => Err(out_of_bounds(field, &format!("at least {least}"), given)),
    }
}

/// Checks token ids of which each costs at every token.
///
/// # Errors
/// 400 for more than [`MAX_TOKEN_ENTRIES`], and for one that is not in the vocabulary.
pub fn token_ids(field: &str, ids: &[u32], vocab_size: usize) -> Result<(), ApiError> {
    at_most(field, MAX_TOKEN_ENTRIES, "token ids", ids.len())?;
    match ids.iter().find(|&&id| id as usize >= vocab_size) {
        Some(id) => {
            let bound = format!("token ids below the vocabulary size ({vocab_size})");
            Err(out_of_bounds(field, &bound, id))
        }
        None => Ok(()),
    }
}

/// `given` as a number of alternatives per token.
///
/// # Errors
/// 400 below 0 or above [`MAX_LOGPROBS`].
pub fn alternatives(field: &str, given: Option<i64>) -> Result<Option<usize>, ApiError> {
    let value = at_least(field, 0, given)?;
    match value {
        Some(value) if value > MAX_LOGPROBS => {
            let bound = format!("between 0 and {MAX_LOGPROBS}");
            Err(out_of_bounds(field, &bound, value))
        }
        _ => Ok(value),
    }
}

fn at_most(field: &str, most: usize, what: &str, given: usize) -> Result<(), ApiError> {
    if given <= most {
        return Ok(());
    }
    let bound = format!("at most {most} {what}");
    Err(out_of_bounds(field, &bound, format!("{given} {what}")))
}

/// Bounds an answer with log-probabilities before anything of it is computed: `tokens`
/// are those of all choices, prompts included where they are echoed.
///
/// # Errors
/// 400 naming the fields that make it that large.
pub fn check_logprob_entries(
    fields: &str,
    param: &str,
    tokens: usize,
    logprobs: Option<usize>,
) -> Result<(), ApiError> {
    let Some(top) = logprobs else { return Ok(()) };
    let entries = tokens.saturating_mul(top.saturating_add(1));
    if entries <= MAX_LOGPROB_ENTRIES {
        return Ok(());
    }
    let message = format!("{fields} must be at most {MAX_LOGPROB_ENTRIES}, got {entries}");
    Err(ApiError::field(param, message))
}

/// 400: `field` must be `bound`.
pub fn out_of_bounds(field: &str, bound: &str, given: impl std::fmt::Display) -> ApiError {
    ApiError::field(field, format!("`{field}` must be {bound}, got {given}"))
}
