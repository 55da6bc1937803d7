//! Writes GBNF rules as a regex or as Lark.

use std::collections::HashMap;
use std::fmt::Write;

use super::expr::{Expr, MAX_NESTING, one_or, push_code};
use crate::error::{GrammarError, first_words};

/// The most bytes of the regex of a grammar whose rules are written out.
const MAX_REGEX_BYTES: usize = 256 * 1024;

/// A translated grammar.
#[derive(Debug, PartialEq)]
pub(crate) enum Translated {
    Regex(String),
    Lark(String),
}

/// Writes one regex if no rule that can be reached from `root` refers to itself, and Lark
/// otherwise.
pub(super) fn translated(rules: &HashMap<String, Expr>) -> Result<Translated, GrammarError> {
    let mut writer = Writer {
        rules,
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

struct Writer<'a> {
    rules: &'a HashMap<String, Expr>,
    /// True if a rule that refers to itself can be reached from the rule.
    recursive: HashMap<&'a str, bool>,
    /// The regexes of rules that are not recursive.
    regexes: HashMap<&'a str, String>,
    /// The regexes of Lark's terminals; terminal `i` has the name `T{i}`.
    terminals: Vec<String>,
}

/// The state of a rule in the search for recursion.
#[derive(Clone, Copy, PartialEq)]
enum Seen {
    /// The rules that it names are being visited.
    Open,
    Done,
}

impl<'a> Writer<'a> {
    /// Marks the rules from which a rule that refers to itself can be reached.
    fn find_recursive(&mut self) -> Result<(), GrammarError> {
        let mut seen = HashMap::new();
        for name in self.rules.keys() {
            self.visit(name, &mut seen, 0)?;
        }
        // The visits marked only rules that were reached again while they were open. Rules that
        // refer to a marked rule are marked here.
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
                "rules must be nested at most {} levels deep",
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
            // In llama.cpp, `.` matches line ends too.
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
        // Sorted, so that the same grammar always gives the same text.
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
                // Regular neighbours become one terminal.
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
                unreachable!("these expressions name no rules, so they are regular")
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
