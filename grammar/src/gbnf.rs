//! llama.cpp's GBNF (SGLang and xgrammar call it EBNF), translated: to one regex where
//! no rule refers to itself, which our own machine then runs, else to Lark.
//!
//! In Lark what is regular becomes a terminal, and terminals match as much as they can,
//! as in every such lexer: `"a" [a-z]* "b"` within a recursive rule stays one terminal
//! and is exact, but a recursive rule followed by text that its own last terminal could
//! swallow is not.

use std::collections::HashMap;
use std::fmt::Write;

use crate::error::{GrammarError, first_words};
use crate::regex::MAX_REPETITION;

/// Alternatives of one rule.
const MAX_ALTERNATIVES: usize = 1_500;
/// Groups within groups, rules within rules, and operators on one item.
const MAX_NESTING: usize = 100;
/// Bytes of the regex that a grammar is inlined into.
const MAX_REGEX_BYTES: usize = 256 * 1024;

/// What a grammar became.
#[derive(Debug, PartialEq)]
pub(crate) enum Translated {
    Regex(String),
    Lark(String),
}

#[derive(Clone, Debug, PartialEq)]
enum Expr {
    Literal(String),
    /// The inside of `[...]`, for a regex.
    Class(String),
    Any,
    Rule(String),
    Sequence(Vec<Expr>),
    Choice(Vec<Expr>),
    Repeat(Box<Expr>, u32, Option<u32>),
}

/// # Errors
/// It cannot be read, names a rule that is not there, or is too large.
pub(crate) fn translate(text: &str) -> Result<Translated, GrammarError> {
    let rules = Parser::new(text).rules()?;
    let mut writer = Writer {
        rules: &rules,
        recursive: HashMap::new(),
        regexes: HashMap::new(),
        terminals: Vec::new(),
    };
    writer.find_recursive()?;
    if !writer.recursive["root"] {
        return Ok(Translated::Regex(writer.regex_of_rule("root")?));
    }
    Ok(Translated::Lark(writer.lark()?))
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
                return Err(self.error(format!("rule `{name}` is there twice")));
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
        // Each operator is a level of the tree that others then walk down.
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
                Some('\n') | None => return Err(self.error("a text is not closed")),
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
            _ => return Err(self.error("an escape is not known")),
        };
        let code = self.rest.get(..digits);
        let code = code.and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let Some(c) = code.and_then(char::from_u32) else {
            return Err(self.error("an escape names no character"));
        };
        self.rest = &self.rest[digits..];
        Ok(c)
    }
}

fn one_or(mut exprs: Vec<Expr>, many: impl FnOnce(Vec<Expr>) -> Expr) -> Expr {
    match exprs.len() {
        1 => exprs.remove(0),
        _ => many(exprs),
    }
}

fn push_code(out: &mut String, c: char) {
    // Writing to a string does not fail.
    let _ = write!(out, "\\x{{{:X}}}", c as u32);
}

struct Writer<'a> {
    rules: &'a HashMap<String, Expr>,
    recursive: HashMap<&'a str, bool>,
    /// Of rules that do not refer to themselves.
    regexes: HashMap<&'a str, String>,
    /// Regexes of Lark's terminals; the index is the name.
    terminals: Vec<String>,
}

/// How far the search for recursion has come with a rule.
#[derive(Clone, Copy, PartialEq)]
enum Seen {
    Open,
    Done,
}

impl<'a> Writer<'a> {
    /// Marks the rules from which a rule can be reached that refers to itself.
    fn find_recursive(&mut self) -> Result<(), GrammarError> {
        let mut seen = HashMap::new();
        for name in self.rules.keys() {
            self.visit(name, &mut seen, 0)?;
        }
        // A rule met while it was open marked only those on the way to it; what refers
        // to a marked one is marked here.
        loop {
            let found: Vec<&str> = self
                .rules
                .iter()
                .filter(|(name, expr)| {
                    !self.recursive[name.as_str()]
                        && references(expr).iter().any(|other| self.recursive[other])
                })
                .map(|(name, _)| name.as_str())
                .collect();
            if found.is_empty() {
                return Ok(());
            }
            for name in found {
                self.recursive.insert(name, true);
            }
        }
    }

