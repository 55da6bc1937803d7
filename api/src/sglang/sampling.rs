//! The field `sampling_params` of `/generate`.

use std::fmt;

use hearth_engine::SamplingParams;
use hearth_engine::output::TextOptions;
use serde::de::value::MapAccessDeserializer;
use serde::de::{
    self, Deserialize, Deserializer, IgnoredAny, IntoDeserializer, MapAccess, Visitor,
};

use crate::error::{ApiError, out_of_bounds};
use crate::fields::bounds::at_least;
use crate::fields::capped::Entries;
use crate::fields::sampling::{LogitBias, SamplingFields, TokenIds};
use crate::fields::structured::{Asked, GivenSchema, StructuredFields};
use crate::fields::wire::OneOrMany;
use crate::grammars::{GrammarOptions, Whitespace};
use crate::served::Defaults;

/// Output tokens of a request that sets no limit.
const DEFAULT_MAX_NEW_TOKENS: usize = 128;

/// The fields by SGLang's names. It also has those that this server does not implement, so that
/// they are refused by name unless their value changes nothing.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sampling {
    max_new_tokens: Option<i64>,
    min_new_tokens: Option<i64>,
    stop: Option<OneOrMany>,
    stop_token_ids: Option<TokenIds>,
    stop_regex: Option<OneOrMany>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    frequency_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    repetition_penalty: Option<f64>,
    logit_bias: Option<LogitBias>,
    n: Option<i64>,
    sampling_seed: Option<i64>,
    ignore_eos: Option<bool>,
    skip_special_tokens: Option<bool>,
    spaces_between_special_tokens: Option<bool>,
    no_stop_trim: Option<bool>,
    json_schema: Option<SchemaOrNone>,
    regex: Option<String>,
    ebnf: Option<String>,
    structural_tag: Option<SchemaOrNone>,
    /// True if an output that must follow a grammar is steered to its end before its tokens run out.
    complete: Option<bool>,
    stream_interval: Option<i64>,
    beam_width: Option<i64>,
    custom_params: Option<Entries<IgnoredAny, 0>>,
    watermark: Option<IgnoredAny>,
}

/// A JSON Schema or a structural tag, or an empty string, which stands for none.
#[derive(Debug)]
pub struct SchemaOrNone(pub Option<GivenSchema>);

impl<'de> Deserialize<'de> for SchemaOrNone {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Schemas;
        impl<'de> Visitor<'de> for Schemas {
            type Value = SchemaOrNone;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON Schema, as an object or as a string")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<SchemaOrNone, E> {
                let schema = match text {
                    "" => None,
                    text => Some(GivenSchema::deserialize(text.into_deserializer())?),
                };
                Ok(SchemaOrNone(schema))
            }
            fn visit_bool<E: de::Error>(self, schema: bool) -> Result<SchemaOrNone, E> {
                let schema = GivenSchema::deserialize(schema.into_deserializer());
                schema.map(|schema| SchemaOrNone(Some(schema)))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SchemaOrNone, A::Error> {
                let schema = GivenSchema::deserialize(MapAccessDeserializer::new(map));
                schema.map(|schema| SchemaOrNone(Some(schema)))
            }
        }
        deserializer.deserialize_any(Schemas)
    }
}

/// [`Sampling`], checked.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The engine's parameters, except `max_tokens` and log-probabilities.
    pub params: SamplingParams,
    pub text: TextOptions,
    /// `None`: [`DEFAULT_MAX_NEW_TOKENS`], as far as they fit the context.
    pub max_new_tokens: Option<usize>,
    pub n: usize,
}

impl Checked {
    /// The bound on output tokens where the context has room for `room`.
    pub fn tokens(&self, room: usize) -> usize {
        self.max_new_tokens
            .unwrap_or(DEFAULT_MAX_NEW_TOKENS.min(room))
    }
}

impl Sampling {
    /// The parameters, and the grammar that the request asks for.
    ///
    /// # Errors
    /// 400 with field, bound and value.
    pub fn check(
        self,
        defaults: &Defaults,
        whitespace: Whitespace,
    ) -> Result<(Checked, Option<Asked>), ApiError> {
        self.checked(defaults, whitespace)
            .map_err(|error| error.within("sampling_params"))
    }

