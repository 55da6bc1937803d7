//! The sampling parameters of a request, and their bounds.

use std::collections::BTreeSet;

use hearth_engine::output::{StopRegexError, StopRegexes};
use hearth_engine::params::{
    FREQUENCY_PENALTY, Floats, LOGIT_BIAS, MAX_TOKEN_ENTRIES, MIN_P, PRESENCE_PENALTY,
    REPETITION_PENALTY, SamplingParams, TEMPERATURE, TOP_P,
};
use serde::Deserialize;

use crate::error::{ApiError, out_of_bounds};
use crate::exchange;
use crate::fields::bounds::{at_least, at_most};
use crate::fields::capped::{Capped, Entries};
use crate::fields::structured::StructuredFields;
use crate::fields::wire::{MAX_STOP_STRINGS, OneOrMany};
use crate::served::Defaults;

/// Most continuations of one prompt.
pub const MAX_N: i64 = 128;
/// Most bytes of a stop string. As many may have to be held back from a stream.
pub const MAX_STOP_BYTES: usize = 1024;
/// Most bytes of `cache_salt`, which is stored with every prefix that the request leaves in the
/// cache.
pub const MAX_SALT_BYTES: usize = 256;
/// Most labels of a request (OpenAI's bound).
pub const MAX_LABELS: usize = 16;

pub type LogitBias = Entries<f64, MAX_TOKEN_ENTRIES>;
pub type TokenIds = Capped<i64, MAX_TOKEN_ENTRIES>;
pub type Labels = Entries<String, MAX_LABELS>;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// Send a last chunk with the token counts and no choices.
    pub include_usage: Option<bool>,
    /// Send the token counts so far in every chunk (vLLM's field).
    pub continuous_usage_stats: Option<bool>,
}

/// Where a stream has the token counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamUsage {
    pub at_end: bool,
    pub in_every_chunk: bool,
}

/// The shared fields as the request has them; `null` is the same as absent.
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

fn number(field: &str, given: Option<f64>, bound: Floats) -> Result<Option<f32>, ApiError> {
    given.map(|value| single(field, value, bound)).transpose()
}

/// The `f32` nearest to `value`. The engine compares it with `bound`, which refuses here what no `f32`
/// is near to.
fn single(field: &str, value: f64, bound: Floats) -> Result<f32, ApiError> {
    let nearest = value as f32;
    match nearest.is_finite() {
        true => Ok(nearest),
        false => Err(out_of_bounds(
            field,
            &bound.to_string(),
            format!("{value:e}"),
        )),
    }
}

impl SamplingFields {
    /// The engine's parameters, except `max_tokens` and log-probabilities, whose fields differ
    /// between the dialects. The engine itself checks the ranges of floats.
    ///
    /// # Errors
    /// 400 with field, bound and value for what does not fit the engine's types.
    pub fn params(&self, defaults: &Defaults) -> Result<SamplingParams, ApiError> {
        let plain = defaults.params();
        let top_k = match self.top_k {
            None => plain.top_k,
            // "All tokens" is -1 in vLLM and SGLang, and 0 in older vLLM and transformers.
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
            temperature: number("temperature", self.temperature, TEMPERATURE)?
                .unwrap_or(plain.temperature),
            // The smallest share is above 0, as the bound says, even where f32 has no number so small.
            top_p: match self.top_p {
                Some(share) if share > 0.0 => single("top_p", share, TOP_P)?.max(f32::MIN_POSITIVE),
                share => number("top_p", share, TOP_P)?.unwrap_or(plain.top_p),
            },
            top_k,
            min_p: number("min_p", self.min_p, MIN_P)?.unwrap_or(plain.min_p),
            repetition_penalty: number(
                "repetition_penalty",
                self.repetition_penalty,
                REPETITION_PENALTY,
            )?
            .unwrap_or(plain.repetition_penalty),
            presence_penalty: number("presence_penalty", self.presence_penalty, PRESENCE_PENALTY)?
                .unwrap_or(plain.presence_penalty),
            frequency_penalty: number(
                "frequency_penalty",
                self.frequency_penalty,
                FREQUENCY_PENALTY,
            )?
            .unwrap_or(plain.frequency_penalty),
            logit_bias: self.biases()?,
            // A seed is 64 bits without a meaning, so that a negative one is as good as any.
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
            // "01" and "+1" would be further names of the same token.
            if token.to_string() != *id {
                return Err(refused(
                    "an object whose keys are token ids without sign and leading zeros",
                ));
            }
            if !seen.insert(token) {
                return Err(refused("an object that has each token id once"));
            }
            Ok((token, single("logit_bias", *bias, LOGIT_BIAS)?))
        };
        items.iter().map(bias).collect()
    }

    /// The namespace of the prefix cache that this request uses.
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

    /// The request's priority. `heeded`: a policy of this server looks at it.
    ///
    /// # Errors
    /// 400 for a priority that no policy would look at, or that does not fit 32 bits.
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

    /// Puts user and labels into the request's trace.
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

    /// The checked stop strings.
    ///
    /// # Errors
    /// 400 for too many, too long or empty stop strings.
    pub fn stop_strings(&self) -> Result<&[String], ApiError> {
        stops("stop", &self.stop)
    }

    /// The compiled expressions of `stop_regex`; none where all of them are empty.
    ///
    /// # Errors
    /// 400 for too many or too long expressions, and for one that cannot be used to end a text.
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

    /// Where the stream has the token counts.
    ///
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

/// The checked strings of `field`, which end the text.
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
