//! Parses server-sent events incrementally.

/// Most bytes of a line, and of an event's data: a server that never ends a line must not fill the memory
/// of its client.
pub const MAX_EVENT_BYTES: usize = 64 << 20;

/// A line or an event of more than [`MAX_EVENT_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream has more than {MAX_EVENT_BYTES} bytes")]
pub struct TooLong;

/// Splits a byte stream into the data of its events. Chunks of the stream may end anywhere.
#[derive(Debug, Default)]
pub struct Parser {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
}

impl Parser {
    /// Parses `chunk`, and appends the data of each event that it completes to `events`.
    ///
    /// # Errors
    /// A line or the data of an event is too long. Nothing more can be read from the stream.
    pub fn push(&mut self, chunk: &[u8], events: &mut Vec<String>) -> Result<(), TooLong> {
        for &byte in chunk {
            if byte == b'\n' {
                self.end_line(events);
            } else if self.line.len() + self.data.len() < MAX_EVENT_BYTES {
                self.line.push(byte);
            } else {
                return Err(TooLong);
            }
        }
        Ok(())
    }

    fn end_line(&mut self, events: &mut Vec<String>) {
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        if line.is_empty() {
            if std::mem::take(&mut self.has_data) {
                events.push(String::from_utf8_lossy(&self.data).into_owned());
            }
            self.data.clear();
        } else if let Some(value) = line.strip_prefix(b"data:") {
            if self.has_data {
                self.data.push(b'\n');
            }
            self.has_data = true;
            self.data
                .extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        }
        // Comments and other fields (event, id, retry) are ignored.
        self.line.clear();
    }
}

/// The data of all events in `bytes`, which is a complete body, up to one that is too long.
pub fn sse_data(bytes: &[u8]) -> Vec<String> {
    let mut events = Vec::new();
    // The events before it are complete.
    let _ = Parser::default().push(bytes, &mut events);
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(chunks: &[&[u8]]) -> Vec<String> {
        let (mut parser, mut events) = (Parser::default(), Vec::new());
        for chunk in chunks {
            parser.push(chunk, &mut events).unwrap();
        }
        events
    }

    #[test]
    fn events_end_at_empty_lines() {
        assert_eq!(parse(&[b"data: a\n\ndata:b\r\n\r\n"]), ["a", "b"]);
    }

    #[test]
    fn any_split_into_chunks_gives_the_same_events() {
        let bytes =
            "data: {\"text\": \"é€😀\"}\n\n: comment\nevent: x\ndata: 1\ndata: 2\n\n".as_bytes();
        let whole = parse(&[bytes]);
        assert_eq!(whole, ["{\"text\": \"é€😀\"}", "1\n2"]);
        for at in 0..bytes.len() {
            assert_eq!(parse(&[&bytes[..at], &bytes[at..]]), whole, "split at {at}");
        }
    }

    #[test]
    fn an_unfinished_event_is_held_back() {
        assert!(parse(&[b"data: a\n"]).is_empty());
    }
}
