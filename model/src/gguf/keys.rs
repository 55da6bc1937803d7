//! The metadata of one architecture, with typed access, and the rotary parameters in it.

use serde_json::{Map, Value as Json, json};

use super::error::GgufError;
use super::metadata::{Metadata, Value};
use super::tensors::Tensors;

/// The keys that begin with the architecture's name, and the tensors of the file.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    pub metadata: &'a Metadata<'a>,
    pub tensors: &'a Tensors<'a>,
    pub architecture: &'a str,
}

/// The shortest decimal of an f32, which is the number that was meant. A number beyond f32 stays as it is.
pub(super) fn shortest(value: f64) -> Json {
    let text = (value as f32).to_string();
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
    json!(number.unwrap_or(value))
}

impl Keys<'_> {
    pub fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    pub fn missing(&self, key: &str) -> GgufError {
        GgufError::Missing {
            key: self.name(key),
        }
    }

    pub fn count(&self, key: &str) -> Result<Option<u64>, GgufError> {
        let name = self.name(key);
        // Some converters write the same number for each layer.
        if let Some(Value::Array(array)) = self.metadata.get(&name) {
            let mut values = array.values().map(Value::integer);
            let first = values.next().flatten();
            return match first.filter(|_| values.all(|value| value == first)) {
                Some(count) => Ok(Some(count)),
                None => Err(self.metadata.invalid(&name, "the same for all layers")),
            };
        }
        self.metadata.count(&name)
    }

    pub fn required(&self, key: &str) -> Result<u64, GgufError> {
        self.count(key)?.ok_or_else(|| self.missing(key))
    }

    pub fn number(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.metadata.number(&self.name(key))
    }

    /// The number under `key` as a field of `config.json`; nothing where the file has none, or 0.
    pub fn field(&self, key: &str) -> Result<Option<Json>, GgufError> {
        let given = self.number(key)?.filter(|given| *given != 0.0);
        Ok(given.map(shortest))
    }

    /// Width of a head.
    pub fn head_dim(&self) -> Result<u64, GgufError> {
        let heads = self.required("attention.head_count")?;
        let hidden = self.required("embedding_length")?;
        let length = self.count("attention.key_length")?;
        if let Some(value_length) = self.count("attention.value_length")?
            && Some(value_length) != length
        {
            let bound = self.name("attention.key_length");
            return Err(self
                .metadata
                .invalid(&self.name("attention.value_length"), bound));
        }
        match length {
            Some(length) => Ok(length),
            None if heads > 0 => Ok(hidden / heads),
            None => {
                let name = self.name("attention.head_count");
                Err(self.metadata.invalid(&name, "above 0"))
            }
        }
    }

    /// The base of the frequencies, and the share of a head that is rotated.
    pub fn rotation(&self, head_dim: u64) -> Result<Map<String, Json>, GgufError> {
        let mut rope = Map::new();
        let theta = self.number("rope.freq_base")?.unwrap_or(10_000.0);
        rope.insert("rope_theta".to_owned(), shortest(theta));
        if let Some(rotary) = self.count("rope.dimension_count")?
            && rotary != head_dim
        {
            let share = rotary as f64 / head_dim.max(1) as f64;
            rope.insert("partial_rotary_factor".to_owned(), json!(share));
        }
        Ok(rope)
    }

    /// The rotary parameters, as `rope_parameters` of `config.json`.
    pub fn rope(&self, head_dim: u64) -> Result<Json, GgufError> {
        let mut rope = self.rotation(head_dim)?;
        let key = self.name("rope.scaling.type");
        let old = self
            .number("rope.scale_linear")?
            .filter(|scale| *scale != 1.0);
        let kind = match self.metadata.text(&key)? {
            None if old.is_some() => "linear",
            kind => kind.unwrap_or("none"),
        };
        let factor = self.number("rope.scaling.factor")?.or(old);
        match kind {
            "none" => {}
            "linear" | "yarn" => {
                let factor = factor.ok_or_else(|| self.missing("rope.scaling.factor"))?;
                rope.insert("rope_type".to_owned(), json!(kind));
                rope.insert("factor".to_owned(), shortest(factor));
            }
            other => {
                return Err(GgufError::Unsupported {
                    key,
                    given: format!("{:?}", other.chars().take(80).collect::<String>()),
                    supported: "none, linear, yarn".to_owned(),
                });
            }
        }
        if kind == "yarn" {
            let original = self.count("rope.scaling.original_context_length")?;
            let context = self.required("context_length")?;
            rope.insert(
                "original_max_position_embeddings".to_owned(),
                json!(original.unwrap_or(context)),
            );
            for name in ["beta_fast", "beta_slow"] {
                if let Some(beta) = self.number(&format!("rope.scaling.yarn_{name}"))? {
                    rope.insert(name.to_owned(), shortest(beta));
                }
            }
        }
        Ok(Json::Object(rope))
    }

    /// The factors of frequencies in the tensor `name`; `None` if there is no such tensor.
    pub fn factors(&self, name: &str) -> Result<Option<Vec<f32>>, GgufError> {
        if !self.tensors.contains(name) {
            return Ok(None);
        }
        let invalid = |bound: &str, given: String| GgufError::Invalid {
            key: format!("tensor {name}"),
            bound: bound.to_owned(),
            given,
        };
        let factors = self.tensors.floats(name).ok_or_else(|| {
            let shape = self.tensors.shape(name);
            invalid("numbers in f32", format!("{shape:?}"))
        })?;
        match factors.iter().find(|f| !(f.is_finite() && **f > 0.0)) {
            Some(bad) => Err(invalid("finite and above 0", bad.to_string())),
            None => Ok(Some(factors)),
        }
    }
}
