//! The JSON of requests to `/api/chat`, `/api/generate` and `/api/show`.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde::de::value::MapAccessDeserializer;
use serde_json::{Map, Value, json};

use crate::adapters::Choice;
use crate::error::{ApiError, out_of_bounds};
use crate::fields::capped::{Capped, Entries, Noticed};
use crate::fields::messages::MAX_MESSAGES;
use crate::fields::structured::{Asked, GivenSchema, StructuredFields};
use crate::fields::tools::{GivenCall, GivenTools, Spelling};
use crate::fields::wire::Object;
use crate::grammars::{GrammarOptions, Whitespace};
use crate::ollama::options::Options;
use crate::reasoning::unknown_marks;
use crate::served::Served;
use crate::state::AppState;
use crate::tool_plan::{Asking, Lark};

/// Ollama's tools append this to a model's name without a tag.
const DEFAULT_TAG: &str = ":latest";
const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];
/// Most calls in one message.
const MAX_CALLS: usize = 128;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChatRequest {
    pub model: String,
    pub messages: Option<Capped<Object<Message>, MAX_MESSAGES>>,
    pub stream: Option<bool>,
    pub options: Option<Object<Options>>,
    pub format: Option<Format>,
    /// Requests with different salts share no prefixes (vLLM's field).
    pub cache_salt: Option<String>,
    /// True if an output that must follow a grammar is steered to its end before its tokens run out.
    pub complete: Option<bool>,
    keep_alive: Option<KeepAlive>,
    tools: Option<GivenTools>,
    think: Option<Think>,
    logprobs: Option<bool>,
    top_logprobs: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerateRequest {
    pub model: String,
    pub prompt: Option<String>,
    pub system: Option<String>,
    /// True if the prompt goes to the model as it is, without the chat template.
    pub raw: Option<bool>,
    pub stream: Option<bool>,
    pub options: Option<Object<Options>>,
    pub format: Option<Format>,
    /// Requests with different salts share no prefixes (vLLM's field).
    pub cache_salt: Option<String>,
    /// True if an output that must follow a grammar is steered to its end before its tokens run out.
    pub complete: Option<bool>,
    keep_alive: Option<KeepAlive>,
    suffix: Option<String>,
    template: Option<String>,
    context: Option<Noticed>,
    images: Option<Noticed>,
    think: Option<Think>,
    logprobs: Option<bool>,
    top_logprobs: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    role: String,
    content: Option<String>,
    images: Option<Noticed>,
    tool_calls: Option<Capped<Object<GivenCall>, MAX_CALLS>>,
    /// The tool whose result a message with the role `tool` has.
    tool_name: Option<String>,
    tool_call_id: Option<String>,
    thinking: Option<String>,
}

/// How long the model should stay loaded. It always stays, so that every time except 0 is accepted.
#[derive(Debug)]
pub struct KeepAlive {
    unloads: bool,
}

impl KeepAlive {
    /// # Errors
    /// 400 for 0, which asks for the model to be unloaded.
    pub fn refuse_unloading(&self) -> Result<(), ApiError> {
        let bound = "left out or not 0: the served model is never unloaded";
        match self.unloads {
            true => Err(out_of_bounds("keep_alive", bound, 0)),
            false => Ok(()),
        }
    }
}

impl<'de> Deserialize<'de> for KeepAlive {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::{Error, Visitor};
        struct Times;
        impl Visitor<'_> for Times {
            type Value = KeepAlive;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number of seconds or a duration like \"5m\"")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<KeepAlive, E> {
                let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
                let number: f64 = number.parse().map_err(|_| {
                    E::custom(format!("must be a duration like \"5m\", got {text:?}"))
                })?;
                Ok(KeepAlive {
                    unloads: number == 0.0,
                })
            }
            fn visit_i64<E: Error>(self, seconds: i64) -> Result<KeepAlive, E> {
                Ok(KeepAlive {
                    unloads: seconds == 0,
                })
            }
            fn visit_u64<E: Error>(self, seconds: u64) -> Result<KeepAlive, E> {
                Ok(KeepAlive {
                    unloads: seconds == 0,
                })
            }
            fn visit_f64<E: Error>(self, seconds: f64) -> Result<KeepAlive, E> {
                Ok(KeepAlive {
                    unloads: seconds == 0.0,
                })
            }
        }
        deserializer.deserialize_any(Times)
    }
}

