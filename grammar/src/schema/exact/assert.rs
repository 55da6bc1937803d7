//! A schema as it is.

use serde_json::{Map, Value, json};

use super::super::formats::{self, Format};
use super::context::{Exact, all_of, any_of};
use crate::error::GrammarError;

/// The keywords of objects, and of arrays, that depend on each other.
const OBJECT: [&str; 6] = [
    "additionalProperties",
    "maxProperties",
    "minProperties",
    "patternProperties",
    "properties",
    "propertyNames",
];
const ARRAY: [&str; 6] = [
    "contains",
    "items",
    "maxItems",
    "minItems",
    "prefixItems",
    "uniqueItems",
];

fn is_first(map: &Map<String, Value>, key: &str, group: &[&str]) -> bool {
    map.keys()
        .find(|other| group.contains(&other.as_str()))
        .is_some_and(|first| first == key)
}

impl Exact<'_> {
    /// A schema for the values of `schema`.
    ///
    /// # Errors
    /// If a condition cannot be enforced.
    pub fn assert(&mut self, schema: &Value) -> Result<Value, GrammarError> {
        self.count()?;
        let map = match schema {
            Value::Object(map) => map,
            Value::Bool(all) => return Ok(Value::Bool(*all)),
            _ => return Ok(Value::Bool(true)),
        };
        let mut out = Map::new();
        // Conditions that are added after all others, so that they change no order of properties.
        let mut more = Vec::new();
        for (key, value) in map {
            let result = self.keyword(map, key, value, &mut out, &mut more);
            if let Err(error) = result {
                self.ignore_or(error, map, key)?;
            }
        }
        let own = match out.keys().all(|key| key == "$comment") {
            true => Value::Bool(true),
            false => out.into(),
        };
        more.insert(0, own);
        Ok(all_of(more))
    }

    pub fn assert_all(&mut self, list: &[Value]) -> Result<Vec<Value>, GrammarError> {
        list.iter().map(|schema| self.assert(schema)).collect()
    }

    fn keyword(
        &mut self,
        map: &Map<String, Value>,
        key: &str,
        value: &Value,
        out: &mut Map<String, Value>,
        more: &mut Vec<Value>,
    ) -> Result<(), GrammarError> {
        match (key, value) {
            ("$defs" | "then" | "else" | "minContains" | "maxContains", _) => {}
            ("$ref", Value::String(reference)) => {
                let Value::Object(reference) = self.refer(reference, false) else {
                    return Ok(());
                };
                out.extend(reference);
            }
            ("pattern", Value::String(pattern)) => match self.languages.translated(pattern)? {
                Some(pattern) => add_pattern(pattern, out, more),
                None => more.push(not_a_string()),
            },
            ("format", Value::String(name)) => match formats::pattern(name) {
                Some(Format::Pattern(pattern)) => add_pattern(pattern, out, more),
                _ => {
                    out.insert(key.to_owned(), value.clone());
                }
            },
            ("allOf", Value::Array(list)) => {
                let list = self.assert_all(list)?;
                insert_list("allOf", list, out, more);
            }
            ("anyOf", Value::Array(list)) => {
                let list = self.assert_all(list)?;
                self.insert_any(any_of(list), out, more);
            }
            ("oneOf", Value::Array(list)) => {
                let one = self.one_of(map, list)?;
                self.insert_any(one, out, more);
            }
            ("not", inner) => more.push(self.negate(inner)?),
            ("if", inner) => more.push(self.conditional(map, inner)?),
            ("dependentRequired" | "dependentSchemas", Value::Object(entries)) => {
                self.dependents(entries, more)?;
            }
            (key, _) if OBJECT.contains(&key) => {
                // All of them are rewritten together, at the place of the first.
                if is_first(map, key, &OBJECT) {
                    let object = self.object(map)?;
                    more.extend(object.alternatives);
                    out.extend(object.own);
                }
            }
            (key, _) if ARRAY.contains(&key) => {
                if is_first(map, key, &ARRAY) {
                    let array = self.array(map)?;
                    more.extend(array.alternatives);
                    out.extend(array.own);
                }
            }
            ("unevaluatedProperties" | "unevaluatedItems", _) => {
                more.push(self.unevaluated(map, key, value)?);
            }
            _ => {
                out.insert(key.to_owned(), value.clone());
            }
        }
        Ok(())
    }

    fn insert_any(&mut self, any: Value, out: &mut Map<String, Value>, more: &mut Vec<Value>) {
        match any {
            Value::Bool(true) => {}
            Value::Object(map)
                if !out.contains_key("anyOf") && map.contains_key("anyOf") && map.len() == 1 =>
            {
                out.extend(map);
            }
            other => insert_list("allOf", vec![other], out, more),
        }
    }
}

/// Adds `allOf` at the place of its keyword, or at the end if there is one already.
fn insert_list(key: &str, list: Vec<Value>, out: &mut Map<String, Value>, more: &mut Vec<Value>) {
    if out.contains_key(key) {
        more.extend(list);
    } else {
        out.insert(key.to_owned(), list.into());
    }
}

fn add_pattern(pattern: String, out: &mut Map<String, Value>, more: &mut Vec<Value>) {
    if out.contains_key("pattern") {
        more.push(json!({"pattern": pattern}));
    } else {
        out.insert("pattern".to_owned(), pattern.into());
    }
}

/// All values that are no strings.
pub(super) fn not_a_string() -> Value {
    json!({"type": ["null", "boolean", "number", "array", "object"]})
}
