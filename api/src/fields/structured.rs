//! Structured outputs: the grammar that a request asks its output to follow, under each field name
//! of OpenAI, vLLM, SGLang and llama-server.

use std::time::Instant;

use hearth_engine::constraint::Constrain;
use hearth_grammar::{Problem, Source, Spec, Whitespace};
use hearth_otel::Compilation;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::exchange::{note_grammar, note_ignored, note_json};
use crate::fields::capped::Capped;
use crate::fields::schema::MAX_SCHEMA_VALUES;
use crate::fields::wire::Object;
use crate::grammars::{CompileError, GrammarOptions};
use crate::reasoning::Begin;
use crate::served::Served;
use crate::tools::Lark;

pub use crate::fields::schema::{GivenJson, GivenSchema};

/// Most choices that are kept of a request. It is one more than the compiler of grammars accepts,
/// which refuses the request then.
const MAX_CHOICES: usize = 10_001;

/// The field that asks for calls.
const TOOLS: &str = "tools";

pub type Choices = Capped<String, MAX_CHOICES>;

/// OpenAI's `response_format`, with llama-server's `schema` beside the type.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResponseFormat {
    r#type: String,
    json_schema: Option<Object<NamedSchema>>,
    schema: Option<GivenSchema>,
    /// The fields of a structural tag: xgrammar's `format`, and SGLang's older two.
    format: Option<GivenJson>,
    structures: Option<GivenJson>,
    triggers: Option<GivenJson>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedSchema {
    /// OpenAI puts name and description into the prompt. Here they have no effect.
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(rename = "description")]
    _description: Option<String>,
    schema: Option<GivenSchema>,
    /// It has no effect: the schema is always enforced.
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
    structural_tag: Option<GivenSchema>,
    disable_any_whitespace: Option<bool>,
    whitespace_pattern: Option<IgnoredAny>,
}

/// The white space between the tokens of JSON.
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

/// The fields as the request has them; `null` is the same as absent.
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
    pub structural_tag: Option<GivenSchema>,
    pub json_whitespace: Option<JsonWhitespace>,
    pub options: GrammarOptions,
    /// The grammar that `tools` make necessary.
    pub calls: Option<Lark>,
}

/// A grammar that a request asks for.
#[derive(Debug, PartialEq)]
pub struct Asked {
    spec: Spec,
    /// The field of the request that has the grammar, for errors.
    param: &'static str,
    options: GrammarOptions,
    /// The part that the answer begins with, if reasoning may come before the grammar applies.
    begin: Option<Begin>,
}

impl StructuredFields {
    /// True if JSON is laid out without white space.
    pub fn is_compact(&self, defaults: Whitespace) -> bool {
        let whitespace = self.json_whitespace.map_or(defaults, Whitespace::from);
        whitespace == Whitespace::Compact
    }

    /// The grammar that the request asks for, if it asks for one.
    ///
    /// # Errors
    /// 400 for several grammars, for an unknown or unsupported kind, and for options without a
    /// grammar.
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
            let param = "structured_outputs.structural_tag";
            ask(param, structural_tag(outputs.structural_tag, param)?);
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
        ask(
            "structural_tag",
            structural_tag(self.structural_tag, "structural_tag")?,
        );
        let calls = self.calls.map(|Lark { text, schemas }| {
            let lark = text;
            Source::LarkWithSchemas { lark, schemas }
        });
        ask(TOOLS, calls);

        let mut given = given.into_iter();
        let Some((param, source)) = given.next() else {
            let options = [
                ("jump_forward", self.options.jump_forward.is_some()),
                ("complete", self.options.complete.is_some()),
                whitespace.map_or(("", false), |(_, param)| (param, true)),
            ];
            // Without a grammar they would silently have no effect.
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
            options: self.options,
            begin: None,
        }))
    }
}

impl Asked {
    /// The field that has the grammar.
    pub fn param(&self) -> &'static str {
        self.param
    }

    /// The same, but applied only after the reasoning of an answer that begins with `begin`.
    #[must_use]
    pub fn after_reasoning(self, begin: Option<Begin>) -> Self {
        Self { begin, ..self }
    }
}

