//! JSON Schemas before they are compiled: their bounds, and what of them cannot be
//! enforced, with the place of it.

mod cost;
mod dates;
mod locate;
mod parts;

use std::fmt::Write;

use serde_json::{Map, Value, json};

pub(crate) use self::cost::Costs;
pub(crate) use self::locate::locate;
use crate::compile::Whitespace;
use crate::error::GrammarError;
use crate::regex;

/// Bytes of a schema, as compact JSON.
const MAX_SCHEMA_BYTES: usize = 256 * 1024;
/// Schemas within schemas.
const MAX_NESTING: usize = 64;
/// Properties of one object: compiling takes more than linear time. Of those that may be
/// left out each takes four places in a row of the parser, which has 2,000.
const MAX_PROPERTIES: usize = 1_500;
const MAX_OPTIONAL: usize = 450;
/// Branches of one `anyOf`, `oneOf` or `allOf`.
const MAX_BRANCHES: usize = 2_000;
/// Values of any kind, at any depth.
const MAX_NODES: usize = 20_000;
/// Values of one `enum`, and bytes of all of them together.
const MAX_ENUM_VALUES: usize = 10_000;
const MAX_ENUM_BYTES: usize = 512 * 1024;
/// Bytes of a name or a fixed text: forcing text takes more than linear time.
const MAX_LITERAL_BYTES: usize = 8_192;

/// What llguidance enforces, or what has no say in validation.
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

/// Notes that llguidance does not know; they are taken out.
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

/// `schema` as llguidance is to read it.
///
/// # Errors
/// A bound, or a keyword that cannot be enforced, with its JSON pointer.
pub(crate) fn prepare(schema: &Value, whitespace: Whitespace) -> Result<Value, GrammarError> {
    prepare_beside(schema, whitespace, &mut Costs::default())
}

/// The same of a schema beside others, which all add to `costs`.
///
/// # Errors
/// Those of [`prepare`].
pub(crate) fn prepare_beside(
    schema: &Value,
    whitespace: Whitespace,
    costs: &mut Costs,
) -> Result<Value, GrammarError> {
    let bytes = schema.to_string().len();
    if bytes > MAX_SCHEMA_BYTES {
        return Err(GrammarError::too_complex(format!(
            "a schema must be at most {MAX_SCHEMA_BYTES} bytes long, got {bytes}"
        )));
    }
    let nodes = count(schema);
    if nodes > MAX_NODES {
        return Err(GrammarError::too_complex(format!(
            "a schema must have at most {MAX_NODES} values, got {nodes}"
        )));
    }
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        Value::Bool(false) => return Err(GrammarError::unsatisfiable().at("#")),
        other => other.clone(),
    };
    walk(&mut schema, "#", 0, costs)?;
    costs.add_joined(&schema)?;
    let Value::Object(root) = &mut schema else {
        return Err(wrong("#", "a schema must be an object or a boolean"));
    };
    let (item_separator, key_separator) = match whitespace {
        Whitespace::Natural => (", ", ": "),
        Whitespace::Compact => (",", ":"),
    };
    let layout = json!({
        "whitespace_flexible": false,
        "item_separator": item_separator,
        "key_separator": key_separator,
    });
    root.insert("x-guidance".to_owned(), layout);
    Ok(schema)
}

/// `lark` and a rule for each of the schemas that it refers to.
///
/// # Errors
/// Those of [`prepare`], with the schema's name before the pointer.
pub(crate) fn within_lark(
    lark: &str,
    schemas: &[(String, Value)],
    whitespace: Whitespace,
) -> Result<String, GrammarError> {
    let (mut text, mut costs) = (lark.to_owned(), Costs::default());
    for (index, (name, schema)) in schemas.iter().enumerate() {
        let prepared = prepare_beside(schema, whitespace, &mut costs).map_err(|error| {
            let pointer = error.pointer.as_deref().unwrap_or("#");
            let pointer = format!("{name}{pointer}");
            error.at(pointer)
        })?;
        // Writing to a string does not fail.
        let _ = writeln!(text, "schema_{index}: %json {prepared}");
    }
    let bytes = text.len();
    if bytes > MAX_SCHEMA_BYTES {
        return Err(GrammarError::too_complex(format!(
            "schemas must be at most {MAX_SCHEMA_BYTES} bytes long together, got {bytes}"
        )));
    }
    Ok(text)
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(entries) => entries.values().map(count).sum(),
        _ => 0,
    }
}

fn wrong(pointer: &str, message: impl Into<String>) -> GrammarError {
    GrammarError::invalid(message).at(pointer)
}

fn too_many(pointer: &str, what: &str, most: usize, given: usize) -> GrammarError {
    GrammarError::too_complex(format!("{what} must be at most {most}, got {given}")).at(pointer)
}

