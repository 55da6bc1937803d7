//! `generation_config.json`: the stop ids and the sampling that the model's authors suggest.

use serde_json::{Map, Value};

/// An error in a `generation_config.json`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GenerationConfigError {
    #[error("generation_config.json is not a JSON object: {0}")]
    Json(String),
    #[error("generation_config.json: {field} must be {bound}, got {given}")]
    Invalid {
        field: &'static str,
        bound: &'static str,
        given: String,
    },
}

/// Defaults for requests. Fields that the file leaves out are `None`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationConfig {
    /// Overrides the `eos_token_id` of `config.json`.
    pub eos_token_ids: Option<Vec<u32>>,
    /// `Some(false)` asks for greedy decoding.
    pub do_sample: Option<bool>,
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    /// `None` for no limit, which files write as 0 or -1.
    pub top_k: Option<u32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    /// The limit on output tokens of a request that names none.
    pub max_new_tokens: Option<u32>,
}

impl GenerationConfig {
    /// Reads the text of a `generation_config.json`. Fields that no request has are ignored.
    ///
    /// # Errors
    /// Names the field, the bound and the value of the first thing wrong.
    pub fn from_json(text: &str) -> Result<Self, GenerationConfigError> {
        let map: Map<String, Value> = serde_json::from_str(text)
            .map_err(|error| GenerationConfigError::Json(error.to_string()))?;
        let invalid = |field: &'static str, bound: &'static str, value: &Value| {
            let given = value.to_string().chars().take(80).collect();
            GenerationConfigError::Invalid {
                field,
                bound,
                given,
            }
        };
        let value = |field: &str| map.get(field).filter(|value| !value.is_null());
        let number = |field: &'static str, bound: &'static str, low: f64, high: f64| {
            value(field)
                .map(|value| {
                    value
                        .as_f64()
                        .filter(|number| (low..=high).contains(number))
                        .map(|number| number as f32)
                        .ok_or_else(|| invalid(field, bound, value))
                })
                .transpose()
        };
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let eos_token_ids = value("eos_token_id")
            .map(|value| {
                let ids = match value.as_array() {
                    Some(list) => list.iter().map(id).collect(),
                    None => id(value).map(|id| vec![id]),
                };
                ids.ok_or_else(|| {
                    invalid("eos_token_id", "a token id or a list of token ids", value)
                })
            })
            .transpose()?;
        let do_sample = value("do_sample")
            .map(|value| {
                value
                    .as_bool()
                    .ok_or_else(|| invalid("do_sample", "a boolean", value))
            })
            .transpose()?;
        let top_k = value("top_k")
            .map(|value| {
                value
                    .as_i64()
                    .filter(|k| (-1..=i64::from(u32::MAX)).contains(k))
                    .ok_or_else(|| invalid("top_k", "an integer from -1", value))
            })
            .transpose()?
            .and_then(|k| u32::try_from(k).ok())
            .filter(|k| *k > 0);
        let max_new_tokens = value("max_new_tokens")
            .map(|value| {
                id(value)
                    .filter(|count| *count > 0)
                    .ok_or_else(|| invalid("max_new_tokens", "a count from 1", value))
            })
            .transpose()?;
        Ok(Self {
            eos_token_ids,
            do_sample,
            temperature: number("temperature", "from 0 to 100", 0.0, 100.0)?,
            top_p: number("top_p", "from 0 to 1", 0.0, 1.0)?,
            top_k,
            min_p: number("min_p", "from 0 to 1", 0.0, 1.0)?,
            repetition_penalty: number("repetition_penalty", "from 0.01 to 100", 0.01, 100.0)?,
            max_new_tokens,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eos_may_be_one_id_or_a_list() {
        let eos = |text: &str| GenerationConfig::from_json(text).unwrap().eos_token_ids;
        assert_eq!(eos(r#"{"eos_token_id": 2}"#), Some(vec![2]));
        assert_eq!(
            eos(r#"{"eos_token_id": [151645, 151643]}"#),
            Some(vec![151_645, 151_643])
        );
        assert_eq!(eos(r#"{"eos_token_id": null}"#), None);
        assert_eq!(eos("{}"), None);
    }

    #[test]
    fn sampling_defaults_are_read_and_unknown_fields_ignored() {
        let text = r#"{
            "do_sample": true, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0,
            "repetition_penalty": 1.05, "max_new_tokens": 2048, "transformers_version": "4.51.0"
        }"#;
        let config = GenerationConfig::from_json(text).unwrap();
        assert_eq!(config.do_sample, Some(true));
        assert_eq!(config.temperature, Some(0.7));
        assert_eq!(
            (config.top_p, config.top_k, config.min_p),
            (Some(0.8), Some(20), Some(0.0))
        );
        assert_eq!(config.repetition_penalty, Some(1.05));
        assert_eq!(config.max_new_tokens, Some(2048));
        for off in ["0", "-1", "null"] {
            let text = format!(r#"{{"top_k": {off}}}"#);
            assert_eq!(GenerationConfig::from_json(&text).unwrap().top_k, None);
        }
    }

    #[test]
    fn bad_values_are_named_with_their_bound() {
        for (text, field, given) in [
            (r#"{"temperature": -1}"#, "temperature", "-1"),
            (r#"{"top_p": "1"}"#, "top_p", "\"1\""),
            (r#"{"top_p": 1.5}"#, "top_p", "1.5"),
            (r#"{"top_k": 2.5}"#, "top_k", "2.5"),
            (r#"{"eos_token_id": "</s>"}"#, "eos_token_id", "</s>"),
            (r#"{"eos_token_id": [1, -2]}"#, "eos_token_id", "[1,-2]"),
            (r#"{"do_sample": 1}"#, "do_sample", "1"),
            (r#"{"max_new_tokens": 0}"#, "max_new_tokens", "0"),
        ] {
            let message = GenerationConfig::from_json(text).unwrap_err().to_string();
            assert!(
                message.contains(field) && message.contains(given),
                "{message}"
            );
        }
        for text in ["", "[]", "3"] {
            let error = GenerationConfig::from_json(text).unwrap_err();
            assert!(matches!(error, GenerationConfigError::Json(_)), "{text}");
        }
    }
}
