//! Bounds of schemas as they are given, before anything is done with them.

use serde_json::{Map, Value};

use super::cost::Costs;
use super::keywords::{MAX_LITERAL_BYTES, check_values};
use super::parts::{LISTS, schemas_within};
use super::refusal::{below, too_many, wrong};
use crate::error::{GrammarError, first_words};

/// The most bytes of a schema, as compact JSON.
pub(super) const MAX_SCHEMA_BYTES: usize = 256 * 1024;
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

/// # Errors
/// If `schema` exceeds a bound, or is no schema.
pub(super) fn check(schema: &Value, costs: &mut Costs) -> Result<(), GrammarError> {
    let bytes = length(schema);
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
    match schema {
        Value::Object(map) => walk(map, "#", 0, costs),
        Value::Bool(true) => Ok(()),
        Value::Bool(false) => Err(GrammarError::unsatisfiable().at("#")),
        _ => Err(wrong("#", "a schema must be an object or a boolean")),
    }
}

/// The bytes of `value` as compact JSON.
fn length(value: &Value) -> usize {
    struct Counter(usize);
    impl std::io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    // Counting does not fail.
    let _ = serde_json::to_writer(&mut counter, value);
    counter.0
}

/// The number of JSON values in `value`, including itself.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(entries) => entries.values().map(count).sum(),
        _ => 0,
    }
}

/// Checks a schema and all schemas within it.
fn walk(
    map: &Map<String, Value>,
    pointer: &str,
    depth: usize,
    costs: &mut Costs,
) -> Result<(), GrammarError> {
    if depth > MAX_NESTING {
        return Err(too_many(
            pointer,
            "the nesting of a schema",
            MAX_NESTING,
            depth,
        ));
    }
    check_values(map, pointer)?;
    costs.add(map, pointer)?;
    check_names(map, pointer)?;
    for key in LISTS {
        let list = map.get(key).and_then(Value::as_array);
        if let Some(list) = list.filter(|list| list.len() > MAX_BRANCHES) {
            let what = format!("the schemas of `{key}`");
            return Err(too_many(
                &below(pointer, key),
                &what,
                MAX_BRANCHES,
                list.len(),
            ));
        }
    }
    for (path, inner) in schemas_within(map) {
        if let Value::Object(inner) = inner {
            walk(inner, &format!("{pointer}{path}"), depth + 1, costs)?;
        }
    }
    Ok(())
}

/// Checks the number and the length of the names in a schema.
fn check_names(map: &Map<String, Value>, pointer: &str) -> Result<(), GrammarError> {
    let required = map.get("required").and_then(Value::as_array);
    let required = required.map_or(0, Vec::len);
    for key in ["properties", "patternProperties", "$defs", "definitions"] {
        let Some(Value::Object(entries)) = map.get(key) else {
            continue;
        };
        let pointer = below(pointer, key);
        if entries.len() > MAX_PROPERTIES {
            let what = format!("the entries of `{key}`");
            return Err(too_many(&pointer, &what, MAX_PROPERTIES, entries.len()));
        }
        if key == "properties" && entries.len().saturating_sub(required) > MAX_OPTIONAL {
            let what = "the properties that are not required";
            let given = entries.len() - required;
            return Err(too_many(&pointer, what, MAX_OPTIONAL, given));
        }
        if let Some(name) = entries.keys().find(|name| name.len() > MAX_LITERAL_BYTES) {
            let place = first_words(&below(&pointer, name));
            let what = "the bytes of a property's name";
            return Err(too_many(&place, what, MAX_LITERAL_BYTES, name.len()));
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
    Ok(())
}
