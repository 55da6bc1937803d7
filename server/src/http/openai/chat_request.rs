//! `/v1/chat/completions` as it comes in.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, json};

use super::capped::{Capped, Noticed, Variables, Word};
use super::sampling::{alternatives, at_least, generation_request, out_of_bounds};
use super::tool_fields::{GivenCall, GivenTools, Spelling, ToolChoice};
use super::wire::Object;
use crate::http::error::ApiError;
use crate::http::tools::Asking;
use crate::reader::Reasoning;

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
        /// Whether the last message, which is the assistant's, goes on.
        continue_final_message: Option<bool>,
        /// Whether reasoning goes into `reasoning_content`, and is streamed there as it
        /// comes (SGLang).
        separate_reasoning: Option<bool>,
        stream_reasoning: Option<bool>,
        tools: Option<GivenTools>,
        tool_choice: Option<ToolChoice>,
        parallel_tool_calls: Option<bool>,
        functions: Option<Noticed>,
        function_call: Option<Word>,
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
    pub tool_calls: Option<Capped<Object<GivenCall>, MAX_CALLS>>,
    pub tool_call_id: Option<String>,
}

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Calls in one message.
const MAX_CALLS: usize = 128;

/// A string, or a list of parts of which only text ones are understood. With `HINTS` the
/// parts may say what is to be cached (Anthropic), as everything is anyway.
#[derive(Debug, PartialEq)]
pub struct Content<const HINTS: bool = false>(pub String);

/// The text of a part. Not derived: of a picture its type is what is wrong, and only of
/// a text the first key that is not known.
struct Part<const HINTS: bool>(String);

impl<'de, const HINTS: bool> Deserialize<'de> for Part<HINTS> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys<const HINTS: bool>;
        impl<'de, const HINTS: bool> Visitor<'de> for Keys<HINTS> {
            type Value = Part<HINTS>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let (mut kind, mut text, mut unknown) = (None, None, None);
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "type" => kind = Some(map.next_value::<String>()?),
                        "text" => text = map.next_value::<Option<String>>()?,
                        "cache_control" if HINTS => drop(map.next_value::<IgnoredAny>()?),
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
        deserializer.deserialize_map(Keys::<HINTS>)
    }
}

impl<'de, const HINTS: bool> Deserialize<'de> for Content<HINTS> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrParts<const HINTS: bool>;
        impl<'de, const HINTS: bool> Visitor<'de> for TextOrParts<HINTS> {
            type Value = Content<HINTS>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of content parts")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Content(text.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut texts = Vec::new();
                while let Some(Part::<HINTS>(text)) = seq.next_element()? {
                    texts.push(text);
                }
                // As vLLM joins them for templates that expect a string.
                Ok(Content(texts.join("\n")))
            }
        }
        deserializer.deserialize_any(TextOrParts::<HINTS>)
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
            ("functions", some(&self.functions)),
            ("function_call", asks(&self.function_call)),
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
        template_messages(&self.messages)
    }

    /// What is said about tools.
    ///
    /// # Errors
    /// 400 with field, bound and value.
    pub fn take_tools(&mut self) -> Result<Asking, ApiError> {
        let tools = self.tools.take();
        Ok(Asking {
            tools: tools.map_or(Ok(Vec::new()), |tools| tools.check(Spelling::OpenAi))?,
            choice: self.tool_choice.take().map(|ToolChoice(choice)| choice),
            parallel: self.parallel_tool_calls,
            parallel_field: "parallel_tool_calls",
        })
    }

    /// What becomes of reasoning.
    pub fn reasoning(&self) -> Reasoning {
        match self.separate_reasoning {
            Some(false) => Reasoning::InText,
            _ => Reasoning::Apart {
                streamed: self.stream_reasoning != Some(false),
            },
        }
    }

    /// Whether the answer goes on with the last message, instead of being one of its own.
    ///
    /// # Errors
    /// 400 where both are asked for, or the last message is not the assistant's.
    pub fn continues(&self) -> Result<bool, ApiError> {
        if self.continue_final_message != Some(true) {
            return Ok(false);
        }
        let last = self.messages.items.last();
        let refused = |message: &str| Err(ApiError::field("continue_final_message", message));
        if self.add_generation_prompt == Some(true) {
            refused("`continue_final_message` must be false where `add_generation_prompt` is true")
        } else if last.is_none_or(|last| last.role != "assistant") {
            refused(
                "`continue_final_message` must be false unless the last message is the assistant's",
            )
        } else {
            Ok(true)
        }
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

/// `messages` as the chat template sees them.
///
/// # Errors
/// 400 for no messages, an unknown role, a message without content, tool calls.
pub fn template_messages(
    messages: &Capped<Object<Message>, MAX_MESSAGES>,
) -> Result<Value, ApiError> {
    if messages.given == 0 {
        return Err(out_of_bounds(
            "messages",
            "a list of at least 1 message",
            "0 messages",
        ));
    }
    let each = messages.items.iter().enumerate();
    each.map(|(index, message)| message.check(index)).collect()
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
            ("function_call", self.function_call.is_some()),
            ("annotations", !empty(&self.annotations)),
            ("audio", self.audio.is_some()),
            ("refusal", self.refusal.is_some()),
        ];
        if let Some((field, _)) = refused.into_iter().find(|(_, given)| *given) {
            return Err(ApiError::unsupported(&at(field)));
        }
        let calls = self.calls(&at("tool_calls"))?;
        let is_tool = self.role == "tool";
        if is_tool != self.tool_call_id.is_some() {
            let (bound, given) = match is_tool {
                true => ("the id of the call that the message answers", "none"),
                false => ("left out unless the role is tool", "one"),
            };
            return Err(out_of_bounds(&at("tool_call_id"), bound, given));
        }
        if self.content.is_none() && calls.is_none() {
            let bound = "a string or a list of text parts";
            return Err(out_of_bounds(&at("content"), bound, "null"));
        }
        // OpenAI renamed the system role; templates know the old name.
        let role = if self.role == "developer" {
            "system"
        } else {
            &self.role
        };
        // Not every template knows messages without content.
        let content = self.content.as_ref().map_or("", |Content(text)| text);
        let mut message = json!({"role": role, "content": content});
        if let Some(calls) = calls {
            message["tool_calls"] = calls;
        }
        for (key, value) in [
            ("name", &self.name),
            ("tool_call_id", &self.tool_call_id),
            ("reasoning_content", &self.reasoning_content),
        ] {
            if let Some(value) = value {
                message[key] = json!(value);
            }
        }
        Ok(message)
    }

    /// The calls of the assistant, if there are any.
    fn calls(&self, path: &str) -> Result<Option<Value>, ApiError> {
        let Some(calls) = self.tool_calls.as_ref().filter(|calls| calls.given > 0) else {
            return Ok(None);
        };
        if self.role != "assistant" {
            let bound = "left out unless the role is assistant";
            return Err(out_of_bounds(path, bound, format!("{} calls", calls.given)));
        }
        if calls.given > MAX_CALLS {
            let bound = format!("at most {MAX_CALLS} calls");
            return Err(out_of_bounds(path, &bound, calls.given));
        }
        let each = calls.items.iter().enumerate();
        let calls: Result<Value, ApiError> = each
            .map(|(index, call)| call.template(&format!("{path}[{index}]")))
            .collect();
        calls.map(Some)
    }
}
