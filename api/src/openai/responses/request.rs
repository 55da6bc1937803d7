//! The JSON of a request to `/v1/responses`.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::{Map, Value, json};

use crate::error::{ApiError, out_of_bounds};
use crate::fields::bounds::at_least;
use crate::fields::capped::{Capped, Noticed, Word};
use crate::fields::disaggregation::{Disaggregation, WholeNumber};
use crate::fields::each::Each;
use crate::fields::messages::MAX_MESSAGES;
use crate::fields::sampling::{Labels, MAX_LABELS, SamplingFields};
use crate::fields::structured::{Asked, GivenSchema, StructuredFields};
use crate::fields::wire::Object;
use crate::grammars::{GrammarOptions, Whitespace};

/// A request. It also has the fields that this server does not implement, so that they are refused
/// by name unless their value changes nothing.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResponseRequest {
    pub model: Option<String>,
    pub input: Input,
    pub instructions: Option<String>,
    pub previous_response_id: Option<String>,
    pub max_output_tokens: Option<i64>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    /// SGLang's sampling fields, which its router fills in.
    pub top_k: Option<i64>,
    pub min_p: Option<f64>,
    pub repetition_penalty: Option<f64>,
    /// Requests of a higher priority go first (SGLang's field and direction); 0 is no priority.
    pub priority: Option<i64>,
    /// Requests with different salts share no prefixes.
    pub cache_salt: Option<String>,
    bootstrap_host: Option<Each<String>>,
    bootstrap_port: Option<Each<WholeNumber>>,
    bootstrap_room: Option<Each<WholeNumber>>,
    pub text: Option<Object<Text>>,
    /// True if an output that must follow a grammar is steered to its end before its tokens run out.
    complete: Option<bool>,
    pub stream: Option<bool>,
    /// Whether the server stores the response; the default is true.
    pub store: Option<bool>,
    /// Whether to answer at once and compute the output in the background.
    pub background: Option<bool>,
    pub metadata: Option<Labels>,
    pub user: Option<String>,
    truncation: Option<String>,
    tools: Option<Noticed>,
    tool_choice: Option<Word>,
    /// It has no effect, because there are no tools.
    #[expect(dead_code, reason = "checked for its type, and that is all")]
    parallel_tool_calls: Option<bool>,
    max_tool_calls: Option<IgnoredAny>,
    top_logprobs: Option<i64>,
    include: Option<Noticed>,
    reasoning: Option<IgnoredAny>,
    service_tier: Option<String>,
    stream_options: Option<IgnoredAny>,
    conversation: Option<IgnoredAny>,
    prompt: Option<IgnoredAny>,
    prompt_cache_key: Option<IgnoredAny>,
    prompt_cache_retention: Option<IgnoredAny>,
    safety_identifier: Option<IgnoredAny>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Text {
    format: Option<Object<Format>>,
    verbosity: Option<IgnoredAny>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Format {
    r#type: String,
    schema: Option<GivenSchema>,
    name: Option<String>,
    #[serde(rename = "description")]
    _description: Option<String>,
    /// It has no effect: the schema is always enforced.
    #[serde(rename = "strict")]
    _strict: Option<bool>,
}

/// The input: the user's words, or a conversation.
#[derive(Debug)]
pub struct Input(Capped<Object<Item>, MAX_MESSAGES>);

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Item {
    r#type: Option<String>,
    role: Option<String>,
    content: Option<Content>,
    // Fields that the items of an answer have, and that clients send back with them.
    #[serde(rename = "id")]
    _id: Option<String>,
    #[serde(rename = "status")]
    _status: Option<String>,
}

/// A string, or a list of text parts.
#[derive(Debug)]
struct Content(String);

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    r#type: String,
    text: Option<String>,
    #[serde(rename = "annotations")]
    _annotations: Option<Noticed>,
    #[serde(rename = "logprobs")]
    _logprobs: Option<Noticed>,
}

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items;
        impl<'de> Visitor<'de> for Items {
            type Value = Input;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of items")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Input, E> {
                let item = Item {
                    r#type: None,
                    role: Some("user".to_owned()),
                    content: Some(Content(text.to_owned())),
                    _id: None,
                    _status: None,
                };
                Ok(Input(Capped {
                    items: vec![Object(item)],
                    given: 1,
                }))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Input, A::Error> {
                Capped::from_seq(seq).map(Input)
            }
        }
        deserializer.deserialize_any(Items)
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrParts;
        impl<'de> Visitor<'de> for TextOrParts {
            type Value = Content;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of parts")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Content, E> {
                Ok(Content(text.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Content, A::Error> {
                let mut texts = Vec::new();
                while let Some(Object(part)) = seq.next_element::<Object<Part>>()? {
                    if !matches!(part.r#type.as_str(), "input_text" | "output_text" | "text") {
                        return Err(de::Error::custom(format!(
                            "part of type {:?}: the served model takes text only",
                            part.r#type
                        )));
                    }
                    let text = part.text.ok_or_else(|| de::Error::missing_field("text"))?;
                    texts.push(text);
                }
                Ok(Content(texts.join("\n")))
            }
        }
        deserializer.deserialize_any(TextOrParts)
    }
}

