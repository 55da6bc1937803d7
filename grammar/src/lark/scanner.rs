//! Splits a grammar in Lark into the tokens that matter here, and checks bounds on the way.

use serde_json::Value;

use crate::error::{GrammarError, first_words};
use crate::regex::MAX_REPETITION;

/// The most rules and terminals. The compiler recurses from each to the rules that it names,
/// and 2,000 of them take 100 MB of its stack.
const MAX_RULES: usize = 2_000;
/// The most levels of nested brackets, including those of the conditions of `%if`.
const MAX_NESTING: usize = 64;
/// The most bytes of one literal. The time to force a text grows faster than its length.
const MAX_LITERAL_BYTES: usize = 8_192;
/// The most operators `&` and `~`. The states of the operands multiply.
const MAX_CONJUNCTIONS: usize = 8;

/// The next token of a grammar's text.
pub(super) enum Token {
    /// `%json`; its schema comes next.
    Json,
    /// `%llguidance` or `%regex`; its JSON comes next.
    Options,
    /// Anything else.
    Text,
}

pub(super) struct Scanner<'a> {
    text: &'a str,
    /// The position of the scanner.
    at: usize,
    /// The end of the text that `taken` has returned.
    taken: usize,
    /// Open brackets.
    open: Vec<u8>,
    /// The latest token, other than spaces and comments: a bracket or operator itself, `n` for
    /// a name, `0` for others.
    last: u8,
    rules: usize,
    conjunctions: usize,
}

impl<'a> Scanner<'a> {
    pub fn new(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            taken: 0,
            open: Vec::new(),
            last: b'\n',
            rules: 0,
            conjunctions: 0,
        }
    }

    /// The text that was scanned since the last call.
    pub fn taken(&mut self) -> &'a str {
        let from = std::mem::replace(&mut self.taken, self.at);
        &self.text[from..self.at]
    }

    /// Skips the text that was scanned since the last call of `taken`.
    pub fn drop_taken(&mut self) {
        self.taken = self.at;
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// An error with the current line.
    fn error(&self, what: &str) -> GrammarError {
        let line = self.text[..self.at].matches('\n').count() + 1;
        GrammarError::invalid(format!("the grammar, line {line}: {what}"))
    }

    /// The next token; `None` at the end of the text.
    ///
    /// # Errors
    /// If the text is not Lark or exceeds a bound.
    pub fn next(&mut self) -> Result<Option<Token>, GrammarError> {
        let rest = self.rest();
        let Some(&byte) = rest.as_bytes().first() else {
            return Ok(None);
        };
        let mut last = byte;
        let mut token = Token::Text;
        match byte {
            b' ' | b'\t' | b'\r' => {
                self.at += 1;
                return Ok(Some(token));
            }
            b'#' => {
                self.skip_line();
                return Ok(Some(token));
            }
            b'/' if rest.starts_with("//") => {
                self.skip_line();
                return Ok(Some(token));
            }
            b'"' => {
                let inner = self.quoted(b'"')?;
                too_long("a literal", inner.len())?;
                last = b'0';
            }
            b'/' => {
                let inner = self.quoted(b'/')?;
                check_counts(inner)?;
                last = b'0';
            }
            b'<' => {
                let end = rest[1..].find(|c: char| c == '>' || c == '<' || c.is_whitespace());
                match end {
                    Some(end) if rest.as_bytes()[end + 1] == b'>' => self.at += end + 2,
                    _ => return Err(self.error("a special token is not closed")),
                }
                last = b'0';
            }
            b'(' | b'[' | b'{' => {
                self.open.push(byte);
                if self.open.len() > MAX_NESTING {
                    return Err(too_many("levels of brackets", MAX_NESTING, self.open.len()));
                }
                self.at += 1;
            }
            b')' | b']' | b'}' => {
                self.open.pop();
                self.at += 1;
            }
            b'0'..=b'9' => {
                self.number()?;
                last = b'0';
            }
            b'%' => {
                let word = word(&rest[1..]);
                self.at += 1 + word.len();
                token = match word {
                    "json" => Token::Json,
                    "llguidance" | "regex" => Token::Options,
                    _ => Token::Text,
                };
                last = b'%';
            }
            b'&' | b'~' => {
                self.at += 1;
                let is_count = byte == b'~' && self.rest().trim_start().starts_with(is_digit);
                self.conjunctions += usize::from(!is_count);
                if self.conjunctions > MAX_CONJUNCTIONS {
                    let given = self.conjunctions;
                    return Err(too_many("`&` and `~`", MAX_CONJUNCTIONS, given));
                }
            }
            _ if byte.is_ascii_alphabetic() || byte == b'_' => {
                let word = word(rest);
                if word == "temperature" && self.open.last() == Some(&b'[') {
                    return Err(GrammarError::unsupported(
                        "`temperature` of a rule is not supported: give it with the request",
                    ));
                }
                self.at += word.len();
                if self.last == b'\n' {
                    self.rules += 1;
                    if self.rules > MAX_RULES {
                        return Err(too_many("rules and terminals", MAX_RULES, self.rules));
                    }
                }
                last = b'n';
            }
            // After a modifier of a rule, the name still counts as the first in its line.
            b'!' | b'?' if self.last == b'\n' => {
                self.at += 1;
                last = b'\n';
            }
            _ => self.at += rest.chars().next().map_or(1, char::len_utf8),
        }
        self.last = last;
        Ok(Some(token))
    }

    fn skip_line(&mut self) {
        self.at += self.rest().find('\n').unwrap_or(self.rest().len());
    }

    /// The inside of a literal or a regex.
    fn quoted(&mut self, quote: u8) -> Result<&'a str, GrammarError> {
        let rest = self.rest();
        let mut escaped = false;
        for (index, byte) in rest.bytes().enumerate().skip(1) {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'\n' if quote == b'"' => break,
                _ if byte == quote => {
                    self.at += index + 1;
                    return Ok(&rest[1..index]);
                }
                _ => {}
            }
        }
        Err(self.error("a literal or a regex is not closed"))
    }

    /// Scans a number, and checks its bound if it is a repetition count.
    fn number(&mut self) -> Result<(), GrammarError> {
        let rest = self.rest();
        let end = rest.find(|c| !is_digit(c)).unwrap_or(rest.len());
        self.at += end;
        let counts = match self.last {
            // `.` precedes the upper end of `~1..9`, and `,` that of `{1,9}`.
            b'{' | b'~' | b'.' => true,
            b',' => self.open.last() == Some(&b'{'),
            _ => false,
        };
        match counts {
            true => check_count(&rest[..end]),
            false => Ok(()),
        }
    }

    /// Reads the JSON value that comes next.
    ///
    /// # Errors
    /// If there is no JSON.
    pub fn json(&mut self) -> Result<Value, GrammarError> {
        let mut values = serde_json::Deserializer::from_str(self.rest()).into_iter::<Value>();
        let Some(Ok(value)) = values.next() else {
            return Err(self.error("JSON was expected"));
        };
        self.at += values.byte_offset();
        self.last = b'0';
        Ok(value)
    }
}

