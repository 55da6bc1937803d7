//! The values beside given ones.

use serde_json::{Map, Value, json};

use super::context::{Exact, all_of, any_of};
use super::negate::{TYPES, without};
use crate::error::GrammarError;

/// The most numbers between which gaps are described.
const MAX_NUMBERS: usize = 200;

/// The type of `value`.
pub(super) fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

impl Exact<'_> {
    /// A schema for all values beside `values`.
    ///
    /// # Errors
    /// If they cannot be described.
    pub fn none_of(&mut self, values: &[Value]) -> Result<Value, GrammarError> {
        let of = |kind: &'static str| values.iter().filter(move |value| type_of(value) == kind);
        let mut ways = vec![];
        let mut others = TYPES.to_vec();
        others.retain(|kind| of(kind).next().is_none());
        if !others.is_empty() {
            ways.push(json!({"type": others}));
        }
        if of("boolean").next().is_some() {
            // A list may have one of the two several times.
            let missing = [true, false].map(Value::Bool).into_iter();
            let missing = missing.filter(|value| !values.contains(value));
            ways.extend(missing.map(|value| json!({ "const": value })));
        }
        let texts: Vec<&str> = of("string").filter_map(Value::as_str).collect();
        if !texts.is_empty() {
            let texts: Vec<_> = texts.iter().map(|text| self.languages.text(text)).collect();
            let language = self.languages.either(&texts);
            let outside = self.languages.not(language);
            ways.push(self.strings(outside)?);
        }
        let numbers = of("number").filter_map(Value::as_f64).collect::<Vec<_>>();
        ways.extend(beside_numbers(numbers)?);
        let arrays: Vec<&Value> = of("array").collect();
        if !arrays.is_empty() {
            let beside = arrays.iter().map(|array| self.beside_array(array));
            ways.push(all_of(beside.collect::<Result<_, _>>()?));
        }
        let objects: Vec<&Value> = of("object").collect();
        if !objects.is_empty() {
            let beside = objects.iter().map(|object| self.beside_object(object));
            ways.push(all_of(beside.collect::<Result<_, _>>()?));
        }
        Ok(any_of(ways))
    }

    /// The objects in which a property of `object` is missing or has another value, and those that
    /// have more properties.
    fn beside_object(&mut self, object: &Value) -> Result<Value, GrammarError> {
        let none = Map::new();
        let entries = object.as_object().unwrap_or(&none);
        let mut ways = Vec::new();
        for (name, value) in entries {
            let other = self.none_of(std::slice::from_ref(value))?;
            ways.push(without(name));
            ways.push(json!({"type": "object", "required": [name], "properties": {name: other}}));
        }
        let names: Vec<&String> = entries.keys().collect();
        let all = names
            .iter()
            .map(|name| ((*name).clone(), Value::Bool(true)));
        let all = Map::from_iter(all);
        ways.push(
            json!({"type": "object", "properties": all, "required": names,
            "minProperties": names.len() + 1}),
        );
        Ok(any_of(ways))
    }

    fn beside_array(&mut self, array: &Value) -> Result<Value, GrammarError> {
        let items = array.as_array().map_or(&[][..], Vec::as_slice);
        let count = items.len();
        let mut ways = vec![json!({"type": "array", "minItems": count + 1})];
        if count > 0 {
            ways.push(json!({"type": "array", "maxItems": count - 1}));
        }
        for (index, item) in items.iter().enumerate() {
            let mut prefix = vec![Value::Bool(true); index];
            prefix.push(self.none_of(std::slice::from_ref(item))?);
            ways.push(json!({"type": "array", "minItems": count, "maxItems": count, "prefixItems": prefix}));
        }
        Ok(any_of(ways))
    }
}

/// The numbers below, between and above `numbers`.
fn beside_numbers(mut numbers: Vec<f64>) -> Result<Vec<Value>, GrammarError> {
    numbers.sort_by(f64::total_cmp);
    numbers.dedup();
    if numbers.len() > MAX_NUMBERS {
        return Err(GrammarError::too_complex(format!(
            "a negated `enum` must have at most {MAX_NUMBERS} numbers, got {}",
            numbers.len()
        )));
    }
    let (Some(&first), Some(&last)) = (numbers.first(), numbers.last()) else {
        return Ok(vec![]);
    };
    let mut ways = vec![json!({"type": "number", "exclusiveMaximum": number(first)})];
    for pair in numbers.windows(2) {
        ways.push(
            json!({"type": "number", "exclusiveMinimum": number(pair[0]),
            "exclusiveMaximum": number(pair[1])}),
        );
    }
    ways.push(json!({"type": "number", "exclusiveMinimum": number(last)}));
    Ok(ways)
}

/// A whole number is written without decimals.
fn number(value: f64) -> Value {
    match value.fract() == 0.0 && value.abs() < 1e15 {
        true => Value::from(value as i64),
        false => Value::from(value),
    }
}