impl Input {
    /// The number of messages, those that were not kept included.
    pub fn given(&self) -> usize {
        self.0.given
    }

    /// The messages as the chat template sees them.
    ///
    /// # Errors
    /// 400 for an item that is no message, and for an unknown role.
    pub fn messages(&self) -> Result<Vec<Value>, ApiError> {
        if self.0.given == 0 {
            return Err(out_of_bounds("input", "at least 1 item", "0 items"));
        }
        let items = self.0.items.iter().enumerate();
        items.map(|(index, item)| item.message(index)).collect()
    }
}

impl Item {
    fn message(&self, index: usize) -> Result<Value, ApiError> {
        let at = |field: &str| format!("input[{index}].{field}");
        if let Some(other) = self.r#type.as_deref().filter(|&kind| kind != "message") {
            return Err(out_of_bounds(&at("type"), "message", format!("{other:?}")));
        }
        let role = match self.role.as_deref() {
            Some(role @ ("user" | "assistant" | "system")) => role,
            // OpenAI renamed the system role, but templates know only the old name.
            Some("developer") => "system",
            other => {
                let bound = "one of system, developer, user, assistant";
                let given = other.map_or("none".to_owned(), |role| format!("{role:?}"));
                return Err(out_of_bounds(&at("role"), bound, given));
            }
        };
        let Some(Content(text)) = &self.content else {
            return Err(out_of_bounds(&at("content"), "a string or parts", "null"));
        };
        Ok(json!({"role": role, "content": text}))
    }
}

impl ResponseRequest {
    /// # Errors
    /// 400 that names the first field which asks for something this server cannot do.
    pub fn refuse_unsupported(&self) -> Result<(), ApiError> {
        let some = |list: &Option<Noticed>| list.as_ref().is_some_and(|list| list.given > 0);
        let word = self.tool_choice.as_ref().map(|Word(word)| word.as_deref());
        let is_not = |given: &Option<String>, plain: &[&str]| {
            given
                .as_deref()
                .is_some_and(|given| !plain.contains(&given))
        };
        let verbosity = self.text.as_ref().is_some_and(|t| t.verbosity.is_some());
        let fields = [
            ("tools", some(&self.tools)),
            (
                "tool_choice",
                !matches!(word, None | Some(Some("none" | "auto"))),
            ),
            ("max_tool_calls", self.max_tool_calls.is_some()),
            ("top_logprobs", self.top_logprobs.is_some_and(|n| n != 0)),
            ("include", some(&self.include)),
            ("reasoning", self.reasoning.is_some()),
            ("text.verbosity", verbosity),
            ("truncation", is_not(&self.truncation, &["disabled"])),
            (
                "service_tier",
                is_not(&self.service_tier, &["auto", "default"]),
            ),
            ("stream_options", self.stream_options.is_some()),
            ("conversation", self.conversation.is_some()),
            ("prompt", self.prompt.is_some()),
            ("prompt_cache_key", self.prompt_cache_key.is_some()),
            (
                "prompt_cache_retention",
                self.prompt_cache_retention.is_some(),
            ),
            ("safety_identifier", self.safety_identifier.is_some()),
        ];
        if let Some((field, _)) = fields.into_iter().find(|(_, asked)| *asked) {
            return Err(ApiError::unsupported(field));
        }
        let (background, store) = (self.background == Some(true), self.store != Some(false));
        let refused = |field: &str, of: &str| {
            let message = format!("`{field}` must be left out where `background` is true{of}");
            Err(ApiError::field(field, message))
        };
        if background && !store {
            return refused("store", ": the answer could not be fetched later");
        }
        if background && self.stream == Some(true) {
            return refused("stream", "");
        }
        Ok(())
    }

