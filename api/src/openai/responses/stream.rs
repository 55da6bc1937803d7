//! A response as a stream of OpenAI's events.

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::generate::Update;
use crate::openai::responses::answer::{Answer, part, status};
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
    pub text: String,
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

    /// Writes an event about the one message or its one part.
    fn push_item(&mut self, kind: &str, mut event: Value, out: &mut Vec<u8>) {
        event["output_index"] = 0.into();
        self.push(kind, event, out);
    }

    fn push_part(&mut self, kind: &str, mut event: Value, out: &mut Vec<u8>) {
        event["item_id"] = self.answer.message_id.as_str().into();
        event["content_index"] = 0.into();
        self.push_item(kind, event, out);
    }

    fn start(&mut self, out: &mut Vec<u8>) {
        let response = self.answer.pending("in_progress");
        self.push("response.created", json!({"response": response}), out);
        self.push("response.in_progress", json!({"response": response}), out);
        let item = self.answer.empty_message();
        self.push_item("response.output_item.added", json!({"item": item}), out);
        self.push_part(
            "response.content_part.added",
            json!({"part": part("")}),
            out,
        );
    }

    fn end(&mut self, response: Value, status: &'static str, out: &mut Vec<u8>) {
        let text = std::mem::take(&mut self.text);
        let done = json!({"text": text, "logprobs": []});
        self.push_part("response.output_text.done", done, out);
        self.push_part(
            "response.content_part.done",
            json!({"part": part(&text)}),
            out,
        );
        let item = self.answer.message(&text, status);
        self.push_item("response.output_item.done", json!({"item": item}), out);
        let kind = match status {
            "incomplete" => "response.incomplete",
            "cancelled" => "response.cancelled",
            _ => "response.completed",
        };
        self.push(kind, json!({"response": response}), out);
        if let Some(keeper) = &self.keep {
            let mut messages = std::mem::take(&mut self.messages);
            messages.push(json!({"role": "assistant", "content": text}));
            keeper.keep(response, messages, None);
        }
    }
}

impl ChunkFormat for Events {
    fn update(&mut self, index: usize, update: Update, tally: &Tally, out: &mut Vec<u8>) {
        match update {
            Update::Started { .. } => self.start(out),
            Update::Text(piece) if !piece.text.is_empty() => {
                self.text.push_str(&piece.text);
                let delta = json!({"delta": piece.text, "logprobs": []});
                self.push_part("response.output_text.delta", delta, out);
            }
            Update::Finished(finish) => {
                let counts = tally.counts(index);
                let response = self.answer.finished(&self.text, Some(&finish), counts);
                self.end(response, status(Some(&finish)), out);
            }
            Update::Text(_)
            | Update::PromptLogprobs(_)
            | Update::Embedding(_)
            | Update::Failed(_) => {}
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
