//! The blocks that the messages of `/v1/messages` consist of.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, json};

use crate::fields::messages::Content;
use crate::fields::tools::Arguments;

/// A block of a message.
#[derive(Debug, PartialEq)]
pub enum Block {
    Text(String),
    Thinking(String),
    /// A call that the assistant made.
    Use {
        id: String,
        name: String,
        /// A JSON object.
        input: String,
    },
    /// The result of a call.
    Result {
        id: String,
        text: String,
    },
}

/// A text, or a list of blocks.
#[derive(Debug, PartialEq)]
pub struct Blocks(pub Vec<Block>);

impl<'de> Deserialize<'de> for Blocks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrBlocks;
        impl<'de> Visitor<'de> for TextOrBlocks {
            type Value = Blocks;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of content blocks")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Blocks, E> {
                Ok(Blocks(vec![Block::Text(text.to_owned())]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Blocks, A::Error> {
                let mut blocks = Vec::new();
                while let Some(block) = seq.next_element()? {
                    blocks.push(block);
                }
                Ok(Blocks(blocks))
            }
        }
        deserializer.deserialize_any(TextOrBlocks)
    }
}

/// The fields of all kinds of blocks. The deserialiser is not derived, because of the errors: about a
/// picture the error names its type, and only about a known kind the first unknown key.
#[derive(Default)]
struct Fields {
    kind: Option<String>,
    text: Option<String>,
    thinking: Option<String>,
    id: Option<String>,
    name: Option<String>,
    input: Option<Arguments>,
    tool_use_id: Option<String>,
    content: Option<Content<true>>,
    is_error: Option<bool>,
    /// The names of the fields, in their order.
    keys: Vec<String>,
}

impl<'de> Deserialize<'de> for Block {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Block;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Block, A::Error> {
                let mut fields = Fields::default();
                // The content of a result has forms that other blocks' fields do not have: the
                // kind of the block is looked at when all fields have been read.
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "type" => fields.kind = Some(map.next_value()?),
                        "text" => fields.text = map.next_value()?,
                        "thinking" => fields.thinking = map.next_value()?,
                        "id" => fields.id = map.next_value()?,
                        "name" => fields.name = map.next_value()?,
                        "input" => fields.input = map.next_value()?,
                        "tool_use_id" => fields.tool_use_id = map.next_value()?,
                        "content" => fields.content = map.next_value()?,
                        "is_error" => fields.is_error = map.next_value()?,
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                    // `cache_control` has no effect, because every prefix is cached anyway.
                    if key != "type" && key != "cache_control" && fields.keys.len() < 16 {
                        fields.keys.push(key);
                    }
                }
                fields.block()
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

impl Fields {
    fn block<E: de::Error>(self) -> Result<Block, E> {
        let kind = self.kind.ok_or_else(|| E::missing_field("type"))?;
        let known: &'static [&'static str] = match kind.as_str() {
            "text" => &["type", "text"],
            "thinking" => &["type", "thinking", "signature"],
            "tool_use" => &["type", "id", "name", "input"],
            "tool_result" => &["type", "tool_use_id", "content", "is_error"],
            _ => {
                return Err(E::custom(format!(
                    "content part of type {kind:?}: the served model takes text only"
                )));
            }
        };
        if let Some(key) = self.keys.iter().find(|key| !known.contains(&key.as_str())) {
            return Err(E::unknown_field(key, known));
        }
        let needed = |value: Option<String>, name| value.ok_or_else(|| E::missing_field(name));
        Ok(match kind.as_str() {
            "text" => Block::Text(needed(self.text, "text")?),
            "thinking" => Block::Thinking(needed(self.thinking, "thinking")?),
            "tool_use" => Block::Use {
                id: needed(self.id, "id")?,
                name: needed(self.name, "name")?,
                input: self.input.map_or("{}".to_owned(), |input| input.0),
            },
            _ => {
                let text = self.content.map_or(String::new(), |Content(text)| text);
                Block::Result {
                    id: needed(self.tool_use_id, "tool_use_id")?,
                    text: match self.is_error {
                        Some(true) => format!("Error: {text}"),
                        _ => text,
                    },
                }
            }
        })
    }
}