    fn visit(
        &mut self,
        name: &'a str,
        seen: &mut HashMap<&'a str, Seen>,
        depth: usize,
    ) -> Result<(), GrammarError> {
        match seen.get(name) {
            Some(Seen::Done) => return Ok(()),
            Some(Seen::Open) => {
                self.recursive.insert(name, true);
                return Ok(());
            }
            None => {}
        }
        if depth > 4 * MAX_NESTING {
            return Err(GrammarError::too_complex(format!(
                "rules must be within at most {} others",
                4 * MAX_NESTING
            )));
        }
        let expr = self.rules.get(name).ok_or_else(|| {
            GrammarError::invalid(format!("the grammar has no rule `{}`", first_words(name)))
        })?;
        seen.insert(name, Seen::Open);
        for other in references(expr) {
            self.visit(other, seen, depth + 1)?;
        }
        seen.insert(name, Seen::Done);
        self.recursive.entry(name).or_insert(false);
        Ok(())
    }

    fn is_regular(&self, expr: &Expr) -> bool {
        references(expr).iter().all(|name| !self.recursive[name])
    }

    fn regex_of_rule(&mut self, name: &str) -> Result<String, GrammarError> {
        if let Some(regex) = self.regexes.get(name) {
            return Ok(regex.clone());
        }
        let (name, expr) = self
            .rules
            .get_key_value(name)
            .expect("references were checked");
        let mut regex = String::new();
        self.push_regex(expr, &mut regex)?;
        self.regexes.insert(name, regex.clone());
        Ok(regex)
    }

    fn push_regex(&mut self, expr: &Expr, out: &mut String) -> Result<(), GrammarError> {
        match expr {
            Expr::Literal(text) => text.chars().for_each(|c| push_code(out, c)),
            Expr::Class(class) => {
                out.push('[');
                out.push_str(class);
                out.push(']');
            }
            // llama.cpp's `.` is any character at all.
            Expr::Any => out.push_str("(?s:.)"),
            Expr::Rule(name) => {
                let regex = self.regex_of_rule(name)?;
                out.push_str("(?:");
                out.push_str(&regex);
                out.push(')');
            }
            Expr::Sequence(items) => {
                for item in items {
                    self.push_regex(item, out)?;
                }
            }
            Expr::Choice(branches) => {
                out.push_str("(?:");
                for (index, branch) in branches.iter().enumerate() {
                    if index > 0 {
                        out.push('|');
                    }
                    self.push_regex(branch, out)?;
                }
                out.push(')');
            }
            Expr::Repeat(item, least, most) => {
                out.push_str("(?:");
                self.push_regex(item, out)?;
                out.push(')');
                let _ = match most {
                    Some(most) => write!(out, "{{{least},{most}}}"),
                    None => write!(out, "{{{least},}}"),
                };
            }
        }
        if out.len() > MAX_REGEX_BYTES {
            return Err(GrammarError::too_complex(format!(
                "a grammar without recursion must be at most {MAX_REGEX_BYTES} bytes with its \
                 rules written out"
            )));
        }
        Ok(())
    }

    fn lark(&mut self) -> Result<String, GrammarError> {
        let mut names: Vec<&'a str> = self.recursive.keys().copied().collect();
        names.retain(|name| self.recursive[name]);
        // The same grammar gives the same text.
        names.sort_unstable();
        let numbers: HashMap<&str, usize> = names
            .iter()
            .enumerate()
            .map(|(i, name)| (*name, i))
            .collect();
        let mut out = format!("start: r{}\n", numbers["root"]);
        for name in &names {
            let mut body = String::new();
            let rules = self.rules;
            self.push_lark(&rules[*name], &numbers, &mut body)?;
            let _ = writeln!(out, "r{}: {body}", numbers[name]);
        }
        for (index, regex) in self.terminals.iter().enumerate() {
            let _ = writeln!(out, "T{index}: /{regex}/");
        }
        Ok(out)
    }

    fn push_lark(
        &mut self,
        expr: &Expr,
        numbers: &HashMap<&str, usize>,
        out: &mut String,
    ) -> Result<(), GrammarError> {
        if self.is_regular(expr) {
            return self.push_terminal(expr, out);
        }
        match expr {
            Expr::Rule(name) => {
                let _ = write!(out, "r{}", numbers[name.as_str()]);
            }
            Expr::Sequence(items) => {
                // Neighbours that are regular are one terminal together.
                let groups = items.chunk_by(|a, b| self.is_regular(a) && self.is_regular(b));
                let groups: Vec<Expr> = groups
                    .map(|group| one_or(group.to_vec(), Expr::Sequence))
                    .collect();
                for (index, group) in groups.iter().enumerate() {
                    if index > 0 {
                        out.push(' ');
                    }
                    self.push_lark(group, numbers, out)?;
                }
            }
            Expr::Choice(branches) => {
                out.push('(');
                for (index, branch) in branches.iter().enumerate() {
                    if index > 0 {
                        out.push_str(" | ");
                    }
                    self.push_lark(branch, numbers, out)?;
                }
                out.push(')');
            }
            Expr::Repeat(item, least, most) => {
                out.push('(');
                self.push_lark(item, numbers, out)?;
                let _ = match (least, most) {
                    (0, None) => write!(out, ")*"),
                    (1, None) => write!(out, ")+"),
                    (0, Some(1)) => write!(out, ")?"),
                    (least, Some(most)) => write!(out, "){{{least},{most}}}"),
                    (least, None) => write!(out, "){{{least},}}"),
                };
            }
            Expr::Literal(_) | Expr::Class(_) | Expr::Any => {
                unreachable!("they refer to nothing, so they are regular")
            }
        }
        Ok(())
    }

