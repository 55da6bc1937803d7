//! Grammars in llguidance's dialect of Lark before they are compiled: the bounds that its
//! compiler has not, and the JSON Schemas within them, which are under the same rules as
//! those that come alone.

use serde_json::Value;

use crate::compile::Whitespace;
use crate::error::{GrammarError, first_words};
use crate::regex::MAX_REPETITION;
use crate::schema::{self, Costs};

/// Rules and terminals: the compiler goes down from each to those it names, and 2,000 of
/// them take 100 MB of its stack.
const MAX_RULES: usize = 2_000;
/// Brackets within brackets, conditions of `%if` among them.
const MAX_NESTING: usize = 64;
/// Bytes of one literal: forcing text takes more than linear time.
const MAX_LITERAL_BYTES: usize = 8_192;
/// `&` and `~`: the states of what they join multiply.
const MAX_CONJUNCTIONS: usize = 8;
/// Schemas within one grammar.
const MAX_SCHEMAS: usize = 100;

/// `text` as llguidance is to read it: its schemas are laid out by `whitespace`.
///
/// # Errors
/// A bound, a schema that cannot be enforced, or text that is no Lark.
pub(crate) fn prepare(text: &str, whitespace: Whitespace) -> Result<String, GrammarError> {
    let mut scanner = Scanner::new(text);
    let mut out = String::with_capacity(text.len());
    let (mut costs, mut schemas) = (Costs::default(), 0);
    while let Some(token) = scanner.next()? {
        match token {
            Token::Json => {
                out.push_str(scanner.taken());
                let value = scanner.json()?;
                schemas += 1;
                if schemas > MAX_SCHEMAS {
                    return Err(too_many("schemas", MAX_SCHEMAS, schemas));
                }
                let schema = schema::prepare_beside(&value, whitespace, &mut costs)?;
                out.push(' ');
                out.push_str(&schema.to_string());
                scanner.drop_taken();
            }
            Token::Options => {
                scanner.json()?;
            }
            Token::Text => {}
        }
    }
    out.push_str(scanner.taken());
    Ok(out)
}

/// What the caller has to see of a grammar's text.
enum Token {
    /// `%json`, before its schema.
    Json,
    /// `%llguidance` or `%regex`, before its JSON.
    Options,
    Text,
}

