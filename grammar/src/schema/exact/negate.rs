//! The negation of a schema.

use serde_json::{Map, Value, json};

use super::super::formats;
use super::assert::not_a_string;
use super::context::{Exact, all_of, any_of, placed};
use crate::error::GrammarError;
use crate::language::Language;

/// The types of JSON values. Every whole number is a number.
pub(super) const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
/// Conditions on objects whose negation can be left out beside that of another one.
const LEFT_OUT: [&str; 3] = ["additionalProperties", "patternProperties", "propertyNames"];
/// In an array in which some item breaks a rule, one of this many first items does.
const MAX_WRONG_ITEMS: usize = 2;
/// The most names of a pattern of names that is negated.
const MAX_NAMES: usize = 8;
/// The most schemas of a `oneOf` that is negated.
const MAX_NEGATED: usize = 30;
/// The most pairs of them that are looked at for values which are in both.
const MAX_PAIRS: usize = 15;

impl Exact<'_> {
    /// A schema for values that are not in `schema`.
    ///
    /// # Errors
    /// If they cannot be described.
    pub fn negate(&mut self, schema: &Value) -> Result<Value, GrammarError> {
        self.count()?;
        let map = match schema {
            Value::Object(map) => map,
            Value::Bool(all) => return Ok(Value::Bool(!all)),
            _ => return Ok(Value::Bool(false)),
        };
        let (mut ways, mut refusals) = (Vec::new(), Vec::new());
        for (key, value) in map {
            match self.negate_keyword(map, key, value) {
                Ok(way) => ways.extend(way),
                Err(error) => refusals.push((placed(error, map, key), key)),
            }
        }
        // A value that breaks another condition on objects is not in the schema either. Values that
        // break only a condition which cannot be negated are left out then.
        let has_other = ways.iter().any(|way| way["type"] == "object");
        let is_needed = |key: &str| !(has_other && LEFT_OUT.contains(&key));
        match refusals.into_iter().find(|(_, key)| is_needed(key)) {
            Some((error, _)) => Err(error),
            None => Ok(any_of(ways)),
        }
    }

    pub fn negate_all(&mut self, list: &[Value]) -> Result<Vec<Value>, GrammarError> {
        list.iter().map(|schema| self.negate(schema)).collect()
    }

    /// The schemas of values that do not meet one condition.
    fn negate_keyword(
        &mut self,
        map: &Map<String, Value>,
        key: &str,
        value: &Value,
    ) -> Result<Vec<Value>, GrammarError> {
        let number = |key: &str| json!({"type": "number", key: value});
        // The largest count below the bound, or the smallest above it.
        let count = |kind: &str, key: &str, step: i64| {
            let bound = value.as_i64().map(|bound| bound + step);
            let bound = bound.filter(|&bound| bound >= 0);
            bound
                .map(|bound| json!({"type": kind, key: bound}))
                .into_iter()
                .collect()
        };
        Ok(match (key, value) {
            ("$comment" | "$defs" | "then" | "else" | "minContains" | "maxContains", _) => vec![],
            ("$ref", Value::String(reference)) => vec![self.refer(reference, true)],
            ("type", _) => not_of_type(value)?,
            ("enum", Value::Array(values)) => vec![self.none_of(values)?],
            ("const", value) => vec![self.none_of(std::slice::from_ref(value))?],
            ("minimum", _) => vec![number("exclusiveMaximum")],
            ("maximum", _) => vec![number("exclusiveMinimum")],
            ("exclusiveMinimum", _) => vec![number("maximum")],
            ("exclusiveMaximum", _) => vec![number("minimum")],
            ("minLength", _) => count("string", "maxLength", -1),
            ("maxLength", _) => count("string", "minLength", 1),
            ("minItems", _) => count("array", "maxItems", -1),
            ("maxItems", _) => count("array", "minItems", 1),
            ("minProperties", _) => count("object", "maxProperties", -1),
            ("maxProperties", _) => count("object", "minProperties", 1),
            ("format", Value::String(name)) if !formats::is_exact(name) => {
                let outside = formats::outside(name).ok_or_else(|| {
                    GrammarError::unsupported(format!(
                        "the format {name:?} within a `not`, `if` or overlapping `oneOf` is not supported"
                    ))
                })?;
                vec![json!({"type": "string", "pattern": outside})]
            }
            ("pattern" | "format", _) => {
                let one = Map::from_iter([(key.to_owned(), value.clone())]);
                let outside = self.language_outside(&one.into())?;
                vec![self.strings(outside)?]
            }
            ("required", Value::Array(names)) => {
                let names = names.iter().filter_map(Value::as_str);
                names.map(without).collect()
            }
            ("properties", Value::Object(entries)) => self.wrong_property(entries)?,
            ("patternProperties", Value::Object(entries)) => {
                let mut named = Map::new();
                for (pattern, inner) in entries {
                    let names = self.names_of(pattern)?;
                    named.extend(names.into_iter().map(|name| (name, inner.clone())));
                }
                self.wrong_property(&named)?
            }
            ("additionalProperties", Value::Bool(true)) => vec![],
            ("additionalProperties", Value::Bool(false)) if has_no_names(map) => {
                vec![json!({"type": "object", "minProperties": 1})]
            }
            ("prefixItems", Value::Array(list)) => {
                let mut ways = Vec::new();
                for (index, item) in list.iter().enumerate() {
                    let mut items = vec![Value::Bool(true); index];
                    items.push(self.negate(item)?);
                    ways.push(
                        json!({"type": "array", "minItems": index + 1, "prefixItems": items}),
                    );
                }
                ways
            }
            ("items", Value::Bool(true)) => vec![],
            ("items", Value::Bool(false)) => {
                let first = map.get("prefixItems").and_then(Value::as_array);
                let count = first.map_or(0, Vec::len) + 1;
                vec![json!({"type": "array", "minItems": count})]
            }
            ("items", inner) => {
                let first = map.get("prefixItems").and_then(Value::as_array);
                let first = first.map_or(0, Vec::len);
                let wrong = self.negate(inner)?;
                if wrong == Value::Bool(false) {
                    return Ok(vec![]);
                }
                let way = |index: usize| {
                    let mut items = vec![Value::Bool(true); index];
                    items.push(wrong.clone());
                    json!({"type": "array", "minItems": index + 1, "prefixItems": items})
                };
                (first..first + MAX_WRONG_ITEMS).map(way).collect()
            }
            ("contains", inner)
                if !map.contains_key("minContains") && !map.contains_key("maxContains") =>
            {
                vec![json!({"type": "array", "items": self.negate(inner)?})]
            }
            ("allOf", Value::Array(list)) => self.negate_all(list)?,
            ("anyOf", Value::Array(list)) => vec![all_of(self.negate_all(list)?)],
            ("oneOf", Value::Array(list)) => self.none_or_two(list)?,
            ("not", inner) => vec![self.assert(inner)?],
            ("if", inner) => {
                let mut ways = Vec::new();
                for (branch, holds) in [("then", true), ("else", false)] {
                    if let Some(branch) = map.get(branch) {
                        let condition = if holds {
                            self.assert(inner)?
                        } else {
                            self.negate(inner)?
                        };
                        ways.push(all_of(vec![condition, self.negate(branch)?]));
                    }
                }
                ways
            }
            ("dependentRequired", Value::Object(entries)) => {
                let mut ways = Vec::new();
                for (name, others) in entries {
                    for other in others.as_array().into_iter().flatten() {
                        let other = other.as_str().unwrap_or_default();
                        ways.push(json!({"type": "object", "required": [name], "properties": {other: false}}));
                    }
                }
                ways
            }
            ("dependentSchemas", Value::Object(entries)) => {
                let mut ways = Vec::new();
                for (name, inner) in entries {
                    let there = json!({"type": "object", "required": [name]});
                    ways.push(all_of(vec![there, self.negate(inner)?]));
                }
                ways
            }
            ("uniqueItems", Value::Bool(false)) => vec![],
            _ => {
                return Err(GrammarError::unsupported(format!(
                    "`{key}` within a `not`, `if` or overlapping `oneOf` is not supported"
                )));
            }
        })
    }

    /// The names that match `pattern`, if they are few.
    fn names_of(&mut self, pattern: &str) -> Result<Vec<String>, GrammarError> {
        let language = self.languages.matching(pattern)?;
        let names = self.languages.texts(language, MAX_NAMES)?;
        names.ok_or_else(|| {
            GrammarError::unsupported(format!(
                "`patternProperties` of more than {MAX_NAMES} names within a `not`, `if` or \
                 overlapping `oneOf` is not supported"
            ))
        })
    }

    fn wrong_property(&mut self, entries: &Map<String, Value>) -> Result<Vec<Value>, GrammarError> {
        let mut ways = Vec::new();
        for (name, inner) in entries {
            let wrong = self.negate(inner)?;
            if wrong != Value::Bool(false) {
                ways.push(
                    json!({"type": "object", "required": [name], "properties": {name: wrong}}),
                );
            }
        }
        Ok(ways)
    }

    /// The values of none, or of at least two, of `list`. Of many schemas that are not provably
    /// disjoint, values of two later ones are left out.
    fn none_or_two(&mut self, list: &[Value]) -> Result<Vec<Value>, GrammarError> {
        if list.len() > MAX_NEGATED {
            let message = format!("a negated `oneOf` must have at most {MAX_NEGATED} schemas");
            return Err(GrammarError::unsupported(message));
        }
        let mut ways = vec![all_of(self.negate_all(list)?)];
        for (index, a) in list.iter().enumerate() {
            for b in &list[index + 1..] {
                if ways.len() <= MAX_PAIRS && !self.disjoint(&[a], &[b]) {
                    ways.push(all_of(vec![self.assert(a)?, self.assert(b)?]));
                }
            }
        }
        Ok(ways)
    }

    /// The strings of `language`.
    pub fn strings(&mut self, language: Language) -> Result<Value, GrammarError> {
        Ok(match self.languages.pattern(language)? {
            Some(pattern) => json!({"type": "string", "pattern": pattern}),
            None => Value::Bool(false),
        })
    }
}

/// All values that are no arrays.
pub(super) fn not_an_array() -> Value {
    json!({"type": ["null", "boolean", "number", "string", "object"]})
}

/// All objects without the property `name`.
pub(super) fn without(name: &str) -> Value {
    json!({"type": "object", "properties": {name: false}})
}

fn has_no_names(map: &Map<String, Value>) -> bool {
    !map.contains_key("properties") && !map.contains_key("patternProperties")
}

/// The values of no type of `types`.
fn not_of_type(types: &Value) -> Result<Vec<Value>, GrammarError> {
    let types: Vec<&str> = match types {
        Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
        other => other.as_str().into_iter().collect(),
    };
    if types == ["string"] {
        return Ok(vec![not_a_string()]);
    }
    // Numbers with decimals, of which no list of types speaks, are left out beside `integer`.
    let is_in =
        |kind: &str| types.contains(&kind) || kind == "number" && types.contains(&"integer");
    let others: Vec<&str> = TYPES.into_iter().filter(|kind| !is_in(kind)).collect();
    Ok(match others.is_empty() {
        true => vec![],
        false => vec![json!({"type": others})],
    })
}
