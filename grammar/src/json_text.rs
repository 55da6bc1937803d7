//! Where a text is in its JSON: within a string or between.

/// The position at the end of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    in_string: bool,
    escaped: bool,
}

impl Position {
    pub fn in_string(self) -> bool {
        self.in_string
    }

    /// Goes on by `bytes`. JSON has no line breaks within strings, so one that is there ends a
    /// quotation in other text.
    pub fn advance(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = self.in_string,
                b'"' => self.in_string = !self.in_string,
                b'\n' => self.in_string = false,
                _ => {}
            }
        }
    }
}

/// True if `byte` begins or ends nothing: within a string if `in_string`, and between JSON's tokens
/// otherwise.
pub(crate) fn is_plain(byte: u8, in_string: bool) -> bool {
    match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'<' => false,
        b'{' | b'}' | b'[' | b']' | b',' | b':' | b'(' | b')' => in_string,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_end_at_quotes_that_are_not_escaped() {
        let after = |text: &str| {
            let mut position = Position::default();
            position.advance(text.as_bytes());
            position.in_string()
        };
        assert!(!after("{") && after("{\"a") && !after("{\"a\""));
        assert!(after("\"a\\\"") && !after("\"a\\\\\""));
    }
}