/// The format of the answer: any JSON, or JSON of a schema. An empty string is the same as none.
#[derive(Debug)]
pub enum Format {
    Anything,
    Json,
    Schema(GivenSchema),
}

impl Format {
    /// The grammar that the format asks for.
    ///
    /// # Errors
    /// 400 for a schema that is too large.
    pub fn asked(
        format: Option<Self>,
        calls: Option<Lark>,
        complete: Option<bool>,
        whitespace: Whitespace,
    ) -> Result<Option<Asked>, ApiError> {
        let json = || serde_json::from_value(json!({"type": "json_object"})).ok();
        let mut fields = match format {
            None | Some(Self::Anything) => StructuredFields::default(),
            Some(Self::Json) => StructuredFields {
                response_format: json(),
                ..StructuredFields::default()
            },
            Some(Self::Schema(schema)) => StructuredFields {
                json_schema: Some(schema),
                ..StructuredFields::default()
            },
        };
        fields.calls = calls;
        fields.options = GrammarOptions::completing(complete);
        fields.asked(whitespace, false).map_err(in_format)
    }
}

/// An error about a schema, whose field has another name in this API.
pub fn in_format(error: ApiError) -> ApiError {
    error
        .renamed("json_schema", "format")
        .renamed("response_format", "format")
}

impl<'de> Deserialize<'de> for Format {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::{Error, MapAccess, Visitor};
        struct Formats;
        impl<'de> Visitor<'de> for Formats {
            type Value = Format;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("\"json\" or a JSON Schema")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Format, E> {
                match text {
                    "" => Ok(Format::Anything),
                    "json" => Ok(Format::Json),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Format, A::Error> {
                let schema = GivenSchema::deserialize(MapAccessDeserializer::new(map));
                schema.map(Format::Schema)
            }
        }
        deserializer.deserialize_any(Formats)
    }
}

/// The field that turns reasoning on or off; some models are also told how much of it there should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Think {
    On,
    Off,
    /// On, with this value of the chat template's variable `reasoning_effort`.
    Level(&'static str),
}

impl Think {
    /// # Errors
    /// 400 for reasoning of a model whose marks of it are not known: `reasons` is false then.
    fn check(given: Option<Self>, reasons: bool) -> Result<(), ApiError> {
        let refuse = |given: &str| Err(unknown_marks("think", "false or left out", given));
        match given {
            Some(Self::On) if !reasons => refuse("true"),
            Some(Self::Level(level)) if !reasons => refuse(&format!("{level:?}")),
            _ => Ok(()),
        }
    }

    /// The variables for the chat template.
    fn variables(given: Option<Self>) -> Map<String, Value> {
        let Some(think) = given else {
            return Map::new();
        };
        let mut variables = Map::new();
        variables.insert("enable_thinking".to_owned(), (think != Self::Off).into());
        if let Self::Level(level) = think {
            variables.insert("reasoning_effort".to_owned(), level.into());
        }
        variables
    }
}

impl<'de> Deserialize<'de> for Think {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::{Error, Unexpected, Visitor};
        struct Levels;
        impl Visitor<'_> for Levels {
            type Value = Think;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("true, false, \"low\", \"medium\" or \"high\"")
            }
            fn visit_bool<E: Error>(self, think: bool) -> Result<Think, E> {
                Ok(if think { Think::On } else { Think::Off })
            }
            fn visit_str<E: Error>(self, given: &str) -> Result<Think, E> {
                let level = ["low", "medium", "high"]
                    .into_iter()
                    .find(|level| *level == given);
                let unknown = || E::invalid_value(Unexpected::Str(given), &self);
                level.map(Think::Level).ok_or_else(unknown)
            }
        }
        deserializer.deserialize_any(Levels)
    }
}

