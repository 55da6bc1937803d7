//! Parses GBNF.

use std::collections::HashMap;

use super::expr::{Expr, MAX_NESTING, one_or, push_code};
use crate::error::{GrammarError, first_words};
use crate::regex::MAX_REPETITION;

/// The most alternatives of one rule.
const MAX_ALTERNATIVES: usize = 1_500;

/// Reads the rules of a grammar, by name. One of them is `root`.
///
/// # Errors
/// If the text is not GBNF, has no rule `root`, or exceeds a bound.
pub(super) fn rules(text: &str) -> Result<HashMap<String, Expr>, GrammarError> {
    Parser::new(text).rules()
}

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            text,
            rest: text,
            depth: 0,
        }
    }

    fn error(&self, what: impl std::fmt::Display) -> GrammarError {
        let line = self.text[..self.text.len() - self.rest.len()]
            .matches('\n')
            .count();
        GrammarError::invalid(format!("the grammar, line {}: {what}", line + 1))
    }

    /// Skips white space, line ends and comments.
    fn skip(&mut self) {
        loop {
            self.rest = self.rest.trim_start();
            match self.rest.strip_prefix('#') {
                Some(comment) => self.rest = comment.find('\n').map_or("", |at| &comment[at..]),
                None => return,
            }
        }
    }

    fn eat(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn next_char(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn name(&mut self) -> Option<String> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let end = self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        if name.is_empty() {
            return None;
        }
        self.rest = rest;
        Some(name.to_owned())
    }

    fn rules(mut self) -> Result<HashMap<String, Expr>, GrammarError> {
        let mut rules = HashMap::new();
        loop {
            self.skip();
            if self.rest.is_empty() {
                break;
            }
            let name = self
                .name()
                .ok_or_else(|| self.error("a rule's name was expected"))?;
            self.skip();
            if !self.eat("::=") {
                return Err(self.error("`::=` was expected"));
            }
            let expr = self.choice()?;
            if rules.insert(name.clone(), expr).is_some() {
                let name = first_words(&name);
                return Err(self.error(format!("rule `{name}` is defined twice")));
            }
        }
        if !rules.contains_key("root") {
            return Err(GrammarError::invalid("the grammar has no rule `root`"));
        }
        Ok(rules)
    }

    fn choice(&mut self) -> Result<Expr, GrammarError> {
        self.depth += 1;
        if self.depth > MAX_NESTING {
            return Err(GrammarError::too_complex(format!(
                "a grammar must have at most {MAX_NESTING} levels of nesting"
            )));
        }
        let mut branches = vec![self.sequence()?];
        while self.eat("|") {
            branches.push(self.sequence()?);
        }
        self.depth -= 1;
        if branches.len() > MAX_ALTERNATIVES {
            return Err(GrammarError::too_complex(format!(
                "a rule must have at most {MAX_ALTERNATIVES} alternatives, got {}",
                branches.len()
            )));
        }
        Ok(one_or(branches, Expr::Choice))
    }

    fn sequence(&mut self) -> Result<Expr, GrammarError> {
        let mut items = Vec::new();
        loop {
            self.skip();
            let Some(item) = self.item()? else {
                return Ok(one_or(items, Expr::Sequence));
            };
            items.push(self.repeated(item)?);
        }
    }

    /// The next item of a sequence; `None` at its end.
    fn item(&mut self) -> Result<Option<Expr>, GrammarError> {
        let item = match self.rest.chars().next() {
            Some('"') => self.literal()?,
            Some('[') => self.class()?,
            Some('.') => {
                self.next_char();
                Expr::Any
            }
            Some('(') => {
                self.next_char();
                let inner = self.choice()?;
                if !self.eat(")") {
                    return Err(self.error("`)` was expected"));
                }
                inner
            }
            Some('<') => {
                return Err(GrammarError::unsupported(
                    "tokens by name or number (<...>) are not supported in a GBNF grammar",
                ));
            }
            _ => {
                let before = self.rest;
                let Some(name) = self.name() else {
                    return Ok(None);
                };
                self.skip();
                if self.rest.starts_with("::=") {
                    // The next rule's name.
                    self.rest = before;
                    return Ok(None);
                }
                Expr::Rule(name)
            }
        };
        Ok(Some(item))
    }

    fn repeated(&mut self, item: Expr) -> Result<Expr, GrammarError> {
        let mut item = item;
        // Each operator adds a level to the tree, which other functions traverse recursively.
        for _ in 0..=MAX_NESTING {
            let (least, most) = if self.eat("*") {
                (0, None)
            } else if self.eat("+") {
                (1, None)
            } else if self.eat("?") {
                (0, Some(1))
            } else if self.eat("{") {
                self.counts()?
            } else {
                return Ok(item);
            };
            item = Expr::Repeat(Box::new(item), least, most);
        }
        Err(GrammarError::too_complex(format!(
            "an item must have at most {MAX_NESTING} repetition operators"
        )))
    }

    fn counts(&mut self) -> Result<(u32, Option<u32>), GrammarError> {
        self.skip();
        let least = self.count()?;
        self.skip();
        let most = if self.eat(",") {
            self.skip();
            if self.rest.starts_with('}') {
                None
            } else {
                Some(self.count()?)
            }
        } else {
            Some(least)
        };
        self.skip();
        if !self.eat("}") {
            return Err(self.error("`}` was expected"));
        }
        if most.is_some_and(|most| most < least) {
            return Err(self.error("a repetition's upper count is below its lower"));
        }
        Ok((least, most))
    }

    fn count(&mut self) -> Result<u32, GrammarError> {
        let end = self
            .rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        if digits.is_empty() {
            return Err(self.error("a count was expected"));
        }
        self.rest = rest;
        match digits.parse() {
            Ok(count) if count <= MAX_REPETITION => Ok(count),
            _ => Err(GrammarError::too_complex(format!(
                "a repetition count must be at most {MAX_REPETITION}, got {}",
                first_words(digits)
            ))),
        }
    }

    fn literal(&mut self) -> Result<Expr, GrammarError> {
        self.next_char();
        let mut text = String::new();
        loop {
            match self.next_char() {
                Some('"') => return Ok(Expr::Literal(text)),
                Some('\\') => text.push(self.escape()?),
                Some('\n') | None => return Err(self.error("a literal is not closed")),
                Some(c) => text.push(c),
            }
        }
    }

    fn class(&mut self) -> Result<Expr, GrammarError> {
        self.next_char();
        let mut class = String::new();
        if self.eat("^") {
            class.push('^');
        }
        let empty = class.len();
        loop {
            let from = match self.next_char() {
                Some(']') => break,
                Some('\\') => self.escape()?,
                Some('\n') | None => return Err(self.error("a class is not closed")),
                Some(c) => c,
            };
            push_code(&mut class, from);
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.next_char();
                let to = match self.next_char() {
                    Some('\\') => self.escape()?,
                    Some(c) => c,
                    None => return Err(self.error("a class is not closed")),
                };
                if to < from {
                    return Err(self.error("a range ends before it begins"));
                }
                class.push('-');
                push_code(&mut class, to);
            }
        }
        match class.len() == empty {
            true => Err(self.error("a class is empty")),
            false => Ok(Expr::Class(class)),
        }
    }

    fn escape(&mut self) -> Result<char, GrammarError> {
        let digits = match self.next_char() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(c @ ('"' | '\\' | '[' | ']' | '-' | '^' | '/' | '.' | '\'')) => return Ok(c),
            _ => return Err(self.error("unknown escape sequence")),
        };
        let code = self.rest.get(..digits);
        let code = code.and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let Some(c) = code.and_then(char::from_u32) else {
            return Err(self.error("an escape sequence names no character"));
        };
        self.rest = &self.rest[digits..];
        Ok(c)
    }
}
