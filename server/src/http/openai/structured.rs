//! What a request may ask its output to be, under every name that OpenAI, vLLM, SGLang
//! and llama-server have for it.

use hearth_engine::constraint::Constrain;
use hearth_grammar::{Problem, Source, Spec, Whitespace};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::capped::Capped;
use super::structured_value::MAX_SCHEMA_VALUES;
use super::wire::Object;
use crate::grammars::CompileError;
use crate::http::error::ApiError;
use crate::served::Served;

pub use super::structured_value::GivenSchema;

/// Choices that are kept of a request; the grammar refuses more than it takes.
const MAX_CHOICES: usize = 10_001;

pub type Choices = Capped<String, MAX_CHOICES>;

/// OpenAI's `response_format`, with llama-server's `schema` beside the type.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResponseFormat {
    r#type: String,
    json_schema: Option<Object<NamedSchema>>,
    schema: Option<GivenSchema>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedSchema {
    /// Only told to the model by OpenAI, which puts them in the prompt.
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(rename = "description")]
    _description: Option<String>,
    schema: Option<GivenSchema>,
    /// The schema is enforced either way.
    #[serde(rename = "strict")]
    _strict: Option<bool>,
}

/// vLLM's `structured_outputs`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StructuredOutputs {
    json: Option<GivenSchema>,
    regex: Option<String>,
    choice: Option<Choices>,
    grammar: Option<String>,
    json_object: Option<bool>,
    structural_tag: Option<IgnoredAny>,
    disable_any_whitespace: Option<bool>,
    whitespace_pattern: Option<IgnoredAny>,
}

/// How JSON is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JsonWhitespace {
    Natural,
    Compact,
}

impl From<JsonWhitespace> for Whitespace {
    fn from(given: JsonWhitespace) -> Self {
        match given {
            JsonWhitespace::Natural => Self::Natural,
            JsonWhitespace::Compact => Self::Compact,
        }
    }
}

/// The fields as they came, `null` and absent alike.
#[derive(Debug, Default)]
pub struct StructuredFields {
    pub response_format: Option<ResponseFormat>,
    pub structured_outputs: Option<StructuredOutputs>,
    pub guided_json: Option<GivenSchema>,
    pub guided_regex: Option<String>,
    pub guided_choice: Option<Choices>,
    pub guided_grammar: Option<String>,
    pub regex: Option<String>,
    pub json_schema: Option<GivenSchema>,
    pub ebnf: Option<String>,
    pub grammar: Option<String>,
    pub json_whitespace: Option<JsonWhitespace>,
    pub jump_forward: Option<bool>,
}

/// A grammar that a request asks for.
#[derive(Debug, PartialEq)]
pub struct Asked {
    spec: Spec,
    /// The field that holds it.
    param: &'static str,
    jump_forward: Option<bool>,
}

impl StructuredFields {
    /// What is asked for, if anything is.
    ///
    /// # Errors
    /// 400 for several at once, for a kind that is not known, for what is not supported,
    /// and for options without a grammar.
    pub fn asked(self, defaults: Whitespace, ignore_eos: bool) -> Result<Option<Asked>, ApiError> {
        let mut whitespace = self
            .json_whitespace
            .map(|given| (given.into(), "json_whitespace"));
        let mut given = Vec::new();
        let mut ask = |param: &'static str, source: Option<Source>| {
            given.extend(source.map(|source| (param, source)));
        };
        if let Some(format) = self.response_format {
            let (param, source) = format.source()?;
            ask(param, source);
        }
        if let Some(outputs) = self.structured_outputs {
            if outputs.structural_tag.is_some() {
                return Err(ApiError::unsupported("structured_outputs.structural_tag"));
            }
            if outputs.whitespace_pattern.is_some() {
                return Err(ApiError::unsupported(
                    "structured_outputs.whitespace_pattern",
                ));
            }
            if outputs.disable_any_whitespace == Some(true) {
                let param = "structured_outputs.disable_any_whitespace";
                whitespace = Some((Whitespace::Compact, param));
            }
            ask(
                "structured_outputs.json",
                schema(outputs.json, "structured_outputs.json")?,
            );
            ask("structured_outputs.regex", outputs.regex.map(Source::Regex));
            ask("structured_outputs.choice", choice(outputs.choice));
            ask(
                "structured_outputs.grammar",
                outputs.grammar.map(either_grammar),
            );
            let object = outputs.json_object == Some(true);
            ask(
                "structured_outputs.json_object",
                object.then_some(Source::JsonObject),
            );
        }
        ask("guided_json", schema(self.guided_json, "guided_json")?);
        ask("guided_regex", self.guided_regex.map(Source::Regex));
        ask("guided_choice", choice(self.guided_choice));
        ask("guided_grammar", self.guided_grammar.map(either_grammar));
        ask("regex", self.regex.map(Source::Regex));
        ask("json_schema", schema(self.json_schema, "json_schema")?);
        ask("ebnf", self.ebnf.map(Source::Gbnf));
        ask("grammar", self.grammar.map(Source::Gbnf));

