//! Borders of server-sent events, and a rewriter of the few events whose content changes.

use std::time::Duration;

use actix_web::web::{Bytes, BytesMut};

/// The end of an event.
const END: &[u8] = b"\n\n";
/// Longest event that is held back to be rewritten; a longer one passes as it is.
const LONGEST_EVENT: usize = 64 << 20;
/// Longest time to wait for what an event is rewritten with.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// The form of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Server-sent events.
    Sse,
    /// A JSON object per line, as Ollama streams.
    Lines,
    /// Not a stream.
    Whole,
}

impl Framing {
    pub fn of(content_type: &str) -> Self {
        match content_type.split(';').next().map(str::trim) {
            Some("text/event-stream") => Self::Sse,
            Some("application/x-ndjson") => Self::Lines,
            _ => Self::Whole,
        }
    }

    /// An error as the last piece of a stream whose last bytes were `tail`; `None` if the form has
    /// no place for one.
    pub fn error(self, tail: &Tail, body: &str) -> Option<Bytes> {
        let (before, text) = match self {
            Self::Sse => (tail.missing(END), format!("data: {body}\n\n")),
            Self::Lines => (tail.missing(b"\n"), format!("{body}\n")),
            Self::Whole => return None,
        };
        Some(Bytes::from(format!("{before}{text}")))
    }
}

/// The last two bytes of a stream.
#[derive(Debug, Default)]
pub struct Tail(Vec<u8>);

impl Tail {
    pub fn add(&mut self, piece: &[u8]) {
        self.0
            .extend_from_slice(&piece[piece.len().saturating_sub(END.len())..]);
        let surplus = self.0.len().saturating_sub(END.len());
        self.0.drain(..surplus);
    }

    /// The bytes that must follow so that the stream ends with `end`; empty if none must.
    fn missing(&self, end: &[u8]) -> &'static str {
        match (self.0.is_empty() || self.0.ends_with(end), end.len()) {
            (true, _) => "",
            (false, 1) => "\n",
            (false, _) => END_TEXT,
        }
    }
}

const END_TEXT: &str = "\n\n";

/// Splits a stream into whole events, so that some can be rewritten.
#[derive(Debug, Default)]
pub struct Events(BytesMut);

impl Events {
    /// Takes in a piece of the stream and gives the events that are whole now, with their ends.
    pub fn add(&mut self, piece: &[u8]) -> Vec<Bytes> {
        // An end may lie across two pieces.
        let mut from = self.0.len().saturating_sub(END.len() - 1);
        self.0.extend_from_slice(piece);
        let mut events = Vec::new();
        while let Some(at) = find(&self.0[from..], END) {
            events.push(self.0.split_to(from + at + END.len()).freeze());
            from = 0;
        }
        if self.0.len() > LONGEST_EVENT {
            events.push(self.0.split().freeze());
        }
        events
    }

    /// The bytes that are left at the end of the stream.
    pub fn rest(&mut self) -> Option<Bytes> {
        (!self.0.is_empty()).then(|| self.0.split().freeze())
    }
}

/// The position of `needle`.
pub fn find(text: &[u8], needle: &[u8]) -> Option<usize> {
    text.windows(needle.len()).position(|part| part == needle)
}

/// The JSON of an event that has one `data` line.
pub fn data(event: &[u8]) -> Option<&[u8]> {
    let line = event.strip_prefix(b"data:")?.trim_ascii();
    (!line.contains(&b'\n')).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_whole_however_the_stream_is_cut() {
        let stream = b"data: a\n\ndata: {\"x\": 1}\n\n: c\n\ndata: [DO";
        let expected: [&[u8]; 3] = [b"data: a\n\n", b"data: {\"x\": 1}\n\n", b": c\n\n"];
        for size in 1..stream.len() {
            let mut events = Events::default();
            let pieces = stream.chunks(size);
            let found: Vec<Bytes> = pieces.flat_map(|piece| events.add(piece)).collect();
            assert_eq!(found, expected, "{size}");
            assert_eq!(events.rest().unwrap(), "data: [DO");
            assert_eq!(events.rest(), None);
        }
        assert_eq!(data(expected[1]), Some(&b"{\"x\": 1}"[..]));
        assert_eq!(data(expected[2]), None);
    }

    #[test]
    fn an_error_is_an_event_of_its_own() {
        for (sent, expected) in [
            ("", "data: {}\n\n"),
            ("data: a\n\n", "data: {}\n\n"),
            ("data: hal", "\n\ndata: {}\n\n"),
            ("data: hal\n", "\n\ndata: {}\n\n"),
        ] {
            let mut tail = Tail::default();
            sent.as_bytes().chunks(1).for_each(|piece| tail.add(piece));
            assert_eq!(
                Framing::Sse.error(&tail, "{}").unwrap(),
                expected,
                "{sent:?}"
            );
        }
        let mut tail = Tail::default();
        tail.add(b"{\"a\"");
        assert_eq!(Framing::Lines.error(&tail, "{}").unwrap(), "\n{}\n");
        assert_eq!(Framing::Whole.error(&tail, "{}"), None);
        assert_eq!(
            Framing::of("text/event-stream; charset=utf-8"),
            Framing::Sse
        );
    }
}
