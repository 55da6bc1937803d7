//! How long the shortest values of a schema are: a token can make an output longer by the shortest
//! value that it begins.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::parts::{parts, schemas_within};

/// More than any value: it has none, or it is not known yet.
const NONE: usize = usize::MAX / 1024;
/// The most times that the definitions are looked at.
const MAX_ROUNDS: usize = 20;
/// The bytes that a number which is bounded or fixed is thought to need.
const NUMBER: usize = 10;
/// The bytes that a pattern or format is thought to need.
const PATTERN: usize = 24;

/// The most bytes of a shortest value of any schema within `root`, which was rewritten.
pub(super) fn longest_shortest(root: &Value) -> usize {
    let none = Map::new();
    let definitions = root.get("$defs").and_then(Value::as_object);
    let definitions = definitions.unwrap_or(&none);
    let mut shortest = Shortest {
        definitions: HashMap::new(),
    };
    for _ in 0..MAX_ROUNDS {
        let mut changed = false;
        for (name, schema) in definitions {
            let length = shortest.of(schema);
            let known = shortest.definitions.insert(name, length);
            changed |= known != Some(length);
        }
        if !changed {
            break;
        }
    }
    let mut longest = 0;
    let mut waiting: Vec<&Value> = vec![root];
    while let Some(schema) = waiting.pop() {
        let length = shortest.of_value(schema);
        longest = longest.max(if length < NONE { length } else { 0 });
        if let Value::Object(map) = schema {
            waiting.extend(schemas_within(map).into_iter().map(|(_, inner)| inner));
        }
    }
    longest
}

struct Shortest<'a> {
    definitions: HashMap<&'a String, usize>,
}

impl Shortest<'_> {
    /// The bytes of the values that `schema` begins itself: those of a reference are counted there.
    fn of_value(&self, schema: &Value) -> usize {
        match schema {
            Value::Object(map) if map.len() == 1 && map.contains_key("$ref") => 0,
            Value::Object(map) => {
                let types = ["object", "array", "string", "number"];
                let own = types.map(|kind| self.of_type(map, kind));
                let own = own.into_iter().filter(|&length| length < NONE).max();
                let name = map.get("properties").and_then(Value::as_object);
                let name = name.into_iter().flatten().map(|(name, _)| name.len() + 6);
                own.unwrap_or(0) + name.max().unwrap_or(0)
            }
            _ => 1,
        }
    }

    fn of(&self, schema: &Value) -> usize {
        let map = match schema {
            Value::Object(map) => map,
            Value::Bool(false) => return NONE,
            _ => return 1,
        };
        if let Some(value) = map.get("const") {
            return written(value);
        }
        if let Some(Value::Array(values)) = map.get("enum") {
            return values.iter().map(written).min().unwrap_or(NONE);
        }
        let mut length: usize = 0;
        let mut add = |more: usize| length = length.saturating_add(more).min(NONE);
        if let Some(name) = map.get("$ref").and_then(Value::as_str) {
            let name = name.trim_start_matches("#/$defs/").to_owned();
            add(self.definitions.get(&name).copied().unwrap_or(NONE));
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(Value::Array(list)) = map.get(key) {
                add(list
                    .iter()
                    .map(|inner| self.of(inner))
                    .min()
                    .unwrap_or(NONE));
            }
        }
        // Conditions that hold together are counted together, which is more than is needed.
        if let Some(Value::Array(list)) = map.get("allOf") {
            list.iter().for_each(|inner| add(self.of(inner)));
        }
        let constrains = parts(map).next().is_some() || map.contains_key("required");
        match map.get("type") {
            Some(Value::String(kind)) => add(self.of_type(map, kind)),
            Some(Value::Array(kinds)) => {
                let kinds = kinds.iter().filter_map(Value::as_str);
                add(kinds.map(|kind| self.of_type(map, kind)).min().unwrap_or(1));
            }
            // Without a type a number is a value, and rarely the one that is meant.
            _ if constrains => add(self.of_type(map, "object")),
            _ => add(1),
        }
        length
    }

    fn of_type(&self, map: &Map<String, Value>, kind: &str) -> usize {
        let count = |key: &str| map.get(key).and_then(Value::as_u64).unwrap_or(0) as usize;
        match kind {
            "string" => {
                let pattern = map.contains_key("pattern") || map.contains_key("format");
                2 + count("minLength").max(if pattern { PATTERN } else { 0 })
            }
            "number" | "integer" => {
                let bounds = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
                let is_bounded = bounds.iter().any(|key| map.contains_key(*key));
                if is_bounded { NUMBER } else { 1 }
            }
            "array" => {
                let min = count("minItems");
                let prefix = map.get("prefixItems").and_then(Value::as_array);
                let prefix = prefix.map_or(&[][..], Vec::as_slice);
                let first = prefix.iter().take(min).map(|item| self.of(item));
                let item = map.get("items").map_or(1, |item| self.of(item));
                let rest = min.saturating_sub(prefix.len());
                let items = first.fold(0_usize, usize::saturating_add);
                let rest = if rest > 0 {
                    item.saturating_mul(rest)
                } else {
                    0
                };
                (2 + items.saturating_add(rest) + 2 * min).min(NONE)
            }
            "object" => {
                let entries = map.get("properties").and_then(Value::as_object);
                let required = map.get("required").and_then(Value::as_array);
                let names = required.into_iter().flatten().filter_map(Value::as_str);
                let properties = names.map(|name| {
                    let schema = entries.and_then(|entries| entries.get(name));
                    name.len() + 6 + schema.map_or(1, |schema| self.of(schema))
                });
                let all = properties.fold(2_usize, usize::saturating_add);
                all.saturating_add(8 * count("minProperties")).min(NONE)
            }
            _ => 5,
        }
    }
}

/// The bytes of `value`, roughly for numbers.
fn written(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 5,
        Value::Number(_) => NUMBER,
        Value::String(text) => text.len() + 2,
        Value::Array(_) | Value::Object(_) => value.to_string().len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn required_properties_and_items_make_values_long_and_optional_ones_do_not() {
        let bytes = |schema: Value| longest_shortest(&schema);
        let short = bytes(json!({"type": "object", "properties": {"a": {"type": "string"}}}));
        assert!(short < 12, "{short}");
        let long = json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "array",
            "minItems": 10, "items": {"type": "string", "minLength": 8}}}});
        assert!((100..200).contains(&bytes(long.clone())));
        // The value that an optional property begins counts, too.
        let optional = json!({"type": "object", "properties": {"b": long}});
        assert!(bytes(optional) >= 100);
    }

    #[test]
    fn references_that_name_each_other_have_the_length_of_the_way_out() {
        let tree = json!({"$ref": "#/$defs/0", "$defs": {"0": {"type": "object",
            "required": ["children"], "properties": {"children": {"type": "array",
            "items": {"$ref": "#/$defs/0"}}}}}});
        assert!(
            (14..40).contains(&longest_shortest(&tree)),
            "{}",
            longest_shortest(&tree)
        );
    }
}