    fn checked(
        mut self,
        defaults: &Defaults,
        whitespace: Whitespace,
    ) -> Result<(Checked, Option<Asked>), ApiError> {
        self.refuse_unsupported()?;
        // An empty string is the same as none.
        let full = |text: Option<String>| text.filter(|text| !text.is_empty());
        let structured = StructuredFields {
            regex: full(self.regex.take()),
            json_schema: self.json_schema.take().and_then(|schema| schema.0),
            ebnf: full(self.ebnf.take()),
            structural_tag: self.structural_tag.take().and_then(|tag| tag.0),
            options: GrammarOptions::completing(self.complete),
            ..StructuredFields::default()
        };
        let ignore_eos = self.ignore_eos.unwrap_or(false);
        let asked = structured.asked(whitespace, ignore_eos)?;
        let max_new_tokens = at_least("max_new_tokens", 0, self.max_new_tokens)?;
        let min_tokens = at_least("min_new_tokens", 0, self.min_new_tokens)?.unwrap_or(0);
        let most = max_new_tokens.unwrap_or(DEFAULT_MAX_NEW_TOKENS);
        if min_tokens > most {
            let bound = format!("at most max_new_tokens ({most})");
            return Err(out_of_bounds("min_new_tokens", &bound, min_tokens));
        }
        let fields = SamplingFields {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.take().unwrap_or_default(),
            seed: self.sampling_seed,
            n: self.n,
            stop: self.stop.take().unwrap_or_default(),
            stop_regex: self.stop_regex.take().unwrap_or_default(),
            stop_token_ids: self.stop_token_ids.take().unwrap_or_default(),
            ignore_eos,
            ..SamplingFields::default()
        };
        let params = SamplingParams {
            min_tokens,
            ..fields.params(defaults)?
        };
        let text = TextOptions {
            skip_special: self.skip_special_tokens.unwrap_or(true),
            stop: fields.stop_strings()?.to_vec(),
            stop_regex: fields.stop_regexes()?,
            include_stop: self.no_stop_trim.unwrap_or(false),
            min_tokens,
        };
        let checked = Checked {
            params,
            text,
            max_new_tokens,
            n: fields.copies()?,
        };
        Ok((checked, asked))
    }

    fn refuse_unsupported(&self) -> Result<(), ApiError> {
        let fields = [
            (
                "spaces_between_special_tokens",
                self.spaces_between_special_tokens == Some(false),
            ),
            (
                "stream_interval",
                self.stream_interval.is_some_and(|n| n != 1),
            ),
            ("beam_width", self.beam_width.is_some_and(|n| n != 1)),
            (
                "custom_params",
                self.custom_params.as_ref().is_some_and(|p| p.given > 0),
            ),
            ("watermark", self.watermark.is_some()),
        ];
        match fields.into_iter().find(|(_, given)| *given) {
            Some((field, _)) => Err(ApiError::unsupported(field)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str) -> Result<Checked, ApiError> {
        asked(json).map(|(checked, _)| checked)
    }

    fn asked(json: &str) -> Result<(Checked, Option<Asked>), ApiError> {
        let sampling: Sampling = serde_json::from_str(json).unwrap();
        sampling.check(&Defaults::default(), Whitespace::default())
    }

    #[test]
    fn empty_grammars_are_none_and_two_are_too_many() {
        let none = r#"{"regex": "", "json_schema": "", "ebnf": ""}"#;
        assert!(asked(none).unwrap().1.is_none());
        for one in [
            r#"{"regex": "a+"}"#,
            r#"{"json_schema": "{}"}"#,
            r#"{"json_schema": {}}"#,
        ] {
            assert!(asked(one).unwrap().1.is_some(), "{one}");
        }
        let error = asked(r#"{"regex": "a+", "ebnf": "root ::= \"a\""}"#).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("sampling_params.ebnf"));
    }

    #[test]
    fn what_sglangs_front_end_always_sends_asks_for_nothing() {
        let checked = check(
            r#"{"skip_special_tokens": true, "spaces_between_special_tokens": true,
                "max_new_tokens": 0, "min_new_tokens": 0, "n": 1, "stop": [],
                "stop_token_ids": [], "stop_regex": [], "temperature": 1.0, "top_p": 1.0,
                "top_k": -1, "min_p": 0.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
                "ignore_eos": false, "regex": null, "json_schema": null}"#,
        )
        .unwrap();
        assert_eq!(checked.params, SamplingParams::default());
        assert_eq!(checked.text, TextOptions::default());
        assert_eq!((checked.max_new_tokens, checked.n), (Some(0), 1));
    }

    #[test]
    fn the_default_length_is_128_tokens_or_what_there_is_room_for() {
        let checked = check("{}").unwrap();
        assert_eq!((checked.tokens(500), checked.tokens(7)), (128, 7));
        assert_eq!(check(r#"{"max_new_tokens": 9}"#).unwrap().tokens(7), 9);
    }

    #[test]
    fn what_is_out_of_bounds_is_named_by_sglangs_name() {
        let error = check(r#"{"min_new_tokens": 9, "max_new_tokens": 8}"#).unwrap_err();
        assert_eq!(
            error.param.as_deref(),
            Some("sampling_params.min_new_tokens")
        );
        let error = check(r#"{"stop_regex": ["a+", "a*"]}"#).unwrap_err();
        let param = "sampling_params.stop_regex[1]";
        assert_eq!(error.param.as_deref(), Some(param));
        assert!(error.message.ends_with(r#"got "a*""#), "{}", error.message);
    }
}
