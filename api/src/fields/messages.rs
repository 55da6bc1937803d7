//! The messages of a chat in OpenAI's form, which other dialects use too.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, json};

use crate::error::{ApiError, out_of_bounds};
use crate::fields::capped::{Capped, Noticed};
use crate::fields::tools::GivenCall;
use crate::fields::wire::Object;

/// Most messages that are kept of one request; more are only counted. Each takes some hundred
/// bytes and is at least one token.
pub const MAX_MESSAGES: usize = 1 << 14;

/// One message. Keys that clients copy from an answer (`refusal`, ...) are accepted as long as they
/// are empty.
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

/// Most calls in one message.
const MAX_CALLS: usize = 128;

/// A string, or a list of parts, all of which must be text. With `HINTS` a part may have Anthropic's
/// `cache_control`, which is ignored because every prefix is cached anyway.
#[derive(Debug, PartialEq)]
pub struct Content<const HINTS: bool = false>(pub String);

/// The text of a part. Its deserialiser is not derived, because of the errors: about a picture the
/// error names its type, and only about a text the first unknown key.
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
                // vLLM joins them like this for templates that expect a string.
                Ok(Content(texts.join("\n")))
            }
        }
        deserializer.deserialize_any(TextOrParts::<HINTS>)
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
        // OpenAI renamed the system role, but templates know only the old name.
        let role = if self.role == "developer" {
            "system"
        } else {
            &self.role
        };
        // Not every template can render messages without content.
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

    /// The tool calls of an assistant's message, if it has any.
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