    fn push_terminal(&mut self, expr: &Expr, out: &mut String) -> Result<(), GrammarError> {
        let mut regex = String::new();
        self.push_regex(expr, &mut regex)?;
        if regex.is_empty() {
            out.push_str("\"\"");
            return Ok(());
        }
        let known = self.terminals.iter().position(|other| *other == regex);
        let index = known.unwrap_or_else(|| {
            self.terminals.push(regex);
            self.terminals.len() - 1
        });
        let _ = write!(out, "T{index}");
        Ok(())
    }
}

/// The rules that `expr` names.
fn references(expr: &Expr) -> Vec<&str> {
    match expr {
        Expr::Rule(name) => vec![name],
        Expr::Sequence(parts) | Expr::Choice(parts) => parts.iter().flat_map(references).collect(),
        Expr::Repeat(inner, ..) => references(inner),
        Expr::Literal(_) | Expr::Class(_) | Expr::Any => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Problem;

    fn regex(text: &str) -> ::regex::Regex {
        match translate(text).unwrap() {
            Translated::Regex(regex) => ::regex::Regex::new(&format!("^(?:{regex})$")).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn without_recursion_it_is_a_regex() {
        let date = regex(
            "# a date\nroot ::= year \"-\" two \"-\" two # the end\n\
             year ::= [0-9]{4}\ntwo ::= [0-9] [0-9]",
        );
        assert!(date.is_match("2026-11-21") && !date.is_match("2026-1-21"));
        let all =
            regex("root ::= (\"a\" | [^b-d\\]\\x20])+ .? \"\\n\\\"é\\u00e9\"?\n  | \"x\"{2,3}");
        for (text, matches) in [
            ("ae", true),
            ("", false),
            ("xx", true),
            ("c", false),
            ("a\n\"éé", true),
        ] {
            assert_eq!(all.is_match(text), matches, "{text:?}");
        }
    }

    #[test]
    fn with_recursion_it_is_lark_with_terminals() {
        let lark = translate(
            "root ::= \"[\" ws (root (\",\" root)*)? \"]\" ws | num\nws ::= \" \"?\nnum ::= [0-9]+",
        )
        .unwrap();
        let Translated::Lark(lark) = lark else {
            panic!("it refers to itself")
        };
        assert!(
            lark.starts_with("start: r0\nr0: (T0 (r0 (T1 r0)*)? T2 | T3)\n"),
            "{lark}"
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let refusal = |text| translate(text).expect_err(text);
        assert!(refusal("root ::= \"a\nx").message.contains("line"));
        assert!(
            refusal("root ::= \"a\"\nb ::= [")
                .message
                .contains("line 2")
        );
        assert!(refusal("a ::= \"a\"").message.contains("`root`"));
        assert!(refusal("root ::= nothing").message.contains("`nothing`"));
        assert!(refusal("root ::= \"a\"{3,2}").message.contains("below"));
        assert_eq!(
            refusal("root ::= \"a\"{1000000}").problem,
            Problem::TooComplex
        );
        assert_eq!(refusal("root ::= <think>").problem, Problem::Unsupported);
        let deep = format!("root ::= {}\"a\"{}", "(".repeat(5000), ")".repeat(5000));
        assert_eq!(refusal(&deep).problem, Problem::TooComplex);
        let stacked = format!("root ::= \"a\"{}", "*".repeat(100_000));
        assert_eq!(refusal(&stacked).problem, Problem::TooComplex);
        let mut doubling = "root ::= r0\n".to_owned();
        for i in 0..40 {
            doubling += &format!("r{i} ::= r{} r{}\n", i + 1, i + 1);
        }
        doubling += "r40 ::= \"a\"";
        assert_eq!(refusal(&doubling).problem, Problem::TooComplex);
    }
}
