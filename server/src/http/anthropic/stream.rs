//! A message as a stream of Anthropic's events.

use actix_web::web::BytesMut;
use serde_json::{Value, json};

use super::super::error::ApiError;
use super::super::generate::{Finish, Update};
use super::super::openai::response::MatchedStop;
use super::super::respond::ChunkFormat;
use super::super::shape::Shape;
use super::super::sse;
use super::super::tally::{Counts, Tally};

/// The token counts of a message. Anthropic counts what was cached apart from the rest.
pub fn usage(counts: Counts) -> Value {
    json!({
        "input_tokens": counts.prompt - counts.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached,
        "output_tokens": counts.completion,
    })
}

/// Why a message ended, in Anthropic's words.
///
/// # Errors
/// It was aborted, for which there is no word.
pub fn stop_reason(finish: &Finish) -> Result<(&'static str, Option<&str>), ApiError> {
    match (finish.reason, &finish.matched) {
        ("length", _) => Ok(("max_tokens", None)),
        ("abort", _) => Err(aborted()),
        (_, Some(MatchedStop::Text(text))) => Ok(("stop_sequence", Some(text))),
        (_, Some(MatchedStop::Token(_)) | None) => Ok(("end_turn", None)),
    }
}

fn aborted() -> ApiError {
    ApiError::unavailable("aborted", "the request was aborted")
}

/// `message_start`, the text, `message_stop`.
pub struct Events {
    pub id: String,
    pub model: String,
}

impl Events {
    fn start(&self, counts: Counts, out: &mut BytesMut) {
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
        let block = json!({
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        });
        sse::push_named(out, "content_block_start", &block);
        sse::push_named(out, "ping", &json!({"type": "ping"}));
    }

    fn end(&self, finish: &Finish, counts: Counts, out: &mut BytesMut) {
        let (reason, sequence) = match stop_reason(finish) {
            Ok(reason) => reason,
            Err(error) => {
                let body = Shape::Anthropic.body(&error);
                return sse::push_named(out, "error", &body);
            }
        };
        let block = json!({"type": "content_block_stop", "index": 0});
        sse::push_named(out, "content_block_stop", &block);
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
    fn update(&mut self, index: usize, update: Update, tally: &Tally, out: &mut BytesMut) {
        match update {
            Update::Started { .. } => self.start(tally.counts(index), out),
            Update::Text(piece) if !piece.text.is_empty() => {
                let delta = json!({
                    "type": "content_block_delta",
                    "index": 0,
                    "delta": {"type": "text_delta", "text": piece.text},
                });
                sse::push_named(out, "content_block_delta", &delta);
            }
            Update::Finished(finish) => self.end(&finish, tally.counts(index), out),
            _ => {}
        }
    }

    fn close(&mut self, _tally: &Tally, _out: &mut BytesMut) {}

    fn fail(&mut self, error: &ApiError, out: &mut BytesMut) {
        sse::push_named(out, "error", &Shape::Anthropic.body(error));
    }

    fn end_mark(&self) -> &'static [u8] {
        b""
    }
}
