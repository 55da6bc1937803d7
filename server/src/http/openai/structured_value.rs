//! JSON of clients that is kept only as far as it may be used.

use std::cell::Cell;
use std::fmt;

use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Values, at every depth together, that are kept of one schema.
pub const MAX_SCHEMA_VALUES: usize = 20_000;

/// A JSON Schema: as JSON, or as a string of JSON, which vLLM and SGLang take.
#[derive(Clone, Debug, PartialEq)]
pub struct GivenSchema {
    pub schema: Value,
    /// Values that it has; if there are more than [`MAX_SCHEMA_VALUES`], `schema` is
    /// without the rest.
    pub values: usize,
}

impl<'de> Deserialize<'de> for GivenSchema {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (schema, values) = counted(deserializer)?;
        match schema {
            Value::String(text) => {
                let wrong = |error| de::Error::custom(format!("it is no valid JSON: {error}"));
                let mut json = serde_json::Deserializer::from_str(&text);
                let (schema, values) = counted(&mut json).map_err(wrong)?;
                json.end().map_err(wrong)?;
                check(schema, values)
            }
            schema => check(schema, values),
        }
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

fn counted<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(Value, usize), D::Error> {
    let count = Cell::new(0);
    let value = Counted(&count).deserialize(deserializer)?;
    Ok((value, count.get()))
}

/// A value that counts itself and what it holds.
struct Counted<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for Counted<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.0.set(self.0.get() + 1);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Counted<'_> {
    type Value = Value;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }
    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = seq.next_element_seed(Counted(self.0))? {
            if self.0.get() <= MAX_SCHEMA_VALUES {
                list.push(value);
            }
        }
        Ok(list.into())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(Counted(self.0))?;
            if self.0.get() <= MAX_SCHEMA_VALUES {
                map.insert(key, value);
            }
        }
        Ok(map.into())
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
