//! What can be wrong with a grammar.

use std::fmt;

/// How a grammar is refused; each is a code of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// It cannot be read, or no text can match it.
    Invalid,
    /// It asks for something that cannot be enforced, and is not weakened silently.
    Unsupported,
    /// It goes over a limit of size or time.
    TooComplex,
}

impl Problem {
    /// The API's word for it.
    pub fn code(self) -> &'static str {
        match self {
            Self::Invalid => "invalid_grammar",
            Self::Unsupported => "unsupported_schema_feature",
            Self::TooComplex => "grammar_too_complex",
        }
    }
}

/// A grammar that is refused. The text never repeats more than a few words of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct GrammarError {
    pub problem: Problem,
    /// Where in a JSON Schema, as a JSON pointer (RFC 6901): `#/properties/a`.
    pub pointer: Option<String>,
    pub message: String,
}

/// Longest piece of a message that others wrote: it may quote the grammar.
const MAX_QUOTED: usize = 200;

impl GrammarError {
    pub fn new(problem: Problem, message: impl Into<String>) -> Self {
        Self {
            problem,
            pointer: None,
            message: message.into(),
        }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Problem::Invalid, message)
    }

    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Problem::Unsupported, message)
    }

    pub fn too_complex(message: impl Into<String>) -> Self {
        Self::new(Problem::TooComplex, message)
    }

    #[must_use]
    pub fn at(mut self, pointer: impl Into<String>) -> Self {
        self.pointer = Some(pointer.into());
        self
    }

    pub(crate) fn unsatisfiable() -> Self {
        Self::invalid("the grammar is unsatisfiable: no text can match it")
    }

    /// Sorts what llguidance says into the three problems.
    pub(crate) fn from_llguidance(text: &str) -> Self {
        let lower = text.to_ascii_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
        let problem = if says(&["unsatisfiable", "noextension"]) {
            return Self::unsatisfiable();
        } else if says(&["symbols.len()"]) {
            // An assertion of its compiler, which it turns into an error.
            return Self::too_complex("the grammar has too many symbols");
        } else if says(&[
            "too many",
            "too large",
            "too big",
            "too complex",
            "fuel",
            "limit",
            "max is",
            "cancelled",
            "toocomplex",
        ]) {
            Problem::TooComplex
        } else if says(&[
            "unimplemented",
            "not supported",
            "unsupported",
            "unknown format",
            "oneof",
            "look-around",
            "lookaround",
            "disjoint",
        ]) {
            Problem::Unsupported
        } else {
            Problem::Invalid
        };
        Self::new(problem, first_words(text))
    }
}

/// The first line of `text`, and no more than [`MAX_QUOTED`] bytes of it: further lines
/// show the parser's state and the grammar.
pub(crate) fn first_words(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default().trim();
    let mut end = line.len().min(MAX_QUOTED);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    let mut words = line[..end].to_owned();
    if end < line.len() {
        words.push('…');
    }
    words
}

impl fmt::Display for GrammarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.pointer {
            Some(pointer) => write!(f, " (at {pointer})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_words_of_what_others_say_are_repeated() {
        let long = format!("{}\n<state>secret</state>", "é".repeat(300));
        let error = GrammarError::from_llguidance(&long);
        assert!(error.message.len() <= MAX_QUOTED + '…'.len_utf8());
        assert!(!error.message.contains("secret"));
    }

    #[test]
    fn problems_are_told_apart() {
        let code = |text| GrammarError::from_llguidance(text).problem.code();
        assert_eq!(
            code("too many expressions constructed"),
            "grammar_too_complex"
        );
        assert_eq!(
            code("Unimplemented keys: [\"not\"]"),
            "unsupported_schema_feature"
        );
        assert_eq!(
            code("panic: assertion failed: grammar.symbols.len() < u16::MAX as usize - 10"),
            "grammar_too_complex"
        );
        assert_eq!(code("NoExtensionBias"), "invalid_grammar");
        assert_eq!(code("1(4): lexer error"), "invalid_grammar");
    }
}
