//! `/v1/chat/completions` as it comes in.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, json};

use super::capped::{Capped, Noticed, ResponseFormat, Variables, Word};
use super::sampling::{at_least, generation_request, out_of_bounds};
use super::wire::Object;
use crate::http::error::ApiError;

/// Messages that are kept of one request; more are only counted. Each takes some
/// hundred bytes, and a token at the least.
pub const MAX_MESSAGES: usize = 1 << 14;

generation_request! {
    /// A chat request. Fields of OpenAI's API that this server does not
    /// implement are here too, so that they are refused by name unless they ask
    /// for nothing (see [`ChatRequest::refuse_unsupported`]).
    ChatRequest {
        messages: Capped<Object<Message>, MAX_MESSAGES>,
        max_completion_tokens: Option<i64>,
        logprobs: Option<bool>,
        top_logprobs: Option<i64>,
        /// Extra variables for the chat template (vLLM and SGLang).
        chat_template_kwargs: Option<Variables>,
        /// Whether the prompt ends with the opening of an assistant message.
        add_generation_prompt: Option<bool>,
        tools: Option<Noticed>,
        tool_choice: Option<Word>,
        parallel_tool_calls: Option<IgnoredAny>,
        functions: Option<Noticed>,
        function_call: Option<Word>,
        response_format: Option<ResponseFormat>,
        modalities: Option<Capped<String, 2>>,
        audio: Option<IgnoredAny>,
        prediction: Option<IgnoredAny>,
        reasoning_effort: Option<IgnoredAny>,
        verbosity: Option<IgnoredAny>,
        service_tier: Option<String>,
        store: Option<bool>,
        web_search_options: Option<IgnoredAny>,
        prompt_cache_key: Option<IgnoredAny>,
        safety_identifier: Option<IgnoredAny>,
    }
}

/// One message. Keys that clients copy from an answer (`refusal`, ...) may be
/// there as long as they are empty.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    pub role: String,
    #[serde(default)]
    pub content: Option<Content>,
    pub name: Option<String>,
    pub reasoning_content: Option<String>,
    pub refusal: Option<String>,
    pub annotations: Option<Noticed>,
    pub audio: Option<IgnoredAny>,
    pub function_call: Option<IgnoredAny>,
    pub tool_calls: Option<Noticed>,
    pub tool_call_id: Option<String>,
}

const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];

/// A string, or a list of parts of which only text ones are understood.
#[derive(Debug, PartialEq)]
pub struct Content(pub String);

/// The text of a part. Not derived: of a picture its type is what is wrong, and only of
/// a text the first key that is not known.
struct Part(String);

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Part;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Part, A::Error> {
                let (mut kind, mut text, mut unknown) = (None, None, None);
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "type" => kind = Some(map.next_value::<String>()?),
                        "text" => text = map.next_value::<Option<String>>()?,
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            unknown.get_or_insert(key);
                        }
                    }
                }
                let kind = kind.ok_or_else(|| de::Error::missing_field("type"))?;
                if kind != "text" {
                    return Err(de::Error::custom(format!(
                        "content part of type {kind:?}: the served model takes text only"
                    )));
                }
                match unknown {
                    Some(key) => Err(de::Error::unknown_field(&key, &["type", "text"])),
                    None => text
                        .map(Part)
                        .ok_or_else(|| de::Error::missing_field("text")),
                }
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrParts;
        impl<'de> Visitor<'de> for TextOrParts {
            type Value = Content;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of content parts")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Content, E> {
                Ok(Content(text.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Content, A::Error> {
                let mut texts = Vec::new();
                while let Some(Part(text)) = seq.next_element()? {
                    texts.push(text);
                }
                // As vLLM joins them for templates that expect a string.
                Ok(Content(texts.join("\n")))
            }
        }
        deserializer.deserialize_any(TextOrParts)
    }
}

