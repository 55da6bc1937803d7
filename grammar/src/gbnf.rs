//! Translates llama.cpp's GBNF (SGLang and xgrammar call it EBNF): to one regex if no rule
//! refers to itself, which our own machine then runs, and to Lark otherwise.
//!
//! In Lark, regular parts become terminals, and a terminal matches as much text as it can, as
//! in every lexer of this kind. `"a" [a-z]* "b"` within a recursive rule stays one terminal and
//! is exact. A recursive rule is not exact if the text behind it could also belong to its last
//! terminal.

mod expr;
mod parse;
mod write;

pub(crate) use self::write::Translated;
use crate::error::GrammarError;

/// Translates the GBNF grammar `text`.
///
/// # Errors
/// If the text cannot be read, names a rule that does not exist, or is too large.
pub(crate) fn translate(text: &str) -> Result<Translated, GrammarError> {
    write::translated(&parse::rules(text)?)
}

#[cfg(test)]
mod tests;
