//! Checks the values of keywords that are bounded.

use serde_json::{Map, Value};

use super::refusal::{below, too_many, wrong};
use crate::error::GrammarError;

/// The most values of one `enum`, and the most bytes of all its values together.
const MAX_ENUM_VALUES: usize = 10_000;
const MAX_ENUM_BYTES: usize = 512 * 1024;
/// The most bytes of a name or a fixed text. The time to force a text grows faster than its
/// length.
pub(super) const MAX_LITERAL_BYTES: usize = 8_192;

/// # Errors
/// If the value of a keyword is not supported, or exceeds a bound.
pub(super) fn check_values(schema: &Map<String, Value>, pointer: &str) -> Result<(), GrammarError> {
    if let Some(values) = schema.get("enum") {
        let pointer = below(pointer, "enum");
        let Value::Array(values) = values else {
            return Err(wrong(&pointer, "`enum` must be a list"));
        };
        if values.len() > MAX_ENUM_VALUES {
            return Err(too_many(
                &pointer,
                "the values of `enum`",
                MAX_ENUM_VALUES,
                values.len(),
            ));
        }
        let mut bytes = 0;
        for (index, value) in values.iter().enumerate() {
            check_literal(value, &format!("{pointer}/{index}"))?;
            bytes += value.to_string().len();
        }
        if bytes > MAX_ENUM_BYTES {
            return Err(too_many(
                &pointer,
                "the bytes of `enum`",
                MAX_ENUM_BYTES,
                bytes,
            ));
        }
    }
    if let Some(value) = schema.get("const") {
        check_literal(value, &below(pointer, "const"))?;
    }
    for key in ["pattern", "format"] {
        if schema.get(key).is_some_and(|value| !value.is_string()) {
            return Err(wrong(
                &below(pointer, key),
                format!("`{key}` must be a string"),
            ));
        }
    }
    Ok(())
}

fn check_literal(value: &Value, pointer: &str) -> Result<(), GrammarError> {
    let bytes = value.to_string().len();
    if bytes <= MAX_LITERAL_BYTES {
        return Ok(());
    }
    let what = "the bytes of a fixed value";
    Err(too_many(pointer, what, MAX_LITERAL_BYTES, bytes))
}
