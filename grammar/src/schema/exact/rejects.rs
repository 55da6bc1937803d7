//! Decides whether a schema surely refuses a value.

use serde_json::{Map, Value};

use super::context::Exact;
use super::values::type_of;

/// The most schemas within each other that are looked at.
const MAX_DEPTH: usize = 12;

impl Exact<'_> {
    /// True if `value` is surely not in `schema`. Conditions that are hard to check are left out.
    pub fn rejects(&mut self, schema: &Value, value: &Value) -> bool {
        self.rejects_within(schema, value, 0)
    }

    fn rejects_within(&mut self, schema: &Value, value: &Value, depth: usize) -> bool {
        let map = match schema {
            Value::Object(map) => map,
            Value::Bool(all) => return !all,
            _ => return false,
        };
        depth < MAX_DEPTH
            && map
                .iter()
                .any(|(key, asked)| self.rejects_by(map, key, asked, value, depth))
    }

    fn rejects_by(
        &mut self,
        map: &Map<String, Value>,
        key: &str,
        asked: &Value,
        value: &Value,
        depth: usize,
    ) -> bool {
        let depth = depth + 1;
        let bound = asked.as_f64();
        let number = || Some((value.as_f64()?, bound?));
        let length = || Some((value.as_str()?.chars().count() as f64, bound?));
        match (key, asked) {
            ("type", Value::String(kind)) => !is_of_type(value, kind),
            ("type", Value::Array(kinds)) => !kinds
                .iter()
                .filter_map(Value::as_str)
                .any(|kind| is_of_type(value, kind)),
            ("enum", Value::Array(values)) => !values.iter().any(|one| may_equal(one, value)),
            ("const", one) => !may_equal(one, value),
            ("minimum", _) => number().is_some_and(|(n, bound)| n < bound),
            ("maximum", _) => number().is_some_and(|(n, bound)| n > bound),
            ("exclusiveMinimum", _) => number().is_some_and(|(n, bound)| n <= bound),
            ("exclusiveMaximum", _) => number().is_some_and(|(n, bound)| n >= bound),
            ("minLength", _) => length().is_some_and(|(n, bound)| n < bound),
            ("maxLength", _) => length().is_some_and(|(n, bound)| n > bound),
            ("pattern", Value::String(pattern)) => {
                let Some(text) = value.as_str() else {
                    return false;
                };
                let language = self.languages.matching(pattern);
                language.is_ok_and(|language| self.languages.has(language, text) == Ok(false))
            }
            ("required", Value::Array(names)) => value.as_object().is_some_and(|object| {
                names
                    .iter()
                    .filter_map(Value::as_str)
                    .any(|name| !object.contains_key(name))
            }),
            ("properties", Value::Object(entries)) => {
                let Some(object) = value.as_object() else {
                    return false;
                };
                entries.iter().any(|(name, inner)| {
                    object
                        .get(name)
                        .is_some_and(|value| self.rejects_within(inner, value, depth))
                })
            }
            ("additionalProperties", Value::Bool(false))
                if !map.contains_key("patternProperties") =>
            {
                let named = map.get("properties").and_then(Value::as_object);
                value.as_object().is_some_and(|object| {
                    object
                        .keys()
                        .any(|name| !named.is_some_and(|named| named.contains_key(name)))
                })
            }
            ("$ref", Value::String(reference)) => match self.definition(reference) {
                Some(definition) => self.rejects_within(definition, value, depth),
                None => false,
            },
            ("allOf", Value::Array(list)) => list
                .iter()
                .any(|inner| self.rejects_within(inner, value, depth)),
            ("anyOf" | "oneOf", Value::Array(list)) => list
                .iter()
                .all(|inner| self.rejects_within(inner, value, depth)),
            _ => false,
        }
    }
}

fn is_of_type(value: &Value, kind: &str) -> bool {
    match kind {
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        kind => type_of(value) == kind,
    }
}

/// True if two values are equal, or might be: 1 and 1.0 are the same number.
fn may_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => {
            // Numbers within them may be written differently.
            a == b || a.to_string().contains('.') || b.to_string().contains('.')
        }
        _ => a == b,
    }
}
