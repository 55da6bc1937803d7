//! The items of a response's output: reasoning, messages and calls.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::openai::chat_chunks::CALL_PREFIX;
use crate::reader::{Part, Reader};
use crate::served::Served;
use crate::tool_plan::{Reading, call_id};

/// An item of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub id: String,
    pub kind: Kind,
    /// Its text, or the JSON of a call's arguments.
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Reasoning,
    Message,
    Call { call_id: String, name: String },
}

/// A change of the output, by which a stream tells it. An index is the position of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Opened(usize),
    Grew(usize, String),
    Closed(usize),
}

/// Puts the items together from the model's text.
///
/// **Architecture Invariant.** The items do not depend on how the text was cut into pieces, so a
/// stream has the items of the whole answer.
pub struct Output {
    pub items: Vec<Item>,
    /// None where the answer is one message.
    reader: Option<Reader>,
    /// White space between items. It belongs to a message only if text follows.
    held: String,
    open: bool,
    served: Served,
}

impl Output {
    pub fn new(served: Served, reading: &Reading) -> Self {
        Self {
            items: Vec::new(),
            reader: reading.reader(),
            held: String::new(),
            open: false,
            served,
        }
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, text: String) -> Vec<Change> {
        let parts = match &mut self.reader {
            Some(reader) => reader.push(text),
            None => vec![Part::Text(text)],
        };
        self.take(parts)
    }

    /// Ends the text. An answer of no other item has a message, which may be empty.
    pub fn finish(&mut self) -> Vec<Change> {
        let reader = self.reader.take();
        let parts = reader.map_or(Vec::new(), |mut reader| reader.finish());
        let mut changes = self.take(parts);
        if self.items.is_empty() {
            let held = std::mem::take(&mut self.held);
            self.open(Kind::Message, &mut changes);
            self.grow(held, &mut changes);
        }
        self.close(&mut changes);
        changes
    }

    fn take(&mut self, parts: Vec<Part>) -> Vec<Change> {
        let mut changes = Vec::new();
        for part in parts {
            match part {
                Part::Reasoning(text) => {
                    self.open_unless(&Kind::Reasoning, &mut changes);
                    self.grow(text, &mut changes);
                }
                Part::Text(text) if self.is_open(&Kind::Message) => {
                    self.grow(text, &mut changes);
                }
                Part::Text(text) => {
                    self.held += &text;
                    if !self.held.trim().is_empty() {
                        let held = std::mem::take(&mut self.held);
                        self.open(Kind::Message, &mut changes);
                        self.grow(held, &mut changes);
                    }
                }
                Part::Call(name) => {
                    self.held.clear();
                    let call_id = call_id(&self.served, CALL_PREFIX);
                    self.open(Kind::Call { call_id, name }, &mut changes);
                }
                Part::Arguments(json) => self.grow(json, &mut changes),
            }
        }
        changes
    }

    fn is_open(&self, kind: &Kind) -> bool {
        self.open && self.items.last().is_some_and(|item| item.kind == *kind)
    }

    fn open_unless(&mut self, kind: &Kind, changes: &mut Vec<Change>) {
        if !self.is_open(kind) {
            self.open(kind.clone(), changes);
        }
    }

    fn open(&mut self, kind: Kind, changes: &mut Vec<Change>) {
        self.close(changes);
        let prefix = match kind {
            Kind::Reasoning => "rs",
            Kind::Message => "msg",
            Kind::Call { .. } => "fc",
        };
        changes.push(Change::Opened(self.items.len()));
        self.items.push(Item {
            id: format!("{prefix}_{}", Uuid::now_v7().simple()),
            kind,
            text: String::new(),
        });
        self.open = true;
    }

    fn grow(&mut self, text: String, changes: &mut Vec<Change>) {
        let Some(index) = self.items.len().checked_sub(1).filter(|_| !text.is_empty()) else {
            return;
        };
        self.items[index].text += &text;
        changes.push(Change::Grew(index, text));
    }

    fn close(&mut self, changes: &mut Vec<Change>) {
        if std::mem::replace(&mut self.open, false) {
            changes.push(Change::Closed(self.items.len() - 1));
        }
    }

    /// The output as a message of the conversation, for the chat template.
    pub fn message(&self) -> Value {
        let text = |kind: &Kind| -> String {
            let items = self.items.iter().filter(|item| item.kind == *kind);
            items.map(|item| item.text.as_str()).collect()
        };
        let mut message = json!({"role": "assistant", "content": text(&Kind::Message)});
        let reasoning = text(&Kind::Reasoning);
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.into();
        }
        let calls = self.items.iter().filter_map(|item| match &item.kind {
            Kind::Call { call_id, name } => Some(json!({
                "type": "function",
                "function": {"name": name, "arguments": item.text},
                "id": call_id,
            })),
            _ => None,
        });
        let calls: Vec<Value> = calls.collect();
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        message
    }
}

impl Item {
    /// The item as the response has it.
    pub fn json(&self, status: &str) -> Value {
        match &self.kind {
            Kind::Reasoning => json!({
                "id": self.id,
                "type": "reasoning",
                "status": status,
                "summary": [],
                "content": [self.part()],
                "encrypted_content": null,
            }),
            Kind::Message => json!({
                "id": self.id,
                "type": "message",
                "status": status,
                "role": "assistant",
                "content": [self.part()],
            }),
            Kind::Call { call_id, name } => json!({
                "id": self.id,
                "type": "function_call",
                "status": status,
                "call_id": call_id,
                "name": name,
                "arguments": self.text,
            }),
        }
    }

    /// The item before it has any text.
    pub fn opened(&self) -> Value {
        let empty = Self {
            text: String::new(),
            ..self.clone()
        };
        let mut json = empty.json("in_progress");
        if !matches!(self.kind, Kind::Call { .. }) {
            json["content"] = json!([]);
        }
        json
    }

    /// The content part that has the text of a message or of reasoning.
    pub fn part(&self) -> Value {
        let text = &self.text;
        match self.kind {
            Kind::Reasoning => json!({"type": "reasoning_text", "text": text}),
            _ => json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
        }
    }
}
