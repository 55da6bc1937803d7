//! Server-sent events: one `data:` line and an empty line per event.

use serde::Serialize;

pub const CONTENT_TYPE: &str = "text/event-stream; charset=utf-8";
/// The end mark of OpenAI's streams.
pub const DONE: &[u8] = b"data: [DONE]\n\n";

/// Appends one event to `out`, with `payload` as JSON. The framing needs a payload of one line,
/// and serde_json escapes newlines.
pub fn push(out: &mut Vec<u8>, payload: &impl Serialize) {
    out.extend_from_slice(b"data: ");
    push_json(out, payload);
    out.extend_from_slice(b"\n\n");
}

/// Appends one event that has a name.
pub fn push_named(out: &mut Vec<u8>, name: &str, payload: &impl Serialize) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.push(b'\n');
    push(out, payload);
}

/// Appends `value` as JSON, without the framing of an event.
pub fn push_json(out: &mut Vec<u8>, value: &impl Serialize) {
    serde_json::to_writer(out, value)
        .expect("response types serialise: their map keys are strings and no writer fails");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(payload: &impl Serialize) -> Vec<u8> {
        let mut out = Vec::new();
        push(&mut out, payload);
        out
    }

    #[test]
    fn an_event_is_one_data_line_and_an_empty_line() {
        assert_eq!(event(&json!({"a": 1})), b"data: {\"a\":1}\n\n");
    }

    #[test]
    fn line_breaks_in_the_text_do_not_break_the_framing() {
        let bytes = event(&json!({"text": "one\ntwo\r\n\n three\u{2028}"}));
        let text = std::str::from_utf8(&bytes).unwrap();
        assert_eq!(text.matches('\n').count(), 2);
        assert!(text.ends_with("\n\n") && !text.contains('\r'));
    }
}