/// `pointer` and the next name on it.
fn below(pointer: &str, name: &str) -> String {
    format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"))
}

fn walk(
    schema: &mut Value,
    pointer: &str,
    depth: usize,
    costs: &mut Costs,
) -> Result<(), GrammarError> {
    let schema = match schema {
        Value::Bool(_) => return Ok(()),
        Value::Object(schema) => schema,
        _ => return Err(wrong(pointer, "a schema must be an object or a boolean")),
    };
    if depth > MAX_NESTING {
        return Err(too_many(
            pointer,
            "the nesting of a schema",
            MAX_NESTING,
            depth,
        ));
    }
    drop_notes(schema);
    check_keywords(schema, pointer)?;
    check_values(schema, pointer)?;
    dates::replace_formats(schema);
    costs.add(schema, pointer)?;
    let required = schema.get("required").and_then(Value::as_array);
    let required = required.map_or(0, Vec::len);
    for key in ["properties", "patternProperties", "$defs", "definitions"] {
        let Some(entries) = schema.get_mut(key) else {
            continue;
        };
        let pointer = below(pointer, key);
        let Value::Object(entries) = entries else {
            return Err(wrong(&pointer, format!("`{key}` must be an object")));
        };
        if entries.len() > MAX_PROPERTIES {
            let what = format!("the entries of `{key}`");
            return Err(too_many(&pointer, &what, MAX_PROPERTIES, entries.len()));
        }
        if key == "properties" && entries.len().saturating_sub(required) > MAX_OPTIONAL {
            let what = "the properties that are not required";
            let given = entries.len() - required;
            return Err(too_many(&pointer, what, MAX_OPTIONAL, given));
        }
        for (name, entry) in entries {
            let pointer = below(&pointer, name);
            if name.len() > MAX_LITERAL_BYTES {
                let what = "the bytes of a property's name";
                return Err(too_many(
                    &crate::error::first_words(&pointer),
                    what,
                    MAX_LITERAL_BYTES,
                    name.len(),
                ));
            }
            if key == "patternProperties" {
                regex::parse(name, regex::MAX_PATTERN_BYTES).map_err(|e| e.at(&pointer))?;
            }
            walk(entry, &pointer, depth + 1, costs)?;
        }
    }
    if required > MAX_PROPERTIES {
        let what = "the names of `required`";
        return Err(too_many(
            &below(pointer, "required"),
            what,
            MAX_PROPERTIES,
            required,
        ));
    }
    for key in ["items", "additionalItems", "additionalProperties"] {
        match schema.get_mut(key) {
            None => {}
            // Drafts before 2020-12 list schemas by position here.
            Some(Value::Array(list)) if key == "items" => {
                walk_list(list, &below(pointer, key), depth, costs)?;
            }
            Some(inner) => walk(inner, &below(pointer, key), depth + 1, costs)?,
        }
    }
    for key in ["anyOf", "oneOf", "allOf", "prefixItems"] {
        let Some(list) = schema.get_mut(key) else {
            continue;
        };
        let pointer = below(pointer, key);
        let Value::Array(list) = list else {
            return Err(wrong(&pointer, format!("`{key}` must be a list")));
        };
        if list.len() > MAX_BRANCHES {
            let what = format!("the schemas of `{key}`");
            return Err(too_many(&pointer, &what, MAX_BRANCHES, list.len()));
        }
        walk_list(list, &pointer, depth, costs)?;
    }
    Ok(())
}

fn walk_list(
    list: &mut [Value],
    pointer: &str,
    depth: usize,
    costs: &mut Costs,
) -> Result<(), GrammarError> {
    for (index, schema) in list.iter_mut().enumerate() {
        walk(schema, &format!("{pointer}/{index}"), depth + 1, costs)?;
    }
    Ok(())
}

fn drop_notes(schema: &mut Map<String, Value>) {
    // `nullable: true` widens a type (OpenAPI): no mere note.
    let is_note = |key: &str, value: &Value| match key {
        "nullable" => *value == Value::Bool(false),
        "uniqueItems" => *value == Value::Bool(false),
        "x-guidance" => false,
        key => NOTES.contains(&key) || key.starts_with("x-"),
    };
    schema.retain(|key, value| !is_note(key, value));
}

fn check_keywords(schema: &Map<String, Value>, pointer: &str) -> Result<(), GrammarError> {
    let unknown: Vec<String> = schema
        .keys()
        .filter(|key| !SUPPORTED.contains(&key.as_str()))
        .take(5)
        .map(|key| format!("\"{}\"", crate::error::first_words(key)))
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

fn check_values(schema: &Map<String, Value>, pointer: &str) -> Result<(), GrammarError> {
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
            crate::error::first_words(format),
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

#[cfg(test)]
mod tests;
