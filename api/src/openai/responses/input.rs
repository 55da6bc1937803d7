//! The `input` of a request to `/v1/responses`: text, or the items of a conversation.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde_json::{Value, json};

use crate::error::{ApiError, out_of_bounds};
use crate::fields::capped::{Capped, Noticed};
use crate::fields::messages::MAX_MESSAGES;
use crate::fields::tools::Arguments;
use crate::fields::wire::Object;

/// The input: the user's text, or a conversation.
#[derive(Debug)]
pub struct Input(Capped<Object<Item>, MAX_MESSAGES>);

/// A message, a call, the result of a call, or reasoning; each kind has some of the fields.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Item {
    r#type: Option<String>,
    role: Option<String>,
    content: Option<Content>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<Arguments>,
    output: Option<Content>,
    summary: Option<Content>,
    encrypted_content: Option<String>,
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

/// The types of parts that are text.
const TEXT_PARTS: [&str; 5] = [
    "input_text",
    "output_text",
    "text",
    "reasoning_text",
    "summary_text",
];

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
                    role: Some("user".to_owned()),
                    content: Some(Content(text.to_owned())),
                    ..Item::default()
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
                    if !TEXT_PARTS.contains(&part.r#type.as_str()) {
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
    /// The number of items, those that were not kept included.
    pub fn given(&self) -> usize {
        self.0.given
    }

    /// Appends the input to `messages`, a conversation as the chat template sees it. A turn of the
    /// assistant is one message there: its reasoning, its text and its calls, which are items here.
    ///
    /// # Errors
    /// 400 for an item of an unknown type or role, and for one that lacks a field.
    pub fn extend(&self, messages: &mut Vec<Value>) -> Result<(), ApiError> {
        if self.0.given == 0 {
            return Err(out_of_bounds("input", "at least 1 item", "0 items"));
        }
        for (index, item) in self.0.items.iter().enumerate() {
            item.extend(index, messages)?;
        }
        Ok(())
    }
}

impl Item {
    fn extend(&self, index: usize, messages: &mut Vec<Value>) -> Result<(), ApiError> {
        let at = |field: &str| format!("input[{index}].{field}");
        let kind = self.r#type.as_deref().unwrap_or("message");
        let own: &[&str] = match kind {
            "message" => &["role", "content"],
            "function_call" => &["call_id", "name", "arguments"],
            "function_call_output" => &["call_id", "output"],
            "reasoning" => &["content", "summary"],
            other => {
                let bound = "one of message, function_call, function_call_output, reasoning";
                return Err(out_of_bounds(&at("type"), bound, format!("{other:?}")));
            }
        };
        if self.encrypted_content.is_some() {
            let field = at("encrypted_content");
            let message = format!("`{field}` must be null: this server encrypts no reasoning");
            return Err(ApiError::field(field, message));
        }
        let given = [
            ("role", self.role.is_some()),
            ("content", self.content.is_some()),
            ("call_id", self.call_id.is_some()),
            ("name", self.name.is_some()),
            ("arguments", self.arguments.is_some()),
            ("output", self.output.is_some()),
            ("summary", self.summary.is_some()),
        ];
        for (field, given) in given {
            if given && !own.contains(&field) {
                let bound = format!("left out of an item of type {kind}");
                return Err(out_of_bounds(&at(field), &bound, "one"));
            }
        }
        let needed = |field: &str, value: Option<&str>| match value {
            Some(value) => Ok(value.to_owned()),
            None => Err(out_of_bounds(&at(field), "a string", "null")),
        };
        match kind {
            "function_call" => {
                let call = json!({
                    "type": "function",
                    "function": {
                        "name": needed("name", self.name.as_deref())?,
                        "arguments": needed("arguments", self.arguments.as_ref().map(|a| a.0.as_str()))?,
                    },
                    "id": needed("call_id", self.call_id.as_deref())?,
                });
                let message = assistant(messages, |_| true);
                match message["tool_calls"].as_array_mut() {
                    Some(calls) => calls.push(call),
                    None => message["tool_calls"] = json!([call]),
                }
            }
            "function_call_output" => messages.push(json!({
                "role": "tool",
                "content": needed("output", self.output.as_ref().map(|c| c.0.as_str()))?,
                "tool_call_id": needed("call_id", self.call_id.as_deref())?,
            })),
            "reasoning" => {
                let text = [&self.content, &self.summary];
                let text = text.into_iter().flatten().find(|text| !text.0.is_empty());
                if let Some(Content(text)) = text {
                    let message = assistant(messages, |_| false);
                    message["reasoning_content"] = text.as_str().into();
                }
            }
            _ => self.message(&at, messages)?,
        }
        Ok(())
    }

    fn message(
        &self,
        at: &dyn Fn(&str) -> String,
        messages: &mut Vec<Value>,
    ) -> Result<(), ApiError> {
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
        if role == "assistant" {
            // Reasoning is an item of its own, before the text that it led to.
            let reasoned = |last: &Value| last["content"] == "" && last.get("tool_calls").is_none();
            assistant(messages, reasoned)["content"] = text.as_str().into();
        } else {
            messages.push(json!({"role": role, "content": text}));
        }
        Ok(())
    }
}

/// The last message, if it is the assistant's and `joins` agrees, else a new one of the assistant.
fn assistant(messages: &mut Vec<Value>, joins: impl Fn(&Value) -> bool) -> &mut Value {
    let last = messages.last();
    if !last.is_some_and(|last| last["role"] == "assistant" && joins(last)) {
        messages.push(json!({"role": "assistant", "content": ""}));
    }
    let last = messages.len() - 1;
    &mut messages[last]
}