struct Scanner<'a> {
    text: &'a str,
    /// Where it is.
    at: usize,
    /// All before it was taken.
    taken: usize,
    /// Open brackets.
    open: Vec<u8>,
    /// What came last, spaces and comments aside: a bracket or sign, `n` for a name, `0`
    /// for others.
    last: u8,
    rules: usize,
    conjunctions: usize,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str) -> Self {
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

    /// The text since the last call.
    fn taken(&mut self) -> &'a str {
        let from = std::mem::replace(&mut self.taken, self.at);
        &self.text[from..self.at]
    }

    fn drop_taken(&mut self) {
        self.taken = self.at;
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn error(&self, what: &str) -> GrammarError {
        let line = self.text[..self.at].matches('\n').count() + 1;
        GrammarError::invalid(format!("the grammar, line {line}: {what}"))
    }

    fn next(&mut self) -> Result<Option<Token>, GrammarError> {
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
            // A rule's mark leaves its name the first of the line.
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

    /// A number; where it counts repetitions it is bounded.
    fn number(&mut self) -> Result<(), GrammarError> {
        let rest = self.rest();
        let end = rest.find(|c| !is_digit(c)).unwrap_or(rest.len());
        self.at += end;
        let counts = match self.last {
            b'{' | b'~' => true,
            // The upper end of `~1..9`, and of `{1,9}`.
            b'.' => true,
            b',' => self.open.last() == Some(&b'{'),
            _ => false,
        };
        match counts {
            true => check_count(&rest[..end]),
            false => Ok(()),
        }
    }

    /// The JSON that is next.
    fn json(&mut self) -> Result<Value, GrammarError> {
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

/// The name that `text` begins with.
fn word(text: &str) -> &str {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    &text[..text.find(|c| !is_part(c)).unwrap_or(text.len())]
}

fn too_many(what: &str, most: usize, given: usize) -> GrammarError {
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

/// Counts of a regex within a grammar: `{n}`, `{n,}`, `{n,m}`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Problem;

    fn natural(text: &str) -> Result<String, GrammarError> {
        prepare(text, Whitespace::Natural)
    }

    #[test]
    fn schemas_within_a_grammar_are_under_the_rules_of_schemas() {
        let text = "start: \"x\" %json {\"type\": \"null\", \"title\": \"}\"} \"y\" # %json 1\n";
        let given = natural(text).unwrap();
        assert!(
            given.starts_with("start: \"x\" %json {\"type\":\"null\""),
            "{given}"
        );
        assert!(given.contains("whitespace_flexible\":false"), "{given}");
        assert!(given.ends_with("} \"y\" # %json 1\n"), "{given}");
        let nested = "start: %lark {\nstart: %json {\"not\": {}}\n}";
        assert_eq!(natural(nested).unwrap_err().problem, Problem::Unsupported);
        let lenient = "start: %json {\"x-guidance\": {\"lenient\": true}}";
        assert_eq!(natural(lenient).unwrap_err().problem, Problem::Unsupported);
        let in_text = "start: \"%json {\" /%json {/ <|%json|>\n// %json {\n";
        assert_eq!(natural(in_text).unwrap(), in_text);
    }

    #[test]
    fn every_bound_is_named_with_what_was_given() {
        let refusal = |text: String| {
            let error = natural(&text).unwrap_err();
            assert_eq!(error.problem, Problem::TooComplex, "{error}");
            error.message
        };
        let rules: String = (0..2_001).map(|i| format!("r{i}: r{}\n", i + 1)).collect();
        assert_eq!(
            refusal(rules),
            "a grammar must have at most 2000 rules and terminals, got 2001"
        );
        let nots = format!(
            "x::_: \"a\" %if {}eq(_,1){}",
            "not(".repeat(90),
            ")".repeat(90)
        );
        assert_eq!(
            refusal(nots),
            "a grammar must have at most 64 levels of brackets, got 65"
        );
        assert_eq!(
            refusal(format!("start: \"{}\"", "a".repeat(8_193))),
            "a literal of a grammar must be at most 8192 bytes long, got 8193"
        );
        assert_eq!(
            refusal(format!("start: A\nA: /a/{}", " & /b/".repeat(30))),
            "a grammar must have at most 8 `&` and `~`, got 9"
        );
        for counted in [
            "\"a\"{20000}",
            "\"a\"{1, 20000}",
            "\"a\"~1..20000",
            "/a{20000}/",
        ] {
            assert_eq!(
                refusal(format!("start: {counted}")),
                "a repetition count must be at most 10000, got 20000"
            );
        }
    }

    #[test]
    fn what_only_looks_like_too_much_passes() {
        for text in [
            "start: \"{99999}\" x::99999\nx::_: \"a\" %if eq(_, 99999)",
            "start[max_tokens=99999]: /[0-9]+/\n",
            "start: \"a\"~3 | \"b\"\n  | \"c\" // \"\n",
        ] {
            assert_eq!(natural(text).unwrap(), text);
        }
        let longer: String = (0..900)
            .map(|i| format!("r{i}: \"a\"\n  | r{i}\n"))
            .collect();
        assert!(natural(&longer).is_ok());
    }

    #[test]
    fn what_is_no_lark_is_refused_with_its_line() {
        for text in [
            "start: \"a",
            "start: \"b\"\nx: /a",
            "start: <a",
            "start: %json",
        ] {
            assert_eq!(
                natural(text).unwrap_err().problem,
                Problem::Invalid,
                "{text}"
            );
        }
        let error = natural("start: x\nx: \"").unwrap_err();
        assert!(error.message.contains("line 2"), "{error}");
        let warm = natural("start[temperature=0.5]: \"a\"").unwrap_err();
        assert_eq!(warm.problem, Problem::Unsupported);
    }
}