        let mut given = given.into_iter();
        let Some((param, source)) = given.next() else {
            let options = [
                ("jump_forward", self.jump_forward.is_some()),
                whitespace.map_or(("", false), |(_, param)| (param, true)),
            ];
            // Alone they would change nothing, and be ignored.
            return match options.into_iter().find(|(_, given)| *given) {
                Some((option, _)) => Err(ApiError::field(
                    option,
                    format!("`{option}` must be left out without a grammar to follow"),
                )),
                None => Ok(None),
            };
        };
        if let Some((other, _)) = given.next() {
            let message = format!("`{param}` and `{other}` must not be given together");
            return Err(ApiError::field(other, message));
        }
        if ignore_eos {
            let message = format!("`ignore_eos` must be left out or false with `{param}`");
            return Err(ApiError::field("ignore_eos", message));
        }
        let spec = Spec {
            source,
            whitespace: whitespace.map_or(defaults, |(given, _)| given),
        };
        Ok(Some(Asked {
            spec,
            param,
            jump_forward: self.jump_forward,
        }))
    }
}

impl ResponseFormat {
    fn source(self) -> Result<(&'static str, Option<Source>), ApiError> {
        const NAMED: &str = "response_format.json_schema.schema";
        const PLAIN: &str = "response_format.schema";
        let named = self.json_schema.map(|named| named.0.schema);
        let only = |param: &str, kind: &str| {
            let message = format!("`{param}` must be left out with the type {kind:?}");
            Err(ApiError::field(param, message))
        };
        match (self.r#type.as_str(), named, self.schema) {
            ("text", None, None) => Ok(("response_format", None)),
            ("json_object", None, None) => Ok(("response_format", Some(Source::JsonObject))),
            ("json_object" | "json_schema", None, given @ Some(_)) => {
                Ok((PLAIN, schema(given, PLAIN)?))
            }
            ("json_schema", Some(given @ Some(_)), None) => Ok((NAMED, schema(given, NAMED)?)),
            ("json_schema", Some(_), Some(_)) => only(PLAIN, "json_schema"),
            ("json_schema", _, None) => {
                let message = format!("`{NAMED}` must be a JSON Schema, got none");
                Err(ApiError::field(NAMED, message))
            }
            (kind @ ("text" | "json_object"), Some(_), _) => {
                only("response_format.json_schema", kind)
            }
            (kind @ "text", None, Some(_)) => only(PLAIN, kind),
            ("structural_tag", ..) => Err(ApiError::unsupported("response_format")),
            (kind, ..) => {
                let message = format!(
                    "`response_format.type` must be one of text, json_object, json_schema, got {:?}",
                    kind.chars().take(40).collect::<String>()
                );
                Err(ApiError::field("response_format.type", message))
            }
        }
    }
}

fn schema(given: Option<GivenSchema>, param: &str) -> Result<Option<Source>, ApiError> {
    match given {
        Some(GivenSchema { values, .. }) if values > MAX_SCHEMA_VALUES => {
            let message =
                format!("`{param}` must have at most {MAX_SCHEMA_VALUES} values, got {values}");
            Err(ApiError::field(param, message).code(Problem::TooComplex.code()))
        }
        given => Ok(given.map(|given| Source::JsonSchema(given.schema))),
    }
}

fn choice(given: Option<Choices>) -> Option<Source> {
    given.map(|choices| Source::Choice(choices.items))
}

/// vLLM takes GBNF, and Lark where llguidance is its backend.
fn either_grammar(text: String) -> Source {
    if text.contains("::=") {
        Source::Gbnf(text)
    } else {
        Source::Lark(text)
    }
}

