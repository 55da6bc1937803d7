//! Reads patterns in the spellings of ECMA-262 and of Python's `re`.

mod atoms;

use self::atoms::Atoms;
use super::part::Part;
use crate::error::GrammarError;
use crate::regex::{MAX_PATTERN_BYTES, MAX_REPETITION};

/// The most levels of nested groups.
const MAX_NESTING: usize = 100;

/// Reads `pattern`.
///
/// # Errors
/// If the pattern cannot be read, is too large, or has a part that is not regular.
pub(crate) fn parse(pattern: &str) -> Result<Part, GrammarError> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(GrammarError::too_complex(format!(
            "a regex must be at most {MAX_PATTERN_BYTES} bytes long, got {}",
            pattern.len()
        )));
    }
    let (pattern, ignore_case) = match pattern.strip_prefix("(?i)") {
        Some(rest) => (rest, true),
        None => (pattern, false),
    };
    let mut parser = Parser {
        letters: pattern.chars().collect(),
        at: 0,
        atoms: Atoms { ignore_case },
    };
    let part = parser.either(0)?;
    match parser.peek() {
        None => Ok(part),
        Some(_) => Err(parser.wrong("a `)` has no `(`")),
    }
}

struct Parser {
    letters: Vec<char>,
    at: usize,
    atoms: Atoms,
}

impl Parser {
    fn peek(&self) -> Option<char> {
        self.letters.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let letter = self.peek()?;
        self.at += 1;
        Some(letter)
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = self.letters[self.at..]
            .iter()
            .take(text.len())
            .copied()
            .eq(text.chars());
        if found {
            self.at += text.len();
        }
        found
    }

    fn wrong(&self, what: &str) -> GrammarError {
        GrammarError::invalid(format!(
            "the regex cannot be read at character {}: {what}",
            self.at
        ))
    }

    fn either(&mut self, depth: usize) -> Result<Part, GrammarError> {
        if depth > MAX_NESTING {
            return Err(GrammarError::too_complex(format!(
                "a regex must have at most {MAX_NESTING} levels of nesting"
            )));
        }
        let mut branches = vec![self.concat(depth)?];
        while self.eat("|") {
            branches.push(self.concat(depth)?);
        }
        Ok(match branches.len() {
            1 => branches.swap_remove(0),
            _ => Part::Either(branches),
        })
    }

    fn concat(&mut self, depth: usize) -> Result<Part, GrammarError> {
        let mut parts = Vec::new();
        while self.peek().is_some_and(|letter| !"|)".contains(letter)) {
            let part = self.single(depth)?;
            let part = self.repeated(part)?;
            parts.push(part);
        }
        Ok(match parts.len() {
            1 => parts.swap_remove(0),
            _ => Part::Concat(parts),
        })
    }

    fn single(&mut self, depth: usize) -> Result<Part, GrammarError> {
        let Some(letter) = self.next() else {
            return Err(self.wrong("the end is missing"));
        };
        match letter {
            '^' => Ok(Part::Start),
            '$' => Ok(Part::End),
            '(' => self.group(depth),
            '[' => {
                let text = self.bracket()?;
                self.atoms.class(&text)
            }
            '\\' => self.escape(),
            '.' => self.atoms.class("[^\\n\\r\\u{2028}\\u{2029}]"),
            '*' | '+' | '?' => Err(self.wrong("a repetition has nothing to repeat")),
            letter => self.atoms.letter(letter),
        }
    }

