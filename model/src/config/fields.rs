//! Typed reads from a JSON object, with errors that name the field and the value found.

use serde_json::{Map, Value};

use super::error::ConfigError;

/// A JSON object of `config.json` and where it sits in the file.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// `""` at the top level, `"rope_scaling."` inside that object.
    prefix: &'static str,
}

impl<'a> Fields<'a> {
    pub fn new(map: &'a Map<String, Value>, prefix: &'static str) -> Self {
        Self { map, prefix }
    }

    /// The value under `key`, `null` included.
    pub fn raw(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key)
    }

    /// The value under `key`, with `null` read as absent.
    pub fn value(&self, key: &str) -> Option<&'a Value> {
        self.raw(key).filter(|value| !value.is_null())
    }

    pub fn name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    pub fn missing(&self, key: &str) -> ConfigError {
        ConfigError::Missing {
            field: self.name(key),
        }
    }

    pub fn bad(&self, key: &str, bound: impl Into<String>) -> ConfigError {
        let given = self.raw(key).map_or_else(|| "nothing".to_owned(), shorten);
        ConfigError::Invalid {
            field: self.name(key),
            bound: bound.into(),
            given,
        }
    }

    /// An integer in `1..=max`; absent or `null` gives `None`.
    pub fn count(&self, key: &str, max: usize) -> Result<Option<usize>, ConfigError> {
        self.integer(key, 1, max)
    }

    /// An integer in `min..=max`; absent or `null` gives `None`.
    pub fn integer(&self, key: &str, min: usize, max: usize) -> Result<Option<usize>, ConfigError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        value
            .as_u64()
            .and_then(|number| usize::try_from(number).ok())
            .filter(|number| (min..=max).contains(number))
            .map(Some)
            .ok_or_else(|| self.bad(key, format!("an integer from {min} to {max}")))
    }

    /// A number above zero that f32 holds without loss of precision; absent or `null` gives `None`.
    pub fn positive(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        value
            .as_f64()
            .filter(|number| *number > 0.0 && (*number as f32).is_normal())
            .map(Some)
            .ok_or_else(|| self.bad(key, "a number above 0 within f32"))
    }

    /// As [`positive`](Self::positive), in f32.
    pub fn factor(&self, key: &str) -> Result<Option<f32>, ConfigError> {
        Ok(self.positive(key)?.map(|factor| factor as f32))
    }

    /// A number that is finite in f32; absent or `null` gives `None`.
    pub fn number(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        value
            .as_f64()
            .filter(|number| (*number as f32).is_finite())
            .map(Some)
            .ok_or_else(|| self.bad(key, "a number within f32"))
    }

    /// A list of `count` numbers above zero, as [`positive`](Self::positive) has them; it is required.
    pub fn positives(&self, key: &str, count: usize) -> Result<Vec<f32>, ConfigError> {
        let value = self.value(key).ok_or_else(|| self.missing(key))?;
        let numbers = value.as_array().filter(|list| list.len() == count);
        let positive = |value: &Value| {
            let number = value.as_f64().map(|number| number as f32);
            number.filter(|number| number.is_normal() && *number > 0.0)
        };
        numbers
            .and_then(|list| list.iter().map(positive).collect())
            .ok_or_else(|| self.bad(key, format!("a list of {count} numbers above 0 within f32")))
    }

    /// True or false; absent or `null` means false.
    pub fn flag(&self, key: &str) -> Result<bool, ConfigError> {
        Ok(self.boolean(key)?.unwrap_or(false))
    }

    pub fn boolean(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        value
            .as_bool()
            .map(Some)
            .ok_or_else(|| self.bad(key, "true or false"))
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>, ConfigError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        value
            .as_str()
            .map(Some)
            .ok_or_else(|| self.bad(key, "a string"))
    }

    pub fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>, ConfigError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        value
            .as_object()
            .map(Some)
            .ok_or_else(|| self.bad(key, "an object"))
    }

    /// One token id or a list of them; absent gives `None`, `null` an empty list.
    pub fn token_ids(&self, key: &str) -> Result<Option<Vec<u32>>, ConfigError> {
        let Some(value) = self.raw(key) else {
            return Ok(None);
        };
        let one = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = match value {
            Value::Null => Some(Vec::new()),
            Value::Array(list) => list.iter().map(one).collect(),
            scalar => one(scalar).map(|id| vec![id]),
        };
        ids.map(Some)
            .ok_or_else(|| self.bad(key, "a token id or a list of token ids"))
    }
}

/// The value as JSON, cut so that a hostile file cannot flood the error message.
pub(crate) fn shorten(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