/// Compiles what was `asked`, off the event loop and the engine's thread.
///
/// # Errors
/// 400 with what is wrong with the grammar, 503 when no thread was free to see.
pub async fn compile(served: &Served, asked: Option<Asked>) -> Result<Option<Constrain>, ApiError> {
    let Some(Asked {
        spec,
        param,
        jump_forward,
    }) = asked
    else {
        return Ok(None);
    };
    let grammars = &served.grammars;
    match grammars.compile(spec).await {
        Ok(grammar) => Ok(Some(grammars.constrain(grammar, jump_forward))),
        Err(error) => {
            let message = format!("`{param}`: {error}");
            Err(match error {
                CompileError::Refused(refusal) => {
                    ApiError::field(param, message).code(refusal.problem.code())
                }
                CompileError::TooSlow => {
                    ApiError::field(param, message).code(Problem::TooComplex.code())
                }
                CompileError::Busy(_) | CompileError::Waited => {
                    ApiError::unavailable("grammar_queue_full", message)
                }
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    fn format(json: Value) -> Result<Option<Asked>, ApiError> {
        let fields = StructuredFields {
            response_format: Some(from_value(json).unwrap()),
            ..StructuredFields::default()
        };
        fields.asked(Whitespace::Natural, false)
    }

    #[test]
    fn every_spelling_of_a_response_format_is_understood() {
        let schema = json!({"type": "integer"});
        let source = |json| format(json).unwrap().map(|asked| asked.spec.source);
        assert_eq!(source(json!({"type": "text"})), None);
        assert_eq!(
            source(json!({"type": "json_object"})),
            Some(Source::JsonObject)
        );
        let expected = Some(Source::JsonSchema(schema.clone()));
        for given in [
            json!({"type": "json_schema", "json_schema":
                {"name": "n", "strict": true, "description": "d", "schema": schema}}),
            json!({"type": "json_schema", "schema": schema}),
            json!({"type": "json_object", "schema": schema}),
        ] {
            assert_eq!(source(given), expected);
        }
    }

    #[test]
    fn wrong_response_formats_are_refused_at_their_field() {
        let param = |json| format(json).unwrap_err().param.unwrap();
        for (given, at) in [
            (json!({"type": "xml"}), "response_format.type"),
            (json!({"type": "structural_tag"}), "response_format"),
            (
                json!({"type": "json_schema"}),
                "response_format.json_schema.schema",
            ),
            (
                json!({"type": "json_schema", "json_schema": {"name": "n"}}),
                "response_format.json_schema.schema",
            ),
            (
                json!({"type": "text", "json_schema": {"schema": {}}}),
                "response_format.json_schema",
            ),
            (
                json!({"type": "text", "schema": {}}),
                "response_format.schema",
            ),
        ] {
            assert_eq!(param(given.clone()), at, "{given}");
        }
    }

    #[test]
    fn one_grammar_at_a_time_and_no_option_without_one() {
        let both = StructuredFields {
            regex: Some("a".to_owned()),
            ebnf: Some("root ::= \"a\"".to_owned()),
            ..StructuredFields::default()
        };
        let error = both.asked(Whitespace::Natural, false).unwrap_err();
        assert_eq!(
            error.message,
            "`regex` and `ebnf` must not be given together"
        );
        let option = StructuredFields {
            jump_forward: Some(true),
            ..StructuredFields::default()
        };
        let error = option.asked(Whitespace::Natural, false).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("jump_forward"));
        let endless = StructuredFields {
            regex: Some("a".to_owned()),
            ..StructuredFields::default()
        };
        let error = endless.asked(Whitespace::Natural, true).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("ignore_eos"));
    }

    #[test]
    fn vllms_names_are_understood() {
        let asked = |json| {
            let fields = StructuredFields {
                structured_outputs: Some(from_value(json).unwrap()),
                ..StructuredFields::default()
            };
            fields.asked(Whitespace::Natural, false)
        };
        let compact = asked(json!({"json": {}, "disable_any_whitespace": true}));
        assert_eq!(
            compact.unwrap().unwrap().spec.whitespace,
            Whitespace::Compact
        );
        let source = |json| asked(json).unwrap().unwrap().spec.source;
        assert!(matches!(
            source(json!({"grammar": "root ::= \"a\""})),
            Source::Gbnf(_)
        ));
        assert!(matches!(
            source(json!({"grammar": "start: \"a\""})),
            Source::Lark(_)
        ));
        assert_eq!(
            source(json!({"choice": ["a", "b"]})),
            Source::Choice(vec!["a".to_owned(), "b".to_owned()])
        );
        assert_eq!(source(json!({"json_object": true})), Source::JsonObject);
        assert!(asked(json!({"structural_tag": "x"})).is_err());
        assert!(asked(json!({"json_object": false})).unwrap().is_none());
    }
}
