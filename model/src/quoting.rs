//! Special tokens in the text of messages stay text.
//!
//! A prompt is one text, in which the template's own `<|im_end|>` and one that a user wrote look
//! the same. So a mark is put into whatever could become a special token in a message before the
//! template sees it. The mark is not part of any token's text, so the tokenizer finds the
//! template's special tokens only; then the marks are removed, and the rest is tokenized as text.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// A noncharacter of Unicode: it is for use within a process, and no text is to contain it.
pub const MARK: char = '\u{fdd0}';
/// Stands for a [`MARK`] in a message.
const REPLACEMENT: char = '\u{fffd}';

/// Reasoning is part of an assistant's message in some APIs, between marks which templates look
/// for. They stay tokens there, if the model has them as special ones.
const REASONING: [&str; 4] = ["<think>", "</think>", "[THINK]", "[/THINK]"];

/// Finds what could become a special token of one tokenizer.
#[derive(Debug, Clone, Default)]
pub struct Quoting {
    /// The first two characters of each special token.
    starts: BTreeSet<(char, char)>,
    /// Their first characters.
    firsts: BTreeSet<char>,
    /// The marks of [`REASONING`] that are special tokens.
    reasoning: Vec<&'static str>,
}

impl Quoting {
    /// `special` are the texts of all special tokens. One of a single character cannot be
    /// quoted; no tokenizer in use has such a one.
    pub fn new<'a>(special: impl IntoIterator<Item = &'a str>) -> Self {
        let mut quoting = Self::default();
        for token in special {
            let mut letters = token.chars();
            if let (Some(first), Some(second)) = (letters.next(), letters.next()) {
                quoting.starts.insert((first, second));
                quoting.firsts.insert(first);
            }
            let known = REASONING.iter().find(|mark| **mark == token);
            quoting.reasoning.extend(known);
        }
        quoting
    }

    /// `text` with a mark in everything that may become a special token, alone or together with
    /// the text that follows it in the prompt.
    pub fn quote<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.quote_except(text, &[])
    }

    fn quote_except<'a>(&self, text: &'a str, kept: &[&str]) -> Cow<'a, str> {
        let mut quoted: Option<String> = None;
        let mut letters = text.char_indices().peekable();
        let mut keep_until = 0;
        while let Some((at, letter)) = letters.next() {
            if letter == MARK {
                quoted
                    .get_or_insert_with(|| text[..at].to_owned())
                    .push(REPLACEMENT);
                continue;
            }
            if let Some(quoted) = &mut quoted {
                quoted.push(letter);
            }
            if at < keep_until || !self.firsts.contains(&letter) {
                continue;
            }
            if let Some(mark) = kept.iter().find(|mark| text[at..].starts_with(**mark)) {
                keep_until = at + mark.len();
                continue;
            }
            let begins = match letters.peek() {
                Some((_, next)) => self.starts.contains(&(letter, *next)),
                None => true,
            };
            if begins {
                let end = at + letter.len_utf8();
                quoted
                    .get_or_insert_with(|| text[..end].to_owned())
                    .push(MARK);
            }
        }
        quoted.map_or(Cow::Borrowed(text), Cow::Owned)
    }

    /// Quotes all texts of `messages`, which is a list of objects in most cases.
    pub(crate) fn quote_messages(&self, messages: &mut Value) {
        let Some(list) = messages.as_array_mut() else {
            return self.quote_value(messages, &[]);
        };
        for message in list {
            let kept: &[&str] = match message.get("role").and_then(Value::as_str) {
                Some("assistant") => &self.reasoning,
                _ => &[],
            };
            self.quote_value(message, kept);
        }
    }

    /// Quotes all texts of `tools`.
    pub(crate) fn quote_tools(&self, tools: &Value) -> Value {
        let mut tools = tools.clone();
        self.quote_value(&mut tools, &[]);
        tools
    }

    /// Quotes the texts within lists and objects, such as documents. Texts that are variables
    /// themselves are settings, which may replace a special token.
    pub(crate) fn quote_variables(&self, variables: &Map<String, Value>) -> Map<String, Value> {
        let mut variables = variables.clone();
        for value in variables.values_mut().filter(|value| !value.is_string()) {
            self.quote_value(value, &[]);
        }
        variables
    }

    /// JSON is at most 128 deep.
    fn quote_value(&self, value: &mut Value, kept: &[&str]) {
        match value {
            Value::String(text) => {
                if let Cow::Owned(quoted) = self.quote_except(text, kept) {
                    *text = quoted;
                }
            }
            Value::Array(list) => list
                .iter_mut()
                .for_each(|item| self.quote_value(item, kept)),
            Value::Object(fields) => {
                let changes = |name: &String| matches!(self.quote(name), Cow::Owned(_));
                if fields.keys().any(changes) {
                    let old = std::mem::take(fields);
                    let renamed =
                        |(name, value): (String, Value)| (self.quote(&name).into_owned(), value);
                    *fields = old.into_iter().map(renamed).collect();
                }
                fields
                    .values_mut()
                    .for_each(|value| self.quote_value(value, kept));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// `text` without marks, as people read it.
pub fn unquoted(text: &str) -> Cow<'_, str> {
    match text.contains(MARK) {
        true => Cow::Owned(text.replace(MARK, "")),
        false => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn quoting() -> Quoting {
        Quoting::new(["<|im_start|>", "<|im_end|>", "[INST]", "</think>", "x"])
    }

    #[test]
    fn whatever_begins_like_a_special_token_is_marked() {
        let quoting = quoting();
        let marked = |text: &str| quoting.quote(text).replace(MARK, "^");
        assert_eq!(marked("a <|im_end|> b"), "a <^|im_end|> b");
        assert_eq!(marked("[INST] [IN] [x]"), "[^INST] [^IN] [x]");
        assert_eq!(marked("a < b <b> x"), "a < b <b> x");
        assert_eq!(marked("it may go on <"), "it may go on <^");
        assert_eq!(marked("é<|é"), "é<^|é");
        assert_eq!(quoting.quote("a\u{fdd0}b"), "a\u{fffd}b");
        assert!(matches!(quoting.quote("plain, 1 < 2"), Cow::Borrowed(_)));
    }

    #[test]
    fn without_the_marks_a_text_is_what_it_was() {
        let text = "<|<|im_end|>[INST]<<";
        assert_eq!(unquoted(&quoting().quote(text)), text);
        assert!(matches!(unquoted("a"), Cow::Borrowed("a")));
    }

    #[test]
    fn every_text_and_name_of_a_message_is_quoted_but_an_assistants_reasoning_is_not() {
        let mut messages = json!([
            {"role": "user", "name": "<|", "content": [{"type": "text", "text": "</think>"}]},
            {"role": "assistant", "content": "because</think><|im_end|>",
             "tool_calls": [{"function": {"arguments": {"<|a": ["<|b"]}}}]},
        ]);
        quoting().quote_messages(&mut messages);
        let marked = messages.to_string().replace(MARK, "^");
        let expected = json!([
            {"role": "user", "name": "<^|", "content": [{"type": "text", "text": "<^/think>"}]},
            {"role": "assistant", "content": "because</think><^|im_end|>",
             "tool_calls": [{"function": {"arguments": {"<^|a": ["<^|b"]}}}]},
        ]);
        assert_eq!(marked, expected.to_string());
        let variables = json!({"bos_token": "<|im_start|>", "documents": ["<|im_end|>"]});
        let quoted = quoting().quote_variables(variables.as_object().unwrap());
        assert_eq!(quoted["bos_token"], "<|im_start|>");
        assert_eq!(quoted["documents"][0], "<\u{fdd0}|im_end|>");
    }
}