/// Messages as the chat template sees them, put together from blocks. Texts of one role that follow
/// each other become one message, and the result of each call a message of its own.
#[derive(Debug, Default)]
pub struct Messages {
    list: Vec<Value>,
    /// The names of calls by their ids.
    names: Vec<(String, String)>,
}

impl Messages {
    pub fn text(&mut self, role: &str, text: &str) {
        let last = self.last_of(role);
        if let Some(Value::String(content)) = last.get_mut("content") {
            if !content.is_empty() {
                content.push('\n');
            }
            content.push_str(text);
        }
    }

    pub fn block(&mut self, role: &str, block: &Block) {
        match block {
            Block::Text(text) => self.text(role, text),
            Block::Thinking(text) => self.last_of(role)["reasoning_content"] = text.as_str().into(),
            Block::Use { id, name, input } => {
                self.names.push((id.clone(), name.clone()));
                let function = json!({"name": name, "arguments": input});
                let call = json!({"id": id, "type": "function", "function": function});
                let last = self.last_of(role);
                match last.get_mut("tool_calls") {
                    Some(Value::Array(calls)) => calls.push(call),
                    _ => last["tool_calls"] = json!([call]),
                }
            }
            Block::Result { id, text } => {
                let mut message = json!({"role": "tool", "tool_call_id": id, "content": text});
                let mut names = self.names.iter().rev();
                if let Some((_, name)) = names.find(|(other, _)| other == id) {
                    message["name"] = name.as_str().into();
                }
                self.list.push(message);
            }
        }
    }

    /// The last message, if it is of `role`, or a new one.
    fn last_of(&mut self, role: &str) -> &mut Value {
        if self.list.last().is_none_or(|last| last["role"] != role) {
            // Not every template can render messages without content.
            self.list.push(json!({"role": role, "content": ""}));
        }
        self.list.last_mut().expect("there is one at the least")
    }

    pub fn into_list(self) -> Vec<Value> {
        self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::from_value;

    #[test]
    fn calls_and_what_came_of_them_are_openais_messages() {
        let blocks = |json| from_value::<Blocks>(json).unwrap().0;
        let mut messages = Messages::default();
        for block in blocks(json!([
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "Let me see."},
            {"id": "t1", "type": "tool_use", "name": "f", "input": {"a": 1}},
        ])) {
            messages.block("assistant", &block);
        }
        for block in blocks(json!([
            {"type": "tool_result", "tool_use_id": "t1", "is_error": true,
             "content": [{"type": "text", "text": "none"}]},
            {"type": "text", "text": "Well?"},
        ])) {
            messages.block("user", &block);
        }
        let function = json!({"name": "f", "arguments": "{\"a\":1}"});
        assert_eq!(
            messages.into_list(),
            [
                json!({"role": "assistant", "content": "Let me see.", "reasoning_content": "hm",
                       "tool_calls": [{"id": "t1", "type": "function", "function": function}]}),
                json!({"role": "tool", "tool_call_id": "t1", "content": "Error: none", "name": "f"}),
                json!({"role": "user", "content": "Well?"}),
            ]
        );
    }

    #[test]
    fn what_a_block_cannot_be_is_named() {
        let error = |json| from_value::<Blocks>(json).unwrap_err().to_string();
        let image = json!([{"type": "image", "source": {"type": "base64"}}]);
        assert!(error(image).contains("\"image\": the served model takes text only"));
        let odd = json!([{"text": "a", "colour": 1, "type": "text"}]);
        assert!(error(odd).contains("unknown field `colour`"));
        assert!(error(json!([{"type": "tool_use", "id": "a"}])).contains("`name`"));
        assert!(error(json!([{"text": "a"}])).contains("`type`"));
        assert!(error(json!(7)).contains("a string or a list of content blocks"));
    }
}