impl ChatRequest {
    /// # Errors
    /// 400 naming the first field that asks for something this server cannot do.
    pub fn refuse_unsupported(&self) -> Result<(), ApiError> {
        let asks = |choice: &Option<Word>| {
            let word = choice.as_ref().map(|Word(word)| word.as_deref());
            !matches!(word, None | Some(Some("none" | "auto")))
        };
        let some = |list: &Option<Noticed>| list.as_ref().is_some_and(|list| list.given > 0);
        let modalities = self.modalities.as_ref();
        let fields = [
            ("tools", some(&self.tools)),
            ("tool_choice", asks(&self.tool_choice)),
            ("parallel_tool_calls", self.parallel_tool_calls.is_some()),
            ("functions", some(&self.functions)),
            ("function_call", asks(&self.function_call)),
            (
                "response_format",
                self.response_format
                    .as_ref()
                    .is_some_and(|format| !format.is_plain_text()),
            ),
            (
                "modalities",
                modalities.is_some_and(|kinds| {
                    kinds.given > kinds.items.len() || kinds.items.iter().any(|k| k != "text")
                }),
            ),
            ("audio", self.audio.is_some()),
            ("prediction", self.prediction.is_some()),
            ("reasoning_effort", self.reasoning_effort.is_some()),
            ("verbosity", self.verbosity.is_some()),
            (
                "service_tier",
                self.service_tier
                    .as_ref()
                    .is_some_and(|t| t != "auto" && t != "default"),
            ),
            ("store", self.store == Some(true)),
            ("web_search_options", self.web_search_options.is_some()),
            ("prompt_cache_key", self.prompt_cache_key.is_some()),
            ("safety_identifier", self.safety_identifier.is_some()),
        ];
        match fields.into_iter().find(|(_, given)| *given) {
            Some((field, _)) => Err(ApiError::unsupported(field)),
            None => Ok(()),
        }
    }

    /// The messages as the chat template sees them.
    ///
    /// # Errors
    /// 400 for no messages, an unknown role, a message without content, tool calls.
    pub fn template_messages(&self) -> Result<Value, ApiError> {
        if self.messages.given == 0 {
            return Err(out_of_bounds(
                "messages",
                "a list of at least 1 message",
                "0 messages",
            ));
        }
        self.messages
            .items
            .iter()
            .enumerate()
            .map(|(index, message)| message.check(index))
            .collect()
    }

    /// The two names of one bound; `None`: to the end of the context.
    ///
    /// # Errors
    /// 400 below 1, or when both are given and differ.
    pub fn token_limit(&self) -> Result<(&'static str, Option<usize>), ApiError> {
        let newer = at_least("max_completion_tokens", 1, self.max_completion_tokens)?;
        let older = at_least("max_tokens", 1, self.max_tokens)?;
        match (newer, older) {
            (Some(newer), Some(older)) if newer != older => Err(out_of_bounds(
                "max_tokens",
                &format!("left out or equal to `max_completion_tokens` ({newer})"),
                older,
            )),
            (Some(newer), _) => Ok(("max_completion_tokens", Some(newer))),
            (None, older) => Ok(("max_tokens", older)),
        }
    }

    /// Alternatives per token, where log-probabilities were asked for.
    ///
    /// # Errors
    /// 400 for `top_logprobs` without `logprobs`, or out of its bounds.
    pub fn logprobs(&self) -> Result<Option<usize>, ApiError> {
        let top = alternatives("top_logprobs", self.top_logprobs)?;
        match (self.logprobs.unwrap_or(false), top) {
            (true, top) => Ok(Some(top.unwrap_or(0))),
            (false, None | Some(0)) => Ok(None),
            (false, Some(top)) => Err(out_of_bounds(
                "top_logprobs",
                "left out unless `logprobs` is true",
                top,
            )),
        }
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
        let empty = |list: &Option<Noticed>| list.as_ref().is_none_or(|list| list.given == 0);
        let refused = [
            ("tool_calls", !empty(&self.tool_calls)),
            ("tool_call_id", self.tool_call_id.is_some()),
            ("function_call", self.function_call.is_some()),
            ("annotations", !empty(&self.annotations)),
            ("audio", self.audio.is_some()),
            ("refusal", self.refusal.is_some()),
        ];
        if let Some((field, _)) = refused.into_iter().find(|(_, given)| *given) {
            return Err(ApiError::unsupported(&at(field)));
        }
        let Some(Content(content)) = &self.content else {
            let bound = "a string or a list of text parts";
            return Err(out_of_bounds(&at("content"), bound, "null"));
        };
        // OpenAI renamed the system role; templates know the old name.
        let role = if self.role == "developer" {
            "system"
        } else {
            &self.role
        };
        let mut message = json!({"role": role, "content": content});
        for (key, value) in [
            ("name", &self.name),
            ("reasoning_content", &self.reasoning_content),
        ] {
            if let Some(value) = value {
                message[key] = json!(value);
            }
        }
        Ok(message)
    }
}
