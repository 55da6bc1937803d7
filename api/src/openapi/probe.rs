//! Finds the JSON Schema of a request type by deserialising made-up values.
//!
//! Nothing is written down twice: the type is given values of every kind at every place, and
//! serde's errors about them (`invalid type`, `unknown field .., expected ..`, `missing field`)
//! tell the schema. That works alike for what serde derives and for what is written by hand.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::fields::wire::Object;

/// A name that no field and no variant has.
const STRANGE: &str = "?";
/// JSON nested deeper than this is not described.
const MAX_DEPTH: usize = 6;

/// The schema of the objects that `T` is read from.
pub fn schema<T: DeserializeOwned>() -> Value {
    let read = |value: &Value| match serde_json::from_str::<Object<T>>(&value.to_string()) {
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    };
    let place = Place {
        read: &read,
        around: &|value| value,
        depth: 0,
    };
    place.object()
}

/// A place within the object at which values can be tried.
struct Place<'a> {
    /// The error about a whole object; none if it can be read.
    read: &'a dyn Fn(&Value) -> Option<String>,
    /// Makes the object that has a value at this place and nothing else.
    around: &'a dyn Fn(Value) -> Value,
    depth: usize,
}

impl Place<'_> {
    fn error(&self, value: Value) -> Option<String> {
        (self.read)(&(self.around)(value))
    }

    /// Returns `true` if `value` has a type that is allowed here. It ignores missing fields, and
    /// which text or number is allowed, because a schema of types does not describe them.
    fn takes(&self, value: Value) -> bool {
        let is_text = value.is_string();
        self.error(value).is_none_or(|error| {
            // The last two errors are about variants, which are texts.
            let wrong = ["invalid type", "invalid value", "expected value"];
            let is_wrong = wrong.iter().any(|wrong| error.starts_with(wrong));
            !(is_wrong || !is_text && error.starts_with("unknown variant"))
        })
    }

    /// Calls `then` with a place inside of this one.
    fn within<T>(&self, inner: impl Fn(Value) -> Value, then: impl FnOnce(Place<'_>) -> T) -> T {
        then(Place {
            read: self.read,
            around: &|value| (self.around)(inner(value)),
            depth: self.depth + 1,
        })
    }

    fn schema(&self) -> Value {
        let nothing_is_wrong = |value| self.error(value).is_none_or(|e| e.starts_with("missing"));
        let samples = [json!(true), json!(-1), json!(1.5), json!(STRANGE)];
        let nested = [json!([[0]]), json!({STRANGE: [0]})];
        if self.depth > MAX_DEPTH || samples.into_iter().chain(nested).all(nothing_is_wrong) {
            return json!({});
        }
        let mut kinds = Vec::new();
        if self.takes(json!(STRANGE)) {
            kinds.push(self.text());
        }
        if self.takes(json!(1.5)) {
            kinds.push(json!({"type": "number"}));
        } else if self.takes(json!(-1)) {
            kinds.push(json!({"type": "integer"}));
        } else if self.takes(json!(1)) {
            kinds.push(json!({"type": "integer", "minimum": 0}));
        }
        if self.takes(json!(true)) {
            kinds.push(json!({"type": "boolean"}));
        }
        if self.takes(json!([])) {
            let items = self.within(|value| json!([value]), |place| place.schema());
            kinds.push(json!({"type": "array", "items": items}));
        }
        if self.takes(json!({})) {
            kinds.push(self.object());
        }
        if self.takes(Value::Null) {
            kinds.push(json!({"type": "null"}));
        }
        match kinds.len() {
            1 => kinds.remove(0),
            _ => json!({"anyOf": kinds}),
        }
    }

    fn text(&self) -> Value {
        let error = self.error(json!(STRANGE)).unwrap_or_default();
        match error.starts_with("unknown variant") {
            true => json!({"type": "string", "enum": expected(&error)}),
            false => json!({"type": "string"}),
        }
    }

    fn object(&self) -> Value {
        let error = self.error(json!({STRANGE: 0})).unwrap_or_default();
        let known: Vec<String> = match error.starts_with("unknown field") {
            true => expected(&error),
            false => missing(&error).into_iter().collect(),
        };
        if known.is_empty() && !error.starts_with("unknown field") {
            let values = self.within(|value| json!({STRANGE: value}), |place| place.schema());
            return json!({"type": "object", "additionalProperties": values});
        }
        let mut properties = Map::new();
        for name in &known {
            let inner = |value: Value| json!({name.as_str(): value});
            let property = self.within(inner, |place| place.schema());
            properties.insert(name.clone(), property);
        }
        let mut schema = json!({"type": "object"});
        let required = self.required(&properties);
        schema["properties"] = properties.into();
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        if error.starts_with("unknown field") {
            schema["additionalProperties"] = json!(false);
        }
        schema
    }

    /// The properties that serde calls missing: each is added until it misses none.
    fn required(&self, properties: &Map<String, Value>) -> Vec<String> {
        let (mut given, mut required) = (Map::new(), Vec::new());
        while let Some(name) = self
            .error(given.clone().into())
            .and_then(|error| missing(&error))
            && let Some(property) = properties.get(&name)
            && !given.contains_key(&name)
        {
            given.insert(name.clone(), sample(property));
            required.push(name);
        }
        required
    }
}

