//! `unevaluatedProperties` and `unevaluatedItems`, where it does not depend on the value which
//! parts the schemas beside them evaluate.

use serde_json::{Map, Value, json};

use super::context::Exact;
use crate::error::GrammarError;

/// The most references that are followed.
const MAX_DEPTH: usize = 16;

/// The properties or items that the schemas of one value evaluate.
#[derive(Default)]
struct Evaluated {
    properties: Map<String, Value>,
    patterns: Map<String, Value>,
    items: usize,
    all: bool,
}

impl Exact<'_> {
    /// The condition of `key`, whose value in `map` is `schema`, in other words.
    ///
    /// # Errors
    /// If it depends on the value.
    pub fn unevaluated(
        &mut self,
        map: &Map<String, Value>,
        key: &str,
        schema: &Value,
    ) -> Result<Value, GrammarError> {
        let mut evaluated = Evaluated::default();
        let is_object = key == "unevaluatedProperties";
        self.evaluate(map, is_object, &mut evaluated, 0)?;
        if evaluated.all {
            return Ok(Value::Bool(true));
        }
        let schema = self.assert(schema)?;
        if !is_object {
            let first = vec![Value::Bool(true); evaluated.items];
            return Ok(json!({"prefixItems": first, "items": schema}));
        }
        let mut patterns = Map::new();
        for pattern in evaluated.patterns.keys() {
            if let Some(pattern) = self.languages.translated(pattern)? {
                patterns.insert(pattern, Value::Bool(true));
            }
        }
        let properties = evaluated.properties;
        Ok(
            json!({"properties": properties, "patternProperties": patterns, "additionalProperties": schema}),
        )
    }

    fn evaluate(
        &self,
        map: &Map<String, Value>,
        is_object: bool,
        evaluated: &mut Evaluated,
        depth: usize,
    ) -> Result<(), GrammarError> {
        let dynamic = || {
            Err(GrammarError::unsupported(
                "`unevaluatedProperties` and `unevaluatedItems` are supported only where no `anyOf`, \
                 `oneOf`, `if`, `contains` or `dependentSchemas` evaluates something",
            ))
        };
        if depth > MAX_DEPTH {
            return dynamic();
        }
        for (key, value) in map {
            match (key.as_str(), value) {
                ("properties", Value::Object(entries)) if is_object => {
                    let names = entries.keys().map(|name| (name.clone(), Value::Bool(true)));
                    evaluated.properties.extend(names);
                }
                ("patternProperties", Value::Object(entries)) if is_object => {
                    let names = entries.keys().map(|name| (name.clone(), Value::Bool(true)));
                    evaluated.patterns.extend(names);
                }
                ("additionalProperties", _) if is_object => evaluated.all = true,
                ("unevaluatedProperties", _) if is_object && depth > 0 => evaluated.all = true,
                ("prefixItems", Value::Array(list)) if !is_object => {
                    evaluated.items = evaluated.items.max(list.len());
                }
                ("items", _) if !is_object => evaluated.all = true,
                ("unevaluatedItems", _) if !is_object && depth > 0 => evaluated.all = true,
                ("contains", _) if !is_object => return dynamic(),
                ("$ref", Value::String(reference)) => {
                    if let Some(Value::Object(map)) = self.definition(reference) {
                        self.evaluate(map, is_object, evaluated, depth + 1)?;
                    }
                }
                ("allOf", Value::Array(list)) => {
                    for inner in list.iter().filter_map(Value::as_object) {
                        self.evaluate(inner, is_object, evaluated, depth + 1)?;
                    }
                }
                ("anyOf" | "oneOf", Value::Array(list)) if list.iter().any(evaluates) => {
                    return dynamic();
                }
                ("if" | "then" | "else", inner) if evaluates(inner) => return dynamic(),
                ("dependentSchemas", Value::Object(entries)) if entries.values().any(evaluates) => {
                    return dynamic();
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// True if a schema might evaluate a property or an item.
fn evaluates(schema: &Value) -> bool {
    const HARMLESS: [&str; 19] = [
        "$comment",
        "const",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "not",
        "pattern",
        "required",
        "type",
    ];
    let map = schema.as_object();
    map.is_some_and(|map| map.keys().any(|key| !HARMLESS.contains(&key.as_str())))
}
