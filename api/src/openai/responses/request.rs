//! The JSON of a request to `/v1/responses`.

use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use crate::error::{ApiError, out_of_bounds};
use crate::fields::bounds::at_least;
use crate::fields::disaggregation::{Disaggregation, WholeNumber};
use crate::fields::each::Each;
use crate::fields::sampling::{Labels, MAX_LABELS, SamplingFields};
use crate::fields::structured::{Asked, GivenSchema, StructuredFields};
use crate::fields::tools::{GivenTools, Spelling, ToolChoice};
use crate::fields::wire::Object;
use crate::grammars::{GrammarOptions, Whitespace};
use crate::openai::hints::{Include, ReasoningFields, ServiceTier, Verbosity};
use crate::openai::responses::input::Input;
use crate::tool_plan::{Asking, Choice, Lark, Tool};

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
    /// True if the server stores the response; the default is true.
    pub store: Option<bool>,
    /// True if the answer comes at once and the output is computed in the background.
    pub background: Option<bool>,
    pub metadata: Option<Labels>,
    pub user: Option<String>,
    truncation: Option<String>,
    tools: Option<GivenTools>,
    tool_choice: Option<ToolChoice<true>>,
    parallel_tool_calls: Option<bool>,
    top_logprobs: Option<i64>,
    pub reasoning: Option<Object<ReasoningFields>>,
    conversation: Option<IgnoredAny>,
    prompt: Option<IgnoredAny>,
    // Hints, which are checked for their types and have no effect.
    /// A bound on the calls of OpenAI's own tools, of which this server has none.
    #[serde(rename = "max_tool_calls")]
    _max_tool_calls: Option<i64>,
    include: Option<Include>,
    #[serde(rename = "service_tier")]
    _service_tier: Option<ServiceTier>,
    #[serde(rename = "stream_options")]
    _stream_options: Option<Object<StreamOptions>>,
    #[serde(rename = "prompt_cache_key")]
    _prompt_cache_key: Option<String>,
    #[serde(rename = "prompt_cache_retention")]
    _prompt_cache_retention: Option<String>,
    #[serde(rename = "client_metadata")]
    _client_metadata: Option<Labels>,
    #[serde(rename = "safety_identifier")]
    _safety_identifier: Option<String>,
}

/// The options of a stream.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    /// Events of OpenAI's servers have a field of random length. Those of this server never do.
    #[serde(rename = "include_obfuscation")]
    _include_obfuscation: Option<bool>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Text {
    format: Option<Object<Format>>,
    verbosity: Option<Verbosity>,
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

impl ResponseRequest {
    /// # Errors
    /// 400 that names the first field which asks for something this server cannot do.
    pub fn refuse_unsupported(&self) -> Result<(), ApiError> {
        let truncates = self.truncation.as_deref();
        let logprobs = self
            .include
            .as_ref()
            .is_some_and(Include::asks_for_logprobs);
        let fields = [
            ("top_logprobs", self.top_logprobs.is_some_and(|n| n != 0)),
            ("include", logprobs),
            ("truncation", truncates.is_some_and(|t| t != "disabled")),
            ("conversation", self.conversation.is_some()),
            ("prompt", self.prompt.is_some()),
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

    /// Takes out the fields about tools, and as the answer repeats them: the tools and the choice.
    ///
    /// # Errors
    /// 400 with field, bound and value.
    pub fn take_tools(&mut self) -> Result<(Asking, Value, Value), ApiError> {
        let tools = self.tools.take();
        let tools = tools.map_or(Ok(Vec::new()), |t| t.check(Spelling::Responses))?;
        let choice = self.tool_choice.take().map(|ToolChoice(choice)| choice);
        let repeated = tools.iter().map(repeated).collect();
        let choice_repeated = match choice.as_ref() {
            None | Some(Choice::Auto) => "auto".into(),
            Some(Choice::None) => "none".into(),
            Some(Choice::Required) => "required".into(),
            Some(Choice::Named(name)) => json!({"type": "function", "name": name}),
        };
        let asking = Asking {
            // Clients give it beside an empty list, too.
            parallel: self.parallel_tool_calls.filter(|_| !tools.is_empty()),
            tools,
            choice,
            parallel_field: "parallel_tool_calls",
        };
        Ok((asking, repeated, choice_repeated))
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

    /// Takes out `text`: the grammar that it or `calls` asks for, and its JSON as the answer repeats
    /// it.
    ///
    /// # Errors
    /// 400 for an unknown format, or one without its schema.
    pub fn take_text(
        &mut self,
        whitespace: Whitespace,
        calls: Option<Lark>,
    ) -> Result<(Option<Asked>, Value), ApiError> {
        let (format, verbosity) = match self.text.as_mut() {
            Some(Object(text)) => (text.format.take(), text.verbosity),
            None => (None, None),
        };
        let mut text = json!({"format": {"type": "text"}});
        if let Some(verbosity) = verbosity {
            text["verbosity"] = json!(verbosity);
        }
        let fields = |fields: StructuredFields| StructuredFields {
            options: GrammarOptions::completing(self.complete),
            calls,
            ..fields
        };
        let Some(Object(format)) = format else {
            let asked = fields(StructuredFields::default()).asked(whitespace, false)?;
            return Ok((asked, text));
        };
        let kind = format.r#type.as_str();
        text["format"]["type"] = kind.into();
        let given = match (kind, format.schema) {
            ("text", None) => StructuredFields::default(),
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
            text["format"]["name"] = name.into();
            // OpenAI's clients expect the key in the answer. The schema itself is not kept.
            text["format"]["schema"] = json!({});
        }
        let asked = fields(given).asked(whitespace, false).map_err(in_format)?;
        Ok((asked, text))
    }
}

/// A tool as the answer repeats it.
fn repeated(tool: &Tool) -> Value {
    let mut repeated = tool.json["function"].clone();
    repeated["type"] = "function".into();
    repeated["strict"] = tool.strict.into();
    repeated
}

const SCHEMA: &str = "text.format.schema";

/// An error about a schema, whose field has another name in this API.
pub fn in_format(mut error: ApiError) -> ApiError {
    if error.param.as_deref() == Some("tools") {
        return error
            .renamed("json_schema", "text.format")
            .renamed("response_format", "text.format");
    }
    error = error.renamed("json_schema", SCHEMA);
    error.param = Some(SCHEMA.to_owned());
    error
}
