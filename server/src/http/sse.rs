//! Server-sent events: one `data:` line and an empty line per event.

use actix_web::web::{BufMut, Bytes, BytesMut};
use serde::Serialize;

pub const CONTENT_TYPE: &str = "text/event-stream; charset=utf-8";
/// Ends every OpenAI stream.
pub const DONE: &[u8] = b"data: [DONE]\n\n";

/// One event with `payload` as JSON. serde_json escapes newlines, so that the
/// payload is always one line, as the framing needs.
pub fn event(payload: &impl Serialize) -> Bytes {
    let mut bytes = BytesMut::with_capacity(256);
    push(&mut bytes, payload);
    bytes.freeze()
}

/// Appends one event to `bytes`.
pub fn push(bytes: &mut BytesMut, payload: &impl Serialize) {
    bytes.put_slice(b"data: ");
    serde_json::to_writer((&mut *bytes).writer(), payload)
        .expect("response types serialise: their map keys are strings and no writer fails");
    bytes.put_slice(b"\n\n");
}

/// Appends one event that has a name.
pub fn push_named(bytes: &mut BytesMut, name: &str, payload: &impl Serialize) {
    bytes.put_slice(b"event: ");
    bytes.put_slice(name.as_bytes());
    bytes.put_u8(b'\n');
    push(bytes, payload);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_is_one_data_line_and_an_empty_line() {
        assert_eq!(
            event(&json!({"a": 1})),
            Bytes::from_static(b"data: {\"a\":1}\n\n")
        );
    }

    #[test]
    fn line_breaks_in_the_text_do_not_break_the_framing() {
        let bytes = event(&json!({"text": "one\ntwo\r\n\n three\u{2028}"}));
        let text = std::str::from_utf8(&bytes).unwrap();
        assert_eq!(text.matches('\n').count(), 2);
        assert!(text.ends_with("\n\n") && !text.contains('\r'));
    }
}