/// Refuses the fields that both routes refuse.
fn refuse(
    fields: &[(&str, bool)],
    keep_alive: &Option<KeepAlive>,
    logprobs: (Option<bool>, Option<i64>),
) -> Result<(), ApiError> {
    if let Some(keep_alive) = keep_alive {
        keep_alive.refuse_unloading()?;
    }
    let common = [
        ("logprobs", logprobs.0 == Some(true)),
        ("top_logprobs", logprobs.1.is_some_and(|top| top != 0)),
    ];
    match fields.iter().chain(&common).find(|(_, asked)| *asked) {
        Some((field, _)) => Err(ApiError::unsupported(field)),
        None => Ok(()),
    }
}

fn some(list: &Option<Noticed>) -> bool {
    list.as_ref().is_some_and(|list| list.given > 0)
}

impl ChatRequest {
    /// `reasons`: the server separates this model's reasoning from the answer.
    ///
    /// # Errors
    /// 400 that names the first field which asks for something this server cannot do.
    pub fn refuse_unsupported(&self, reasons: bool) -> Result<(), ApiError> {
        let logprobs = (self.logprobs, self.top_logprobs);
        refuse(&[], &self.keep_alive, logprobs)?;
        Think::check(self.think, reasons)
    }

    /// The variables for the chat template.
    pub fn template_variables(&self) -> Map<String, Value> {
        Think::variables(self.think)
    }

    /// Takes out the fields about tools.
    ///
    /// # Errors
    /// 400 with field, bound and value.
    pub fn take_tools(&mut self) -> Result<Asking, ApiError> {
        let tools = self.tools.take();
        Ok(Asking {
            tools: tools.map_or(Ok(Vec::new()), |tools| tools.check(Spelling::OpenAi))?,
            ..Asking::default()
        })
    }

    /// The messages as the chat template sees them.
    ///
    /// # Errors
    /// 400 for an unknown role, a message without content, and images.
    pub fn template_messages(&self) -> Result<Vec<Value>, ApiError> {
        let messages = self.messages.iter().flat_map(|list| &list.items);
        messages
            .enumerate()
            .map(|(index, message)| message.check(index))
            .collect()
    }
}

impl Message {
    fn check(&self, index: usize) -> Result<Value, ApiError> {
        let at = |field: &str| format!("messages[{index}].{field}");
        if !ROLES.contains(&self.role.as_str()) {
            let given = format!("{:?}", self.role);
            let bound = format!("one of {}", ROLES.join(", "));
            return Err(out_of_bounds(&at("role"), &bound, given));
        }
        let refused = [
            ("images", some(&self.images)),
            ("tool_name", self.tool_name.is_some() && self.role != "tool"),
            (
                "tool_call_id",
                self.tool_call_id.is_some() && self.role != "tool",
            ),
        ];
        if let Some((field, _)) = refused.into_iter().find(|(_, asked)| *asked) {
            return Err(ApiError::unsupported(&at(field)));
        }
        // Not every template can render messages without content.
        let content = self.content.as_deref().unwrap_or_default();
        let mut message = json!({"role": self.role, "content": content});
        let calls = self.tool_calls.as_ref().filter(|calls| calls.given > 0);
        if let Some(calls) = calls {
            let path = at("tool_calls");
            if self.role != "assistant" {
                return Err(ApiError::unsupported(&path));
            }
            if calls.given > MAX_CALLS {
                let bound = format!("at most {MAX_CALLS} calls");
                return Err(out_of_bounds(&path, &bound, calls.given));
            }
            let each = calls.items.iter().enumerate();
            let list: Result<Value, ApiError> = each
                .map(|(index, call)| call.template(&format!("{path}[{index}]")))
                .collect();
            message["tool_calls"] = list?;
        }
        for (key, value) in [
            ("reasoning_content", &self.thinking),
            ("name", &self.tool_name),
            ("tool_call_id", &self.tool_call_id),
        ] {
            if let Some(value) = value {
                message[key] = value.as_str().into();
            }
        }
        match self.content.is_some() || calls.is_some() {
            true => Ok(message),
            false => Err(out_of_bounds(&at("content"), "a string", "null")),
        }
    }
}

