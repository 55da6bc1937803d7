//! Finds the end of a bracketed text that is still arriving, and the parts of a complete one
//! exactly as they are written.

use serde::de::IgnoredAny;

/// The language inside of the brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    Json,
    Python,
}

impl Syntax {
    /// True if `byte` may stand outside of strings.
    fn has(self, byte: u8) -> bool {
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' | b',' | b':' | b'.' | b'+' | b'-' | b'"' => true,
            b'{' | b'}' | b'[' | b']' => true,
            b'(' | b')' | b'=' | b'_' | b'\'' => self == Self::Python,
            _ => byte.is_ascii_alphanumeric(),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Scanned {
    More,
    /// The text ends before this byte.
    End(usize),
    /// This byte cannot stand where it is.
    Broken(usize),
}

/// The state of looking through a text that begins with a bracket or a quote.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    at: usize,
    /// The closing brackets that must still come, the outermost first.
    open: Vec<u8>,
    quote: Option<u8>,
    escaped: bool,
}

impl Scan {
    /// Goes on in `text`, which is the earlier text and more.
    pub fn advance(&mut self, text: &str, syntax: Syntax) -> Scanned {
        for (at, &byte) in text.as_bytes().iter().enumerate().skip(self.at) {
            self.at = at + 1;
            if let Some(quote) = self.quote {
                if self.escaped {
                    self.escaped = false;
                } else if byte == b'\\' {
                    self.escaped = true;
                } else if byte == quote {
                    self.quote = None;
                    if self.open.is_empty() {
                        return Scanned::End(at + 1);
                    }
                }
                continue;
            }
            if !syntax.has(byte) {
                return Scanned::Broken(at);
            }
            match byte {
                b'"' | b'\'' => self.quote = Some(byte),
                b'{' => self.open.push(b'}'),
                b'[' => self.open.push(b']'),
                b'(' => self.open.push(b')'),
                b'}' | b']' | b')' => {
                    if self.open.pop() != Some(byte) {
                        return Scanned::Broken(at);
                    }
                    if self.open.is_empty() {
                        return Scanned::End(at + 1);
                    }
                }
                _ => {}
            }
        }
        Scanned::More
    }

    /// The caller dropped the first `bytes` of the text, which were looked at already.
    pub fn forget(&mut self, bytes: usize) {
        self.at -= bytes;
    }
}

/// The members of a JSON object, with their values exactly as they are written; `None` if it is no
/// valid object.
pub fn members(json: &str) -> Option<Vec<(String, &str)>> {
    let mut rest = valid(json)?.strip_prefix('{')?.trim_start();
    let mut members = Vec::new();
    while !rest.starts_with('}') {
        let (key, after) = first_value(rest)?;
        let key = serde_json::from_str(key).ok()?;
        let (value, after) = first_value(after.trim_start().strip_prefix(':')?.trim_start())?;
        members.push((key, value));
        rest = after.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    Some(members)
}

/// The elements of a JSON list, exactly as they are written; `None` if it is no valid list.
pub fn elements(json: &str) -> Option<Vec<&str>> {
    let mut rest = valid(json)?.strip_prefix('[')?.trim_start();
    let mut elements = Vec::new();
    while !rest.starts_with(']') {
        let (value, after) = first_value(rest)?;
        elements.push(value);
        rest = after.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    Some(elements)
}

fn valid(json: &str) -> Option<&str> {
    serde_json::from_str::<IgnoredAny>(json).ok()?;
    Some(json.trim())
}

/// The value at the beginning of `json`, and the text after it.
fn first_value(json: &str) -> Option<(&str, &str)> {
    let end = if json.starts_with(['{', '[', '"']) {
        match Scan::default().advance(json, Syntax::Json) {
            Scanned::End(end) => end,
            Scanned::More | Scanned::Broken(_) => return None,
        }
    } else {
        json.find([',', '}', ']', ' ', '\t', '\r', '\n'])?
    };
    Some(json.split_at(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bracket_ends_where_it_is_closed_and_not_in_a_string() {
        let mut scan = Scan::default();
        let text = r#"{"a": ["}\"", {}]} x"#;
        assert_eq!(scan.advance(&text[..9], Syntax::Json), Scanned::More);
        assert_eq!(scan.advance(text, Syntax::Json), Scanned::End(18));
    }

    #[test]
    fn what_cannot_be_there_is_found() {
        let broken = |text: &str, syntax| Scan::default().advance(text, syntax);
        assert_eq!(broken("{]", Syntax::Json), Scanned::Broken(1));
        assert_eq!(broken("[1, <", Syntax::Json), Scanned::Broken(4));
        assert_eq!(broken("[f(", Syntax::Json), Scanned::Broken(2));
        assert_eq!(broken("[f(a='[')]", Syntax::Python), Scanned::End(10));
        assert_eq!(broken("[é", Syntax::Python), Scanned::Broken(1));
    }

    #[test]
    fn members_and_elements_are_kept_as_they_are_written() {
        let json = r#" { "a" : {"b": [1.0]} , "c\u0041":1e400,"d":"},"} "#;
        let expected = [("a", r#"{"b": [1.0]}"#), ("cA", "1e400"), ("d", r#""},""#)];
        let expected = expected.map(|(key, value)| (key.to_owned(), value));
        assert_eq!(members(json).unwrap(), expected);
        assert_eq!(elements("[1, [2] ,{}]").unwrap(), ["1", "[2]", "{}"]);
        assert_eq!(
            (members("{}"), elements("[]")),
            (Some(vec![]), Some(vec![]))
        );
        for wrong in ["", "[1]", "{\"a\"}", "{\"a\": 1,}", "{} x"] {
            assert_eq!(members(wrong), None, "{wrong}");
        }
    }
}
