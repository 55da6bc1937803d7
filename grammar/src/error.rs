//! The errors of grammars.

use std::fmt;

/// The kinds of errors; each is an error code of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The grammar cannot be read, or no text can match it.
    Invalid,
    /// The grammar asks for something that cannot be enforced. It is refused instead of being
    /// weakened silently.
    Unsupported,
    /// The grammar exceeds a limit of size or time.
    TooComplex,
}

impl Problem {
    /// The error code of the API.
    pub fn code(self) -> &'static str {
        match self {
            Self::Invalid => "invalid_grammar",
            Self::Unsupported => "unsupported_schema_feature",
            Self::TooComplex => "grammar_too_complex",
        }
    }
}

/// The reason why a grammar is refused. The text never quotes more than a few words of the
/// grammar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct GrammarError {
    pub problem: Problem,
    /// The place in a JSON Schema, as a JSON pointer (RFC 6901): `#/properties/a`.
    pub pointer: Option<String>,
    pub message: String,
}

/// The most bytes of a message that another library wrote, which may quote the grammar.
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

    /// Adds the place in a JSON Schema.
    #[must_use]
    pub fn at(mut self, pointer: impl Into<String>) -> Self {
        self.pointer = Some(pointer.into());
        self
    }

    /// Nobody waits for the grammar any longer.
    pub(crate) fn cancelled() -> Self {
        Self::too_complex("compiling the grammar took too long and was cancelled")
    }

    pub(crate) fn unsatisfiable() -> Self {
        Self::invalid("the grammar is unsatisfiable: no text can match it")
    }

    /// Classifies an error text of llguidance.
    pub(crate) fn from_llguidance(text: &str) -> Self {
        let lower = text.to_ascii_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
        let problem = if says(&["unsatisfiable", "noextension"]) {
            return Self::unsatisfiable();
        } else if says(&["symbols.len()"]) {
            // An assertion of its compiler, which llguidance turns into an error.
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

/// The first line of `text`, cut to [`MAX_QUOTED`] bytes. Further lines of llguidance's errors
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
    fn only_the_first_words_of_other_libraries_errors_are_quoted() {
        let long = format!("{}\n<state>secret</state>", "é".repeat(300));
        let error = GrammarError::from_llguidance(&long);
        assert!(error.message.len() <= MAX_QUOTED + '…'.len_utf8());
        assert!(!error.message.contains("secret"));
    }

    #[test]
    fn error_texts_of_llguidance_are_classified() {
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
