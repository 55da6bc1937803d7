//! Single characters and classes of them.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind};

use super::super::part::{Part, Ranges};
use crate::error::GrammarError;

/// How characters are read.
pub(super) struct Atoms {
    pub ignore_case: bool,
}

impl Atoms {
    /// The class `text`, which is spelled as Rust's `regex` crate does.
    pub fn class(&self, text: &str) -> Result<Part, GrammarError> {
        let hir = ParserBuilder::new()
            .case_insensitive(self.ignore_case)
            .build()
            .parse(text)
            .map_err(|_| {
                GrammarError::invalid("a class of characters cannot be read in a regex")
            })?;
        let text = match self.ignore_case {
            true => format!("(?i:{text})"),
            false => text.to_owned(),
        };
        Ok(Part::Class {
            ranges: ranges_of(&hir).ok_or_else(|| {
                GrammarError::invalid("a class of characters cannot be read in a regex")
            })?,
            text,
        })
    }

    pub fn letter(&self, letter: char) -> Result<Part, GrammarError> {
        if self.ignore_case {
            return self.class(&escaped(letter.into()));
        }
        Ok(Part::Class {
            text: escaped(letter.into()),
            ranges: vec![(letter.into(), letter.into())],
        })
    }
}

/// The spelling of a character in the dialect of Rust's `regex` crate, within and outside of
/// brackets. A surrogate stands for a character that no text has.
pub(super) fn escaped(code: u32) -> String {
    match char::from_u32(code) {
        Some(letter) if letter.is_ascii_alphanumeric() || letter == ' ' || letter == '_' => {
            letter.into()
        }
        Some(letter) if !letter.is_ascii() && !letter.is_control() && !letter.is_whitespace() => {
            letter.into()
        }
        Some(letter) if letter.is_ascii_punctuation() && !"<>".contains(letter) => {
            format!("\\{letter}")
        }
        Some(_) => format!("\\x{{{code:X}}}"),
        None => "\\x{FFFF}".to_owned(),
    }
}

fn ranges_of(hir: &Hir) -> Option<Ranges> {
    match hir.kind() {
        HirKind::Class(Class::Unicode(class)) => {
            let ranges = class.ranges().iter();
            Some(ranges.map(|r| (r.start().into(), r.end().into())).collect())
        }
        HirKind::Class(Class::Bytes(class)) => {
            let ranges = class.ranges().iter();
            Some(ranges.map(|r| (r.start().into(), r.end().into())).collect())
        }
        HirKind::Literal(literal) => {
            let mut letters = std::str::from_utf8(&literal.0).ok()?.chars();
            let letter = u32::from(letters.next()?);
            letters.next().is_none().then(|| vec![(letter, letter)])
        }
        _ => None,
    }
}