    /// Moves out the fields of a router that pairs prefill with decode servers.
    pub fn take_disaggregation(&mut self) -> Disaggregation {
        Disaggregation {
            bootstrap_host: self.bootstrap_host.take(),
            bootstrap_port: self.bootstrap_port.take(),
            bootstrap_room: self.bootstrap_room.take(),
            ..Disaggregation::default()
        }
    }

    /// Takes out the labels, as an object.
    ///
    /// # Errors
    /// 400 for too many.
    pub fn labels(&mut self) -> Result<Map<String, Value>, ApiError> {
        let labels = self.metadata.take().unwrap_or_default();
        if labels.given > MAX_LABELS {
            let bound = format!("at most {MAX_LABELS} entries");
            return Err(out_of_bounds("metadata", &bound, labels.given));
        }
        let labels = labels.items.into_iter();
        Ok(labels.map(|(name, label)| (name, label.into())).collect())
    }

    pub fn sampling(&self) -> SamplingFields {
        SamplingFields {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            priority: self.priority.filter(|&priority| priority != 0),
            cache_salt: self.cache_salt.clone(),
            ..SamplingFields::default()
        }
    }

    /// # Errors
    /// 400 below 1.
    pub fn token_limit(&self) -> Result<Option<usize>, ApiError> {
        at_least("max_output_tokens", 1, self.max_output_tokens)
    }

    /// Takes out the format: the grammar that it asks for, and its JSON as the answer repeats it.
    ///
    /// # Errors
    /// 400 for an unknown format, or one without its schema.
    pub fn take_format(
        &mut self,
        whitespace: Whitespace,
    ) -> Result<(Option<Asked>, Value), ApiError> {
        let format = self.text.as_mut().and_then(|text| text.0.format.take());
        let options = GrammarOptions::completing(self.complete);
        let nothing = StructuredFields {
            options,
            ..StructuredFields::default()
        };
        let Some(Object(format)) = format else {
            let asked = nothing.asked(whitespace, false)?;
            return Ok((asked, json!({"type": "text"})));
        };
        let kind = format.r#type.as_str();
        let mut repeated = json!({"type": kind});
        let mut fields = match (kind, format.schema) {
            ("text", None) => return Ok((nothing.asked(whitespace, false)?, repeated)),
            ("json_object", None) => StructuredFields {
                response_format: serde_json::from_value(json!({"type": "json_object"})).ok(),
                ..StructuredFields::default()
            },
            ("json_schema", Some(schema)) => StructuredFields {
                json_schema: Some(schema),
                ..StructuredFields::default()
            },
            ("json_schema", None) => {
                return Err(out_of_bounds(SCHEMA, "a JSON Schema", "none"));
            }
            ("text" | "json_object", Some(_)) => {
                let message = format!("`{SCHEMA}` must be left out unless the type is json_schema");
                return Err(ApiError::field(SCHEMA, message));
            }
            (other, _) => {
                let bound = "one of text, json_object, json_schema";
                return Err(out_of_bounds(
                    "text.format.type",
                    bound,
                    format!("{other:?}"),
                ));
            }
        };
        if let Some(name) = format.name {
            repeated["name"] = name.into();
            // OpenAI's clients expect the key in the answer. The schema itself is not kept.
            repeated["schema"] = json!({});
        }
        fields.options = options;
        let asked = fields.asked(whitespace, false).map_err(in_format)?;
        Ok((asked, repeated))
    }
}

const SCHEMA: &str = "text.format.schema";

/// An error about a schema, whose field has another name in this API.
pub fn in_format(mut error: ApiError) -> ApiError {
    let name = format!("`{SCHEMA}`");
    error.message = error.message.replacen("`json_schema`", &name, 1);
    error.param = Some(SCHEMA.to_owned());
    error
}
