//! The errors of schemas, and the JSON pointers in them.

use crate::error::GrammarError;

pub(super) fn wrong(pointer: &str, message: impl Into<String>) -> GrammarError {
    GrammarError::invalid(message).at(pointer)
}

pub(super) fn too_many(pointer: &str, what: &str, most: usize, given: usize) -> GrammarError {
    GrammarError::too_complex(format!("{what} must be at most {most}, got {given}")).at(pointer)
}

/// `pointer` extended by the key `name`.
pub(super) fn below(pointer: &str, name: &str) -> String {
    format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"))
}
