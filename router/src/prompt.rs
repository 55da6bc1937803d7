//! The prompt of a request as the policies see it: characters or token ids, in order.
//!
//! Only `cache_aware` looks at prompts, and only at their first [`LONGEST`] units. A body that
//! cannot be read has an empty prompt: the worker will refuse it.

use serde::Deserialize;
use serde_json::Value;

use crate::kv_index::TokenPrompt;

/// Most characters or token ids of a prompt that a policy looks at, which bounds the time that
/// the selection takes.
pub const LONGEST: usize = 1 << 18;

/// The units of a prompt: the code points of its characters, or its token ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    pub units: Vec<u32>,
    /// Whether the units are token ids, which are compared with token ids only.
    pub tokens: bool,
    /// The prompt in tokens, if a worker says which tokens it has cached.
    pub known: Option<TokenPrompt>,
}

/// Where a route has its prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptField {
    /// The contents of `messages` in order, after `system` if there is one.
    Messages,
    /// The first prompt of the first of these fields that is there.
    Text(&'static [&'static str]),
    /// OpenAI's Responses: `instructions`, then `input`.
    Input,
    /// The text of a program before its first generation, in `nodes`.
    Program,
    None,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Body {
    messages: Value,
    system: Value,
    instructions: Value,
    input: Value,
    text: Value,
    input_ids: Value,
    prompt: Value,
    query: Value,
    nodes: Value,
}

impl Body {
    fn field(&self, name: &str) -> &Value {
        match name {
            "input" => &self.input,
            "text" => &self.text,
            "input_ids" => &self.input_ids,
            "prompt" => &self.prompt,
            "query" => &self.query,
            _ => &Value::Null,
        }
    }
}

impl Prompt {
    /// Reads the prompt out of a request's body.
    pub fn read(field: PromptField, body: &[u8]) -> Self {
        let mut prompt = Self::default();
        if field == PromptField::None {
            return prompt;
        }
        let Ok(body) = serde_json::from_slice::<Body>(body) else {
            return prompt;
        };
        match field {
            PromptField::Messages => {
                prompt.add_contents(&body.system);
                prompt.add_contents(&body.messages);
            }
            PromptField::Input => {
                prompt.add_contents(&body.instructions);
                prompt.add_contents(&body.input);
            }
            PromptField::Text(names) => {
                let mut fields = names.iter().map(|name| body.field(name));
                if let Some(value) = fields.find(|value| !value.is_null()) {
                    prompt.add_first(value);
                }
            }
            PromptField::Program => {
                let nodes = body.nodes.as_array().into_iter().flatten();
                let own = nodes.filter(|node| node["state"].as_u64().unwrap_or(0) == 0);
                let begin = own.take_while(|node| node["op"] != "gen" && node["op"] != "select");
                begin.for_each(|node| prompt.add_contents(&node["text"]));
            }
            PromptField::None => {}
        }
        prompt.units.truncate(LONGEST);
        prompt
    }

    fn add_text(&mut self, text: &str) {
        let room = LONGEST.saturating_sub(self.units.len());
        self.units.extend(text.chars().take(room).map(u32::from));
    }

    /// The texts in messages or in parts of messages, at any depth.
    fn add_contents(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.add_text(text),
            Value::Array(items) => items.iter().for_each(|item| self.add_contents(item)),
            Value::Object(fields) => {
                for name in ["content", "text"] {
                    if let Some(value) = fields.get(name) {
                        self.add_contents(value);
                    }
                }
            }
            _ => {}
        }
    }

    /// A text, a list of token ids, or the first of a list of either.
    fn add_first(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.add_text(text),
            Value::Array(items) if items.first().is_some_and(Value::is_u64) => {
                self.tokens = true;
                let ids = items.iter().map_while(Value::as_u64).take(LONGEST);
                self.units.extend(ids.map(|id| id as u32));
            }
            Value::Array(items) => {
                if let Some(first) = items.first() {
                    self.add_first(first);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(field: PromptField, body: &str) -> String {
        let prompt = Prompt::read(field, body.as_bytes());
        assert!(!prompt.tokens);
        let chars = prompt.units.iter().filter_map(|&unit| char::from_u32(unit));
        chars.collect()
    }

    #[test]
    fn a_chat_is_its_contents_in_order() {
        let body = r#"{"system": "s", "messages": [{"role": "user", "content": "a"},
            {"content": [{"type": "text", "text": "bé"}, {"type": "image_url"}]}]}"#;
        assert_eq!(text(PromptField::Messages, body), "sabé");
        let body = r#"{"instructions": "i", "input": [{"content": [{"text": "x"}]}]}"#;
        assert_eq!(text(PromptField::Input, body), "ix");
    }

    #[test]
    fn a_program_is_its_text_before_the_first_generation() {
        let body = r#"{"nodes": [{"op": "begin", "role": "user"}, {"op": "text", "text": "a"},
            {"op": "fork", "into": [1]}, {"state": 1, "op": "text", "text": "fork"},
            {"state": 0, "op": "text", "text": ["b", {"var": "v", "state": 0}]},
            {"op": "gen", "name": "x"}, {"op": "text", "text": "c"}]}"#;
        assert_eq!(text(PromptField::Program, body), "ab");
        assert_eq!(text(PromptField::Program, r#"{"nodes": 3}"#), "");
    }

    #[test]
    fn a_text_or_the_first_of_a_batch_is_the_prompt() {
        const TEXT: PromptField = PromptField::Text(&["text", "input_ids"]);
        assert_eq!(text(TEXT, r#"{"text": "a"}"#), "a");
        assert_eq!(text(TEXT, r#"{"text": ["b", "c"]}"#), "b");
        for body in [
            r#"{"input_ids": [7, 8]}"#,
            r#"{"input_ids": [[7, 8], [9]]}"#,
        ] {
            let prompt = Prompt::read(TEXT, body.as_bytes());
            assert_eq!((prompt.units, prompt.tokens), (vec![7, 8], true));
        }
        for body in ["", "[]", "{", r#"{"text": 3}"#, r#"{"text": []}"#] {
            assert_eq!(Prompt::read(TEXT, body.as_bytes()), Prompt::default());
        }
    }
}