/// The field that an error says is missing.
fn missing(error: &str) -> Option<String> {
    let rest = error.strip_prefix("missing field `")?;
    rest.split('`').next().map(str::to_owned)
}

/// The names that an error lists as the known ones.
fn expected(error: &str) -> Vec<String> {
    let (_, names) = error.split_once(", expected ").unwrap_or_default();
    let between = names.split('`').skip(1).step_by(2);
    between.map(str::to_owned).collect()
}

/// A value that `schema`, which was made here, allows.
fn sample(schema: &Value) -> Value {
    if let Some(first) = schema["anyOf"].get(0) {
        return sample(first);
    }
    if let Some(first) = schema["enum"].get(0) {
        return first.clone();
    }
    match schema["type"].as_str() {
        Some("integer" | "number") => json!(1),
        Some("boolean") => json!(true),
        Some("array") => json!([]),
        Some("object") => {
            let required = schema["required"].as_array().into_iter().flatten();
            let field = |name: &Value| {
                let name = name.as_str()?;
                Some((name.to_owned(), sample(&schema["properties"][name])))
            };
            required.filter_map(field).collect::<Map<_, _>>().into()
        }
        _ => json!("text"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde::de::IgnoredAny;

    use super::*;

    #[derive(Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Mood {
        Merry,
        Grave,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "read for its schema, and that is all")]
    struct Inner {
        id: u32,
        mood: Option<Mood>,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "read for its schema, and that is all")]
    struct Outer {
        name: String,
        weight: Option<f64>,
        inner: Vec<Object<Inner>>,
        labels: Option<BTreeMap<String, bool>>,
        anything: Option<IgnoredAny>,
    }

    #[test]
    fn the_schema_of_a_type_is_what_serde_reads_it_from() {
        let schema = schema::<Outer>();
        let nullable = |schema: Value| json!({"anyOf": [schema, {"type": "null"}]});
        let inner = json!({
            "type": "object",
            "properties": {
                "id": {"type": "integer", "minimum": 0},
                "mood": nullable(json!({"type": "string", "enum": ["merry", "grave"]})),
            },
            "required": ["id"],
            "additionalProperties": false,
        });
        let labels = json!({"type": "object", "additionalProperties": {"type": "boolean"}});
        let expected = json!({
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "weight": nullable(json!({"type": "number"})),
                "inner": {"type": "array", "items": inner},
                "labels": nullable(labels),
                "anything": {},
            },
            "required": ["name", "inner"],
            "additionalProperties": false,
        });
        assert_eq!(schema, expected);
    }
}
