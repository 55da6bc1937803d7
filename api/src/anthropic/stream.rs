//! A message as a stream of Anthropic's events.

use serde_json::{Value, json};

use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::generate::{Finish, MatchedStop, Update};
use crate::reader::{Part, Reader};
use crate::respond::ChunkFormat;
use crate::served::Served;
use crate::sse;
use crate::tally::{Counts, Tally};
use crate::tool_plan::{Reading, call_id};

/// The prefix of the ids of calls.
pub const CALL_PREFIX: &str = "toolu_";

/// The token counts of a message. Anthropic counts cached tokens apart from the other input tokens.
pub fn usage(counts: Counts) -> Value {
    json!({
        "input_tokens": counts.prompt - counts.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached,
        "output_tokens": counts.completion,
    })
}

/// Anthropic's stop reason of a message. `calls`: the message has calls.
///
/// # Errors
/// The request was aborted, for which Anthropic's API has no reason.
pub fn stop_reason(finish: &Finish, calls: bool) -> Result<(&'static str, Option<&str>), ApiError> {
    match (finish.reason, &finish.matched) {
        ("length", _) => Ok(("max_tokens", None)),
        ("abort", _) => Err(aborted()),
        (_, Some(MatchedStop::Text(text))) => Ok(("stop_sequence", Some(text))),
        (_, Some(MatchedStop::Token(_)) | None) if calls => Ok(("tool_use", None)),
        (_, Some(MatchedStop::Token(_)) | None) => Ok(("end_turn", None)),
    }
}

fn aborted() -> ApiError {
    ApiError::unavailable("aborted", "the request was aborted")
}

/// Writes the events: `message_start`, the blocks, `message_stop`.
pub struct Events {
    id: String,
    model: String,
    served: Served,
    /// None where the answer is plain text and nothing else.
    reader: Option<Reader>,
    /// The kind of the open block, and the number of blocks before it.
    open: Option<Kind>,
    closed: usize,
    calls: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
    ToolUse,
}

impl Events {
    pub fn new(id: String, model: String, served: Served, reading: &Reading) -> Self {
        Self {
            id,
            model,
            served,
            reader: reading.reader(),
            open: None,
            closed: 0,
            calls: false,
        }
    }

    fn start(&mut self, counts: Counts, out: &mut Vec<u8>) {
        let message = json!({
            "type": "message_start",
            "message": {
                "id": self.id,
                "type": "message",
                "role": "assistant",
                "model": self.model,
                "content": [],
                "stop_reason": null,
                "stop_sequence": null,
                "usage": usage(counts),
            },
        });
        sse::push_named(out, "message_start", &message);
        if self.reader.is_none() {
            self.begin(Kind::Text, json!({"type": "text", "text": ""}), out);
        }
        sse::push_named(out, "ping", &json!({"type": "ping"}));
    }

    /// Opens a block, and closes the one before it.
    fn begin(&mut self, kind: Kind, block: Value, out: &mut Vec<u8>) {
        self.close_block(out);
        self.open = Some(kind);
        let start = json!({
            "type": "content_block_start",
            "index": self.closed,
            "content_block": block,
        });
        sse::push_named(out, "content_block_start", &start);
    }

    fn close_block(&mut self, out: &mut Vec<u8>) {
        let Some(kind) = self.open.take() else {
            return;
        };
        if kind == Kind::Thinking {
            // Clients need a signature to put the block together.
            self.delta(&json!({"type": "signature_delta", "signature": ""}), out);
        }
        let stop = json!({"type": "content_block_stop", "index": self.closed});
        sse::push_named(out, "content_block_stop", &stop);
        self.closed += 1;
    }

    fn delta(&self, delta: &Value, out: &mut Vec<u8>) {
        let event = json!({
            "type": "content_block_delta",
            "index": self.closed,
            "delta": delta,
        });
        sse::push_named(out, "content_block_delta", &event);
    }

    fn push(&mut self, part: Part, out: &mut Vec<u8>) {
        match part {
            Part::Text(text) => {
                if self.open != Some(Kind::Text) {
                    self.begin(Kind::Text, json!({"type": "text", "text": ""}), out);
                }
                self.delta(&json!({"type": "text_delta", "text": text}), out);
            }
            Part::Reasoning(text) => {
                if self.open != Some(Kind::Thinking) {
                    let block = json!({"type": "thinking", "thinking": "", "signature": ""});
                    self.begin(Kind::Thinking, block, out);
                }
                self.delta(&json!({"type": "thinking_delta", "thinking": text}), out);
            }
            Part::Call(name) => {
                self.calls = true;
                let id = call_id(&self.served, CALL_PREFIX);
                let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                self.begin(Kind::ToolUse, block, out);
            }
            Part::Arguments(json) => {
                let delta = json!({"type": "input_json_delta", "partial_json": json});
                self.delta(&delta, out);
            }
        }
    }

    fn end(&mut self, finish: &Finish, counts: Counts, out: &mut Vec<u8>) {
        let (reason, sequence) = match stop_reason(finish, self.calls) {
            Ok(reason) => reason,
            Err(error) => {
                let body = Dialect::Anthropic.body(&error);
                return sse::push_named(out, "error", &body);
            }
        };
        self.close_block(out);
        let delta = json!({
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": usage(counts),
        });
        sse::push_named(out, "message_delta", &delta);
        sse::push_named(out, "message_stop", &json!({"type": "message_stop"}));
    }
}

impl ChunkFormat for Events {
    fn update(&mut self, index: usize, update: Update, tally: &Tally, out: &mut Vec<u8>) {
        match update {
            Update::Started { .. } => self.start(tally.counts(index), out),
            Update::Text(piece) if !piece.text.is_empty() => {
                let parts = match &mut self.reader {
                    Some(reader) => reader.push(piece.text),
                    None => vec![Part::Text(piece.text)],
                };
                for part in parts {
                    self.push(part, out);
                }
            }
            Update::Finished(finish) => {
                let reader = self.reader.take();
                for part in reader.map_or(Vec::new(), |mut reader| reader.finish()) {
                    self.push(part, out);
                }
                self.end(&finish, tally.counts(index), out);
            }
            _ => {}
        }
    }

    fn close(&mut self, _tally: &Tally, _out: &mut Vec<u8>) {}

    fn fail(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        sse::push_named(out, "error", &Dialect::Anthropic.body(error));
    }

    fn end_mark(&self) -> &'static [u8] {
        b""
    }
}
