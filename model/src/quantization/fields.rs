//! Typed reads from the object that describes a quantization.

use serde_json::{Map, Value};

use super::QuantizationError;
use crate::config::shorten;

/// A JSON object, and its name for messages.
#[derive(Clone, Copy)]
pub(super) struct Object<'a> {
    map: &'a Map<String, Value>,
    name: &'a str,
}

impl<'a> Object<'a> {
    pub fn of(value: &'a Value, name: &'a str) -> Result<Self, QuantizationError> {
        let map = value.as_object().ok_or_else(|| QuantizationError {
            field: name.to_owned(),
            bound: "an object",
            given: shorten(value),
        })?;
        Ok(Self { map, name })
    }

    /// The value of `key`, with `null` read as absent.
    pub fn value(self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub fn bad(self, key: &str, bound: &'static str) -> QuantizationError {
        QuantizationError {
            field: format!("{}.{key}", self.name),
            bound,
            given: self.map.get(key).map_or("nothing".to_owned(), shorten),
        }
    }

    fn read<T>(
        self,
        key: &str,
        bound: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, QuantizationError> {
        let value = self.value(key);
        value
            .map(|value| read(value).ok_or_else(|| self.bad(key, bound)))
            .transpose()
    }

    pub fn text(self, key: &str) -> Result<Option<&'a str>, QuantizationError> {
        self.read(key, "a string", Value::as_str)
    }

    pub fn integer(self, key: &str) -> Result<Option<i64>, QuantizationError> {
        self.read(key, "an integer", Value::as_i64)
    }

    pub fn count(self, key: &str) -> Result<Option<u64>, QuantizationError> {
        self.read(key, "a whole number", Value::as_u64)
    }

    pub fn flag(self, key: &str) -> Result<Option<bool>, QuantizationError> {
        self.read(key, "true or false", Value::as_bool)
    }

    pub fn object(self, key: &'a str) -> Result<Option<Object<'a>>, QuantizationError> {
        let map = self.read(key, "an object", Value::as_object)?;
        Ok(map.map(|map| Object { map, name: key }))
    }

    /// Two numbers above 0.
    pub fn pair(self, key: &str) -> Result<Option<[usize; 2]>, QuantizationError> {
        self.read(key, "two numbers above 0", |value| {
            let numbers: Option<Vec<usize>> = value
                .as_array()?
                .iter()
                .map(|number| usize::try_from(number.as_u64()?).ok())
                .collect();
            let numbers: [usize; 2] = numbers?.try_into().ok()?;
            // A matrix with longer sides is refused, too.
            let is_side = |side: &usize| (1..=1 << 24).contains(side);
            numbers.iter().all(is_side).then_some(numbers)
        })
    }

    /// The values of the object's fields, if they are objects themselves.
    pub fn objects(self, bound: &'static str) -> Result<Vec<Object<'a>>, QuantizationError> {
        let fields = self.map.iter();
        fields
            .map(|(name, value)| {
                let map = value.as_object().ok_or_else(|| self.bad(name, bound))?;
                Ok(Object { map, name })
            })
            .collect()
    }

    /// Checks that a text is absent or one of `allowed`.
    pub fn one_of(
        self,
        key: &str,
        allowed: &[&str],
        bound: &'static str,
    ) -> Result<(), QuantizationError> {
        match self.text(key)? {
            Some(given) if !allowed.contains(&given) => Err(self.bad(key, bound)),
            _ => Ok(()),
        }
    }

    /// Checks that a field is absent, or an object or a list without entries.
    pub fn empty(self, key: &str, bound: &'static str) -> Result<(), QuantizationError> {
        let is_empty = |value: &Value| match value {
            Value::Object(map) => map.is_empty(),
            Value::Array(list) => list.is_empty(),
            _ => false,
        };
        match self.value(key) {
            Some(value) if !is_empty(value) => Err(self.bad(key, bound)),
            _ => Ok(()),
        }
    }
}
