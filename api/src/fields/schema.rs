//! JSON Schemas and other JSON of a request, of which no more is kept than may be used.

use serde::de::{self, Deserialize, Deserializer};
use serde_json::Value;

use crate::fields::capped::counted;

/// Most values of one schema, at all depths together.
pub const MAX_SCHEMA_VALUES: usize = 20_000;

/// A JSON Schema: JSON, or a string of JSON, which vLLM and SGLang accept too.
#[derive(Clone, Debug, PartialEq)]
pub struct GivenSchema {
    pub schema: Value,
    /// The number of its values. If it is more than [`MAX_SCHEMA_VALUES`], `schema` lacks the rest.
    pub values: usize,
}

impl<'de> Deserialize<'de> for GivenSchema {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (schema, values) = counted(deserializer, MAX_SCHEMA_VALUES)?;
        match schema {
            Value::String(text) => {
                let wrong = |error| de::Error::custom(format!("it is no valid JSON: {error}"));
                let mut json = serde_json::Deserializer::from_str(&text);
                let (schema, values) = counted(&mut json, MAX_SCHEMA_VALUES).map_err(wrong)?;
                json.end().map_err(wrong)?;
                check(schema, values)
            }
            schema => check(schema, values),
        }
    }
}

/// Any JSON, counted as a schema is.
#[derive(Clone, Debug, PartialEq)]
pub struct GivenJson {
    pub json: Value,
    pub values: usize,
}

impl<'de> Deserialize<'de> for GivenJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (json, values) = counted(deserializer, MAX_SCHEMA_VALUES)?;
        Ok(Self { json, values })
    }
}

fn check<E: de::Error>(schema: Value, values: usize) -> Result<GivenSchema, E> {
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(GivenSchema { schema, values }),
        _ => Err(E::custom(
            "invalid type, expected a JSON Schema (an object)",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_str, from_value, json};

    #[test]
    fn a_schema_is_json_or_a_string_of_it() {
        let schema = json!({"type": "object", "properties": {"a": {"enum": [1, -2, 0.5, null]}}});
        let given: GivenSchema = from_value(schema.clone()).unwrap();
        assert_eq!((given.schema, given.values), (schema.clone(), 9));
        let given: GivenSchema = from_value(json!(schema.to_string())).unwrap();
        assert_eq!(given.schema, schema);
        for wrong in ["[]", "1", "\"{\"", "\"1\"", "null", "\"{} x\""] {
            assert!(from_str::<GivenSchema>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_too_much_is_counted_and_not_kept() {
        let many: Vec<usize> = (0..100_000).collect();
        let given: GivenSchema = from_value(json!({"enum": many})).unwrap();
        assert_eq!(given.values, 100_002);
        let kept = given.schema["enum"].as_array().map_or(0, Vec::len);
        assert!(kept <= MAX_SCHEMA_VALUES, "{kept}");
    }
}