impl GenerateRequest {
    /// `reasons`: the server separates this model's reasoning from the answer.
    ///
    /// # Errors
    /// 400 that names the first field which asks for something this server cannot do.
    pub fn refuse_unsupported(&self, reasons: bool) -> Result<(), ApiError> {
        let text = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        refuse(
            &[
                ("suffix", text(&self.suffix)),
                ("template", text(&self.template)),
                ("context", some(&self.context)),
                ("images", some(&self.images)),
            ],
            &self.keep_alive,
            (self.logprobs, self.top_logprobs),
        )?;
        Think::check(self.think, reasons)
    }

    /// The variables for the chat template.
    pub fn template_variables(&self) -> Map<String, Value> {
        Think::variables(self.think)
    }

    /// True if the request turns reasoning on, which a prompt without a template cannot.
    pub fn thinks(&self) -> bool {
        self.think.is_some_and(|think| think != Think::Off)
    }
}

/// Refuses a model name that is not the served one. The tag that Ollama's tools append may be
/// there.
///
/// # Errors
/// 404 with Ollama's message.
pub fn check_model(served: &Served, given: &str) -> Result<(), ApiError> {
    AppState::check_model(served, Some(named(served, given)))
}

/// The model or the adapter that the name in a request selects.
///
/// # Errors
/// 404 with Ollama's message.
pub fn choose(served: &Served, given: &str) -> Result<Choice, ApiError> {
    served.choose_model(Some(named(served, given)))
}

/// A model's name without the tag that Ollama's tools append.
pub fn named<'a>(served: &Served, given: &'a str) -> &'a str {
    match given.strip_suffix(DEFAULT_TAG) {
        Some(name) if given != served.id => name,
        _ => given,
    }
}

/// A request to `/api/show`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShowRequest {
    /// `name` is the older name of this field.
    #[serde(alias = "name")]
    pub model: String,
    #[expect(dead_code, reason = "the answer is verbose anyway")]
    verbose: Option<bool>,
    system: Option<String>,
    template: Option<String>,
    options: Option<Entries<IgnoredAny, 0>>,
}

impl ShowRequest {
    /// # Errors
    /// 400 that names the first field which asks for something this server cannot do.
    pub fn refuse_unsupported(&self) -> Result<(), ApiError> {
        let fields = [
            ("system", self.system.is_some()),
            ("template", self.template.is_some()),
            (
                "options",
                self.options.as_ref().is_some_and(|o| o.given > 0),
            ),
        ];
        match fields.into_iter().find(|(_, asked)| *asked) {
            Some((field, _)) => Err(ApiError::unsupported(field)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_of_thinking_is_the_templates_effort() {
        let read = |json: &str| serde_json::from_str::<Think>(json);
        let variables = |json: &str| Value::from(Think::variables(Some(read(json).unwrap())));
        assert_eq!(variables("false"), json!({"enable_thinking": false}));
        assert_eq!(variables("true"), json!({"enable_thinking": true}));
        let high = json!({"enable_thinking": true, "reasoning_effort": "high"});
        assert_eq!(variables("\"high\""), high);
        assert!(read("\"most\"").is_err() && read("1").is_err());
        assert!(Think::check(Some(Think::Off), false).is_ok());
        assert!(Think::check(Some(Think::Level("low")), false).is_err());
    }
}
