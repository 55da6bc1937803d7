//! A response as a stream of OpenAI's events.

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::generate::Update;
use crate::openai::responses::answer::{Answer, status};
use crate::openai::responses::output::{Change, Item, Kind, Output};
use crate::openai::responses::stored::Keeper;
use crate::respond::ChunkFormat;
use crate::sse;
use crate::tally::Tally;

/// Writes the events from `response.created` to `response.completed`.
pub struct Events {
    pub answer: Answer,
    /// Where the response is stored at its end, if the request asks for that.
    pub keep: Option<Keeper>,
    /// The conversation that the response answers.
    pub messages: Vec<Value>,
    pub output: Output,
    /// The number of events so far.
    pub sent: usize,
}

impl Events {
    fn push(&mut self, kind: &str, mut event: Value, out: &mut Vec<u8>) {
        event["type"] = kind.into();
        event["sequence_number"] = self.sent.into();
        self.sent += 1;
        sse::push_named(out, kind, &event);
    }

    fn start(&mut self, out: &mut Vec<u8>) {
        let response = self.answer.pending("in_progress");
        self.push("response.created", json!({"response": response}), out);
        self.push("response.in_progress", json!({"response": response}), out);
    }

    /// Writes what has changed. `status` is that of an item which is closed.
    fn tell(&mut self, changes: Vec<Change>, status: &str, out: &mut Vec<u8>) {
        let last = changes.len().saturating_sub(1);
        for (position, change) in changes.into_iter().enumerate() {
            let status = if position == last {
                status
            } else {
                "completed"
            };
            let index = match change {
                Change::Opened(index) | Change::Grew(index, _) | Change::Closed(index) => index,
            };
            for (kind, mut event) in events(&self.output.items[index], &change, status) {
                event["output_index"] = index.into();
                self.push(kind, event, out);
            }
        }
    }

    fn end(&mut self, response: Value, status: &'static str, out: &mut Vec<u8>) {
        let kind = match status {
            "incomplete" => "response.incomplete",
            "cancelled" => "response.cancelled",
            _ => "response.completed",
        };
        self.push(kind, json!({"response": response}), out);
        if let Some(keeper) = &self.keep {
            let mut messages = std::mem::take(&mut self.messages);
            messages.push(self.output.message());
            keeper.keep(response, messages, None);
        }
    }
}

/// The events that tell a change of `item`, without their `output_index`.
fn events(item: &Item, change: &Change, status: &str) -> Vec<(&'static str, Value)> {
    let is_message = item.kind == Kind::Message;
    let of_part = |mut event: Value| {
        event["item_id"] = item.id.as_str().into();
        if !matches!(item.kind, Kind::Call { .. }) {
            event["content_index"] = 0.into();
        }
        if is_message && event.get("part").is_none() {
            event["logprobs"] = json!([]);
        }
        event
    };
    let (delta, done) = match item.kind {
        Kind::Reasoning => (
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
        ),
        Kind::Message => ("response.output_text.delta", "response.output_text.done"),
        Kind::Call { .. } => (
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
        ),
    };
    let part = |part: Value| of_part(json!({ "part": part }));
    match (change, &item.kind) {
        (Change::Grew(_, text), _) => vec![(delta, of_part(json!({ "delta": text })))],
        (Change::Opened(_), kind) => {
            let added = json!({"item": item.opened()});
            let mut events = vec![("response.output_item.added", added)];
            if !matches!(kind, Kind::Call { .. }) {
                let empty = Item {
                    text: String::new(),
                    ..item.clone()
                };
                events.push(("response.content_part.added", part(empty.part())));
            }
            events
        }
        (Change::Closed(_), kind) => {
            let ended = (
                "response.output_item.done",
                json!({"item": item.json(status)}),
            );
            match kind {
                Kind::Call { name, .. } => {
                    let whole = json!({"name": name, "arguments": item.text});
                    vec![(done, of_part(whole)), ended]
                }
                _ => vec![
                    (done, of_part(json!({"text": item.text}))),
                    ("response.content_part.done", part(item.part())),
                    ended,
                ],
            }
        }
    }
}

impl ChunkFormat for Events {
    fn update(&mut self, index: usize, update: Update, tally: &Tally, out: &mut Vec<u8>) {
        match update {
            Update::Started { .. } => self.start(out),
            Update::Text(piece) => {
                let changes = self.output.push(piece.text);
                self.tell(changes, "completed", out);
            }
            Update::Finished(finish) => {
                let changes = self.output.finish();
                let ended = status(Some(&finish));
                self.tell(changes, ended, out);
                let items = &self.output.items;
                let response = self
                    .answer
                    .finished(items, Some(&finish), tally.counts(index));
                self.end(response, ended, out);
            }
            Update::PromptLogprobs(_) | Update::Embedding(_) | Update::Failed(_) => {}
        }
    }

    fn close(&mut self, _tally: &Tally, _out: &mut Vec<u8>) {}

    fn fail(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        let response = self.answer.failed(&error.message);
        self.push("response.failed", json!({"response": response}), out);
    }

    fn end_mark(&self) -> &'static [u8] {
        b""
    }
}
