//! The events of OpenAI's streams. The beginning that all events of a stream share is serialised
//! once, because writing JSON takes most of the time between a token and its client.

use serde::Serialize;

use crate::fields::sampling::StreamUsage;
use crate::openai::response::Head;
use crate::sse;
use crate::tally::{Tally, Usage};

/// Writes `{..head, "choices": [..], "usage": ..}`.
pub struct ChunkWriter {
    /// The bytes of an event from `data: ` to the choices.
    opening: Vec<u8>,
    usage: StreamUsage,
}

impl ChunkWriter {
    pub fn new(head: &Head, usage: StreamUsage) -> Self {
        let mut opening = b"data: ".to_vec();
        sse::push_json(&mut opening, head);
        // Without the brace that closes the head.
        opening.pop();
        opening.extend_from_slice(b",\"choices\":");
        Self { opening, usage }
    }

    /// Writes an event of one choice.
    pub fn push(&self, choice: &impl Serialize, tally: &Tally, out: &mut Vec<u8>) {
        let usage = self.usage.in_every_chunk.then(|| tally.usage());
        self.write(std::slice::from_ref(choice), usage, out);
    }

    /// Writes the last event, with the token counts and without choices, if the client asked for it.
    pub fn push_usage(&self, tally: &Tally, out: &mut Vec<u8>) {
        if self.usage.at_end {
            self.write::<()>(&[], Some(tally.usage()), out);
        }
    }

    /// Writes an event. As in OpenAI's API, `usage` is absent, or null until it is known if the
    /// client asked for it.
    fn write<C: Serialize>(&self, choices: &[C], usage: Option<Usage>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.opening);
        sse::push_json(out, &choices);
        if self.usage.at_end {
            out.extend_from_slice(b",\"usage\":");
            sse::push_json(out, &usage);
        }
        out.extend_from_slice(b"}\n\n");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn written(usage: StreamUsage, write: impl Fn(&ChunkWriter, &mut Vec<u8>)) -> Value {
        let head = Head {
            id: "cmpl-\"1\"".to_owned(),
            object: "text_completion",
            created: 7,
            model: "a}b".to_owned(),
            system_fingerprint: "f",
            seed: Some(-1),
        };
        let mut out = Vec::new();
        write(&ChunkWriter::new(&head, usage), &mut out);
        let event = std::str::from_utf8(&out).unwrap();
        let json = event.strip_prefix("data: ").unwrap();
        let mut chunk: Value = serde_json::from_str(json.strip_suffix("\n\n").unwrap()).unwrap();
        let fields = chunk.as_object_mut().unwrap();
        for (name, value) in serde_json::to_value(&head).unwrap().as_object().unwrap() {
            assert_eq!(fields.remove(name).as_ref(), Some(value));
        }
        chunk
    }

    fn tally() -> Tally {
        Tally::new("id".to_owned(), "/", 1, 1)
    }

    #[test]
    fn a_chunk_has_the_head_its_choice_and_the_usage_that_was_asked_for() {
        let choice = json!({"text": "x\ny"});
        let push = |writer: &ChunkWriter, out: &mut Vec<u8>| writer.push(&choice, &tally(), out);
        let usage = StreamUsage::default();
        assert_eq!(written(usage, push), json!({"choices": [choice]}));
        let usage = StreamUsage {
            at_end: true,
            ..usage
        };
        assert_eq!(
            written(usage, push),
            json!({"choices": [choice], "usage": null})
        );
        let usage = StreamUsage {
            in_every_chunk: true,
            ..usage
        };
        let counts = serde_json::to_value(tally().usage()).unwrap();
        assert_eq!(
            written(usage, push),
            json!({"choices": [choice], "usage": counts})
        );
        let close = |writer: &ChunkWriter, out: &mut Vec<u8>| writer.push_usage(&tally(), out);
        assert_eq!(
            written(usage, close),
            json!({"choices": [], "usage": counts})
        );
    }

    #[test]
    fn a_usage_that_was_not_asked_for_ends_no_stream() {
        let head = Head {
            id: String::new(),
            object: "",
            created: 0,
            model: String::new(),
            system_fingerprint: "",
            seed: None,
        };
        let mut out = Vec::new();
        ChunkWriter::new(&head, StreamUsage::default()).push_usage(&tally(), &mut out);
        assert!(out.is_empty());
    }
}