    fn group(&mut self, depth: usize) -> Result<Part, GrammarError> {
        let look = |ahead, negative| Some((ahead, negative));
        let look = if self.eat("?:") {
            None
        } else if self.eat("?=") {
            look(true, false)
        } else if self.eat("?!") {
            look(true, true)
        } else if self.eat("?<=") {
            look(false, false)
        } else if self.eat("?<!") {
            look(false, true)
        } else if self.eat("?P=") || self.eat("?>") || self.eat("?(") {
            return Err(GrammarError::unsupported(
                "back-references, atomic groups and conditional groups are not supported in a regex",
            ));
        } else if self.eat("?P<") || self.eat("?<") {
            while self.next().is_some_and(|letter| letter != '>') {}
            None
        } else if self.peek() == Some('?') {
            return Err(GrammarError::unsupported(
                "flags within a regex are not supported, except for (?i) at its beginning",
            ));
        } else {
            None
        };
        let part = self.either(depth + 1)?;
        if !self.eat(")") {
            return Err(self.wrong("a `(` has no `)`"));
        }
        Ok(match look {
            None => part,
            Some((ahead, negative)) => Part::Look {
                ahead,
                negative,
                part: Box::new(part),
            },
        })
    }

    /// `part` with the repetitions that follow it.
    fn repeated(&mut self, part: Part) -> Result<Part, GrammarError> {
        let from = self.at;
        let (min, max) = match self.next() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => match self.bounds()? {
                Some(bounds) => bounds,
                None => {
                    // ECMA-262, annex B: a brace that begins no repetition stands for itself.
                    self.at = from;
                    return Ok(part);
                }
            },
            _ => {
                self.at = from;
                return Ok(part);
            }
        };
        if self.eat("+") {
            return Err(GrammarError::unsupported(
                "possessive repetitions are not supported in a regex",
            ));
        }
        // A lazy repetition matches the same texts.
        self.eat("?");
        if self.peek().is_some_and(|letter| "*+?".contains(letter)) {
            return Err(self.wrong("a repetition follows a repetition"));
        }
        let count = max.unwrap_or(min);
        if count > MAX_REPETITION {
            return Err(GrammarError::too_complex(format!(
                "a regex repetition count must be at most {MAX_REPETITION}, got {count}"
            )));
        }
        if max.is_some_and(|max| max < min) {
            return Err(self.wrong("a repetition ends before it begins"));
        }
        Ok(Part::Repeat {
            part: Box::new(part),
            min,
            max,
        })
    }

    /// The bounds behind a `{`; `None` if what follows is no repetition.
    fn bounds(&mut self) -> Result<Option<(u32, Option<u32>)>, GrammarError> {
        let min = self.number();
        let comma = self.eat(",");
        let max = self.number();
        let closed = self.eat("}");
        match (min, comma, max, closed) {
            (Some(min), false, None, true) => Ok(Some((min, Some(min)))),
            (Some(min), true, max, true) => Ok(Some((min, max))),
            (None, true, Some(_), true) => Err(GrammarError::unsupported(
                "`{,n}` is a repetition in Python and a text in ECMA-262: write {0,n}",
            )),
            _ => Ok(None),
        }
    }

    fn number(&mut self) -> Option<u32> {
        let from = self.at;
        while self.peek().is_some_and(|letter| letter.is_ascii_digit()) {
            self.at += 1;
        }
        let digits: String = self.letters[from..self.at].iter().collect();
        match digits.is_empty() {
            true => None,
            false => Some(digits.parse().unwrap_or(u32::MAX)),
        }
    }

    fn escape(&mut self) -> Result<Part, GrammarError> {
        match self.peek() {
            None => Err(self.wrong("a `\\` is at the end")),
            Some('A') => self.anchor(Part::Start),
            Some('Z' | 'z') => self.anchor(Part::End),
            Some('b' | 'B') => Err(GrammarError::unsupported(
                "word boundaries are not supported in a regex",
            )),
            Some('1'..='9' | 'k') => Err(GrammarError::unsupported(
                "back-references are not supported in a regex",
            )),
            Some(_) => {
                let text = self.escaped()?;
                self.atoms.class(&format!("[{text}]"))
            }
        }
    }

    fn anchor(&mut self, part: Part) -> Result<Part, GrammarError> {
        self.at += 1;
        Ok(part)
    }

    /// The escape behind a `\`, in Rust's spelling within brackets.
    fn escaped(&mut self) -> Result<String, GrammarError> {
        let Some(letter) = self.next() else {
            return Err(self.wrong("a `\\` is at the end"));
        };
        Ok(match letter {
            'd' => "0-9".to_owned(),
            'w' => "0-9A-Za-z_".to_owned(),
            'D' => "[^0-9]".to_owned(),
            'W' => "[^0-9A-Za-z_]".to_owned(),
            's' | 'S' | 't' | 'n' | 'r' | 'f' | 'v' => format!("\\{letter}"),
            'a' => "\\x07".to_owned(),
            '0' => "\\x00".to_owned(),
            'b' => "\\x08".to_owned(),
            'c' => {
                let control = self.next().filter(char::is_ascii_alphabetic);
                let control = control.ok_or_else(|| self.wrong("`\\c` needs a letter"))?;
                atoms::escaped(u32::from(control) % 32)
            }
            'x' => atoms::escaped(self.hexadecimal(2)?),
            'u' if self.peek() == Some('{') => {
                self.at += 1;
                let mut digits = String::new();
                while let Some(digit) = self.next().filter(|&letter| letter != '}') {
                    digits.push(digit);
                }
                let code = u32::from_str_radix(&digits, 16);
                atoms::escaped(code.map_err(|_| self.wrong("`\\u{` needs digits"))?)
            }
            'u' => {
                let high = self.hexadecimal(4)?;
                let is_high = (0xd800..0xdc00).contains(&high);
                let low = (is_high && self.eat("\\u"))
                    .then(|| self.hexadecimal(4))
                    .transpose()?;
                atoms::escaped(match low {
                    Some(low @ 0xdc00..0xe000) => {
                        0x10000 + (high - 0xd800) * 0x400 + (low - 0xdc00)
                    }
                    _ => high,
                })
            }
            'p' | 'P' => {
                let from = self.at;
                if !self.eat("{") {
                    return Err(self.wrong("`\\p` needs a property in braces"));
                }
                while self.next().is_some_and(|letter| letter != '}') {}
                let name: String = self.letters[from..self.at].iter().collect();
                format!("\\{letter}{name}")
            }
            letter if letter.is_ascii_alphanumeric() => {
                return Err(self.wrong("the letter behind a `\\` means nothing"));
            }
            letter => atoms::escaped(letter.into()),
        })
    }

    fn hexadecimal(&mut self, digits: usize) -> Result<u32, GrammarError> {
        let text: String = self.letters[self.at..].iter().take(digits).collect();
        let code = u32::from_str_radix(&text, 16).ok();
        let code = code.filter(|_| text.len() == digits && !text.starts_with('+'));
        self.at += digits.min(self.letters.len() - self.at);
        code.ok_or_else(|| self.wrong("an escape needs hexadecimal digits"))
    }

    /// The class behind a `[`, in Rust's spelling.
    fn bracket(&mut self) -> Result<String, GrammarError> {
        let mut text = String::from("[");
        if self.eat("^") {
            text.push('^');
        }
        let from = self.at;
        loop {
            let before = self.at;
            match self.next() {
                None => return Err(self.wrong("a `[` has no `]`")),
                // ECMA-262 has empty classes; in Python the bracket stands for itself.
                Some(']') if before == from => {
                    return Err(GrammarError::unsupported(
                        "`[]` means different things in ECMA-262 and Python: escape the bracket",
                    ));
                }
                Some(']') => break,
                Some('\\') => text.push_str(&self.escaped()?),
                Some('-') => {
                    // A dash at the ends, or beside a class such as \w, stands for itself.
                    let beside_class = |at: usize| {
                        let two = (self.letters.get(at), self.letters.get(at + 1));
                        matches!(
                            two,
                            (
                                Some('\\'),
                                Some('d' | 'D' | 'w' | 'W' | 's' | 'S' | 'p' | 'P')
                            )
                        )
                    };
                    let at_end = before == from || self.peek() == Some(']');
                    let behind = before >= 2 && before - 2 >= from && beside_class(before - 2);
                    let literal = at_end || behind || beside_class(self.at);
                    text.push_str(if literal { "\\-" } else { "-" });
                }
                Some(letter) => text.push_str(&atoms::escaped(letter.into())),
            }
        }
        text.push(']');
        Ok(text)
    }
}
