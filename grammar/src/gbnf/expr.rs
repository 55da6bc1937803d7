//! The expressions of GBNF rules.

use std::fmt::Write;

/// The most levels of groups within groups and of rules within rules, and the most operators
/// on one item.
pub(super) const MAX_NESTING: usize = 100;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr {
    Literal(String),
    /// The inside of `[...]`, in the syntax of regexes.
    Class(String),
    /// Any character.
    Any,
    /// A reference to the rule of this name.
    Rule(String),
    Sequence(Vec<Expr>),
    Choice(Vec<Expr>),
    /// The least and the greatest count of repetitions.
    Repeat(Box<Expr>, u32, Option<u32>),
}

/// The only expression of `exprs`, or all of them joined by `many`.
pub(super) fn one_or(mut exprs: Vec<Expr>, many: impl FnOnce(Vec<Expr>) -> Expr) -> Expr {
    match exprs.len() {
        1 => exprs.remove(0),
        _ => many(exprs),
    }
}

/// Appends a character to a regex, as its code.
pub(super) fn push_code(out: &mut String, c: char) {
    // Writing to a string does not fail.
    let _ = write!(out, "\\x{{{:X}}}", c as u32);
}