fn is_digit(c: char) -> bool {
    c.is_ascii_digit()
}

/// The name at the beginning of `text`.
fn word(text: &str) -> &str {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    &text[..text.find(|c| !is_part(c)).unwrap_or(text.len())]
}

pub(super) fn too_many(what: &str, most: usize, given: usize) -> GrammarError {
    GrammarError::too_complex(format!(
        "a grammar must have at most {most} {what}, got {given}"
    ))
}

fn too_long(what: &str, bytes: usize) -> Result<(), GrammarError> {
    if bytes <= MAX_LITERAL_BYTES {
        return Ok(());
    }
    Err(GrammarError::too_complex(format!(
        "{what} of a grammar must be at most {MAX_LITERAL_BYTES} bytes long, got {bytes}"
    )))
}

/// Checks the repetition counts of a regex: `{n}`, `{n,}`, `{n,m}`.
fn check_counts(regex: &str) -> Result<(), GrammarError> {
    for (at, _) in regex.match_indices('{') {
        let rest = &regex[at + 1..];
        let inner = &rest[..rest.find('}').unwrap_or(0)];
        if !inner.is_empty() && inner.chars().all(|c| is_digit(c) || c == ',' || c == ' ') {
            let mut counts = inner.split(',').map(str::trim).filter(|c| !c.is_empty());
            counts.try_for_each(check_count)?;
        }
    }
    Ok(())
}

fn check_count(digits: &str) -> Result<(), GrammarError> {
    match digits.parse::<u32>() {
        Ok(count) if count <= MAX_REPETITION => Ok(()),
        _ => Err(GrammarError::too_complex(format!(
            "a repetition count must be at most {MAX_REPETITION}, got {}",
            first_words(digits)
        ))),
    }
}