impl ResponseFormat {
    fn source(self) -> Result<(&'static str, Option<Source>), ApiError> {
        const NAMED: &str = "response_format.json_schema.schema";
        const PLAIN: &str = "response_format.schema";
        if self.r#type == "structural_tag" {
            return self.structural_tag();
        }
        for (given, param) in [
            (&self.format, "response_format.format"),
            (&self.structures, "response_format.structures"),
            (&self.triggers, "response_format.triggers"),
        ] {
            if given.is_some() {
                let kind = self.r#type.chars().take(40).collect::<String>();
                let message = format!("`{param}` must be left out with the type {kind:?}");
                return Err(ApiError::field(param, message));
            }
        }
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
            (kind, ..) => {
                let message = format!(
                    "`response_format.type` must be one of text, json_object, json_schema, structural_tag, got {:?}",
                    kind.chars().take(40).collect::<String>()
                );
                Err(ApiError::field("response_format.type", message))
            }
        }
    }
}

impl ResponseFormat {
    fn structural_tag(self) -> Result<(&'static str, Option<Source>), ApiError> {
        for (given, param) in [
            (self.json_schema.is_some(), "response_format.json_schema"),
            (self.schema.is_some(), "response_format.schema"),
        ] {
            if given {
                let message =
                    format!("`{param}` must be left out with the type \"structural_tag\"");
                return Err(ApiError::field(param, message));
            }
        }
        let mut tag = Map::new();
        for (name, given) in [
            ("format", self.format),
            ("structures", self.structures),
            ("triggers", self.triggers),
        ] {
            if let Some(GivenJson { json, values }) = given {
                let json = checked(json, values, &format!("response_format.{name}"))?;
                tag.insert(name.to_owned(), json);
            }
        }
        Ok(("response_format", Some(Source::StructuralTag(tag.into()))))
    }
}

fn schema(given: Option<GivenSchema>, param: &str) -> Result<Option<Source>, ApiError> {
    let json = |given: GivenSchema| checked(given.schema, given.values, param);
    Ok(given.map(json).transpose()?.map(Source::JsonSchema))
}

fn structural_tag(given: Option<GivenSchema>, param: &str) -> Result<Option<Source>, ApiError> {
    let json = |given: GivenSchema| checked(given.schema, given.values, param);
    Ok(given.map(json).transpose()?.map(Source::StructuralTag))
}

/// `json`, if all its values were kept.
fn checked(json: Value, values: usize, param: &str) -> Result<Value, ApiError> {
    if values <= MAX_SCHEMA_VALUES {
        return Ok(json);
    }
    let message = format!("`{param}` must have at most {MAX_SCHEMA_VALUES} values, got {values}");
    Err(ApiError::field(param, message).code(Problem::TooComplex.code()))
}

fn choice(given: Option<Choices>) -> Option<Source> {
    given.map(|choices| Source::Choice(choices.items))
}

/// The kind of a grammar whose field allows two: vLLM accepts GBNF, and Lark where llguidance is
/// its backend.
fn either_grammar(text: String) -> Source {
    if text.contains("::=") {
        Source::Gbnf(text)
    } else {
        Source::Lark(text)
    }
}

/// Compiles the grammar of `asked` outside of the event loop and of the engine's thread.
///
/// # Errors
/// 400 that says what is wrong with the grammar, 503 when no thread was free to compile it.
pub async fn compile(served: &Served, asked: Option<Asked>) -> Result<Option<Constrain>, ApiError> {
    let Some(Asked {
        spec,
        param,
        options,
        begin,
    }) = asked
    else {
        return Ok(None);
    };
    if matches!(spec.source, Source::JsonSchema(_) | Source::JsonObject) {
        note_json();
    }
    let grammars = &served.grammars;
    let from = Instant::now();
    match grammars.compile(spec).await {
        Ok(mut compiled) => {
            let to = Instant::now();
            let cached = compiled.cached;
            note_grammar(Compilation { from, to, cached });
            note_ignored(std::mem::take(&mut compiled.ignored));
            let calls = param == TOOLS;
            Ok(Some(grammars.constrain(compiled, options, begin, calls)))
        }
        Err(error) => {
            let message = format!("`{param}`: {error}");
            Err(match error {
                CompileError::Refused(refusal) => {
                    // Within a grammar of several schemas, the pointer begins with the field of
                    // one.
                    let named = refusal.pointer.as_deref().and_then(|p| p.split_once('#'));
                    let within = named.map_or("", |(name, _)| name);
                    let param = if within.is_empty() { param } else { within };
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
mod tests;
