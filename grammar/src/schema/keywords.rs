//! Checks the keywords of one schema and their values.

use serde_json::{Map, Value};

use super::refusal::{below, too_many, wrong};
use crate::error::{GrammarError, first_words};
use crate::regex;

/// The most values of one `enum`, and the most bytes of all its values together.
const MAX_ENUM_VALUES: usize = 10_000;
const MAX_ENUM_BYTES: usize = 512 * 1024;
/// The most bytes of a name or a fixed text. The time to force a text grows faster than its
/// length.
pub(super) const MAX_LITERAL_BYTES: usize = 8_192;

/// Keywords that llguidance enforces, or that do not affect validation.
const SUPPORTED: [&str; 42] = [
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "const",
    "enum",
    "type",
    "items",
    "additionalItems",
    "prefixItems",
    "minItems",
    "maxItems",
    "properties",
    "additionalProperties",
    "patternProperties",
    "required",
    "minProperties",
    "maxProperties",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "$anchor",
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "id",
    "$comment",
    "title",
    "description",
    "default",
    "readOnly",
    "writeOnly",
    "examples",
    "contentMediaType",
    "contentEncoding",
];

/// Keywords without effect on validation that llguidance does not know. They are removed.
const NOTES: [&str; 10] = [
    "deprecated",
    "example",
    "discriminator",
    "externalDocs",
    "xml",
    "$vocabulary",
    "contentSchema",
    "markdownDescription",
    "$dynamicAnchor",
    "nullable",
];

/// The values of `format` that llguidance enforces.
const FORMATS: [&str; 10] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
];

/// Removes keywords that do not affect validation.
pub(super) fn drop_notes(schema: &mut Map<String, Value>) {
    // `nullable: true` (OpenAPI) affects validation: it widens a type.
    let is_note = |key: &str, value: &Value| match key {
        "nullable" => *value == Value::Bool(false),
        "uniqueItems" => *value == Value::Bool(false),
        "x-guidance" => false,
        key => NOTES.contains(&key) || key.starts_with("x-"),
    };
    schema.retain(|key, value| !is_note(key, value));
}

/// # Errors
/// If the schema has a keyword that cannot be enforced.
pub(super) fn check_keywords(
    schema: &Map<String, Value>,
    pointer: &str,
) -> Result<(), GrammarError> {
    let unknown: Vec<String> = schema
        .keys()
        .filter(|key| !SUPPORTED.contains(&key.as_str()))
        .take(5)
        .map(|key| format!("\"{}\"", first_words(key)))
        .collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let message = format!(
        "unsupported keyword(s) [{}]: what cannot be enforced is refused",
        unknown.join(", ")
    );
    Err(GrammarError::unsupported(message).at(pointer))
}

/// # Errors
/// If the value of a keyword is not supported, or exceeds a bound.
pub(super) fn check_values(schema: &Map<String, Value>, pointer: &str) -> Result<(), GrammarError> {
    if let Some(reference) = schema.get("$ref") {
        let pointer = below(pointer, "$ref");
        match reference.as_str() {
            Some(local) if local.starts_with('#') => {}
            Some(_) => {
                let message = "`$ref` must be local (#/...): nothing is fetched";
                return Err(GrammarError::unsupported(message).at(pointer));
            }
            None => return Err(wrong(&pointer, "`$ref` must be a string")),
        }
    }
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
    if let Some(pattern) = schema.get("pattern") {
        let pointer = below(pointer, "pattern");
        let Some(pattern) = pattern.as_str() else {
            return Err(wrong(&pointer, "`pattern` must be a string"));
        };
        regex::parse(pattern, regex::MAX_PATTERN_BYTES).map_err(|error| error.at(&pointer))?;
    }
    if let Some(format) = schema.get("format").and_then(Value::as_str)
        && !FORMATS.contains(&format)
        && may_be_string(schema)
    {
        let message = format!(
            "unknown format \"{}\": it must be one of {}",
            first_words(format),
            FORMATS.join(", ")
        );
        return Err(GrammarError::unsupported(message).at(below(pointer, "format")));
    }
    Ok(())
}

fn may_be_string(schema: &Map<String, Value>) -> bool {
    match schema.get("type") {
        None => true,
        Some(Value::Array(types)) => types.iter().any(|kind| kind == "string"),
        Some(kind) => kind == "string",
    }
}

fn check_literal(value: &Value, pointer: &str) -> Result<(), GrammarError> {
    let bytes = value.to_string().len();
    if bytes <= MAX_LITERAL_BYTES {
        return Ok(());
    }
    let what = "the bytes of a fixed value";
    Err(too_many(pointer, what, MAX_LITERAL_BYTES, bytes))
}
