//! Prepares JSON Schemas for llguidance: checks their bounds, and refuses parts that cannot be
//! enforced, with their place.

mod cost;
mod dates;
mod keywords;
mod locate;
mod parts;
mod refusal;

use std::fmt::Write;

use serde_json::{Value, json};

pub(crate) use self::cost::Costs;
use self::keywords::{MAX_LITERAL_BYTES, check_keywords, check_values, drop_notes};
pub(crate) use self::locate::locate;
use self::refusal::{below, too_many, wrong};
use crate::error::{GrammarError, first_words};
use crate::regex;
use crate::spec::Whitespace;

/// The most bytes of a schema, as compact JSON.
const MAX_SCHEMA_BYTES: usize = 256 * 1024;
/// The most levels of nested schemas.
const MAX_NESTING: usize = 64;
/// The most properties of one object, because the time to compile grows faster than their
/// number; and the most optional ones, because each takes four entries in a row of
/// llguidance's parser, which has at most 2,000.
const MAX_PROPERTIES: usize = 1_500;
const MAX_OPTIONAL: usize = 450;
/// The most branches of one `anyOf`, `oneOf` or `allOf`.
const MAX_BRANCHES: usize = 2_000;
/// The most JSON values in a schema, of any kind and at any depth.
const MAX_NODES: usize = 20_000;
/// `schema` in the form that llguidance compiles, with the layout `whitespace`.
///
/// # Errors
/// If the schema exceeds a bound, or has a keyword that cannot be enforced. The error has the
/// JSON pointer of the place.
pub(crate) fn prepare(schema: &Value, whitespace: Whitespace) -> Result<Value, GrammarError> {
    prepare_beside(schema, whitespace, &mut Costs::default())
}

/// Does the same as [`prepare`] for one of several schemas, which all add to `costs`.
///
/// # Errors
/// The errors of [`prepare`].
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

/// `lark` with a rule added for each of the schemas that it refers to.
///
/// # Errors
/// The errors of [`prepare`], with the schema's name in front of the pointer.
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

/// The number of JSON values in `value`, including itself.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(entries) => entries.values().map(count).sum(),
        _ => 0,
    }
}

/// Prepares a schema and all schemas within it.
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
                    &first_words(&pointer),
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
            // In drafts before 2020-12, this is a list of schemas by position.
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

#[cfg(test)]
mod cost_tests;
#[cfg(test)]
mod tests;
