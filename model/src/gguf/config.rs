//! The metadata of a GGUF file as the `config.json` that it was converted from.

use serde_json::{Map, Value as Json, json};

use super::error::GgufError;
use super::metadata::{Metadata, Value};
use super::tensors::Tensors;
use crate::config::{AttentionBias, ModelConfig, RopeScaling};

/// Names in `general.architecture` and the classes in Hugging Face's `architectures`. Mistral's
/// models are converted as `llama`.
const ARCHITECTURES: [(&str, &str); 3] = [
    ("llama", "LlamaForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
];
/// Keys that change the model in ways that are not implemented, each with the value that changes
/// nothing.
const NEUTRAL: [(&str, f64); 11] = [
    ("expert_count", 0.0),
    ("logit_scale", 1.0),
    ("residual_scale", 1.0),
    ("embedding_scale", 1.0),
    ("attention.scale", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("rope.scaling.attn_factor", 1.0),
    ("rope.scaling.yarn_attn_factor", 1.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
    ("rope.scaling.yarn_log_multiplier", 0.0),
];
/// The numbers that the frequencies are divided by (Llama 3.1's scaling, computed by the
/// converter).
const FREQUENCY_FACTORS: &str = "rope_freqs.weight";

pub(super) fn read(
    metadata: &Metadata<'_>,
    tensors: &Tensors<'_>,
) -> Result<ModelConfig, GgufError> {
    let architecture = metadata.architecture()?;
    let class = ARCHITECTURES
        .iter()
        .find(|(name, _)| *name == architecture)
        .map(|(_, class)| *class)
        .ok_or_else(|| GgufError::Unsupported {
            key: "general.architecture".to_owned(),
            given: format!("{:?}", architecture.chars().take(80).collect::<String>()),
            supported: ARCHITECTURES.map(|(name, _)| name).join(", "),
        })?;
    let keys = Keys {
        metadata,
        architecture,
    };
    keys.refuse_unimplemented_keys()?;

    let heads = keys.required("attention.head_count")?;
    let hidden = keys.required("embedding_length")?;
    let mut config = Map::new();
    let mut set = |name: &str, value: Json| config.insert(name.to_owned(), value);
    set("architectures", json!([class]));
    set("vocab_size", json!(vocabulary(tensors)?));
    set("hidden_size", json!(hidden));
    set(
        "intermediate_size",
        json!(keys.required("feed_forward_length")?),
    );
    set("num_hidden_layers", json!(keys.required("block_count")?));
    set("num_attention_heads", json!(heads));
    set(
        "num_key_value_heads",
        json!(keys.count("attention.head_count_kv")?.unwrap_or(heads)),
    );
    set(
        "max_position_embeddings",
        json!(keys.required("context_length")?),
    );
    let eps = "attention.layer_norm_rms_epsilon";
    let eps = keys.number(eps)?.ok_or_else(|| keys.missing(eps))?;
    // The file has an f32, and its shortest decimal is the number that was meant.
    set("rms_norm_eps", shortest(eps));
    let key_length = keys.count("attention.key_length")?;
    if let Some(value_length) = keys.count("attention.value_length")?
        && Some(value_length) != key_length
    {
        let bound = format!("{}.attention.key_length", keys.architecture);
        return Err(metadata.invalid(&keys.name("attention.value_length"), bound));
    }
    let head_dim = match key_length {
        Some(length) => length,
        None if heads > 0 => hidden / heads,
        None => return Err(metadata.invalid(&keys.name("attention.head_count"), "above 0")),
    };
    set("head_dim", json!(head_dim));
    let has = |name: &str| tensors.contains(name);
    set("tie_word_embeddings", json!(!has("output.weight")));
    set("mlp_bias", json!(has("blk.0.ffn_down.bias")));
    for (name, key) in [("bos_token_id", "bos"), ("eos_token_id", "eos")] {
        let id = metadata.count(&format!("tokenizer.ggml.{key}_token_id"))?;
        set(name, json!(id));
    }
    set("rope_parameters", keys.rope(head_dim)?);

    let text = Json::Object(config).to_string();
    let mut config = ModelConfig::from_json(&text)?;
    // In a GGUF file every tensor is used, whatever the architecture.
    config.attention_bias = AttentionBias {
        qkv: has("blk.0.attn_q.bias"),
        output: has("blk.0.attn_output.bias"),
    };
    if let Some(window) = keys.count("attention.sliding_window")?.filter(|w| *w > 0) {
        let window = u32::try_from(window).unwrap_or(u32::MAX);
        config.sliding_window = vec![Some(window); config.layers];
    }
    if has(FREQUENCY_FACTORS) {
        config.rope.scaling = keys.frequency_factors(&config, tensors)?;
    }
    Ok(config)
}

/// Rows of the embedding, which may have padding beyond the tokenizer's vocabulary.
fn vocabulary(tensors: &Tensors<'_>) -> Result<usize, GgufError> {
    let embedding = "token_embd.weight";
    tensors
        .shape(embedding)
        .map(|shape| shape[0])
        .ok_or_else(|| GgufError::Missing {
            key: format!("tensor {embedding}"),
        })
}

fn shortest(value: f64) -> Json {
    let text = (value as f32).to_string();
    text.parse::<f64>().map_or(Json::Null, |value| json!(value))
}

/// The keys that begin with the architecture's name.
struct Keys<'a> {
    metadata: &'a Metadata<'a>,
    architecture: &'a str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn missing(&self, key: &str) -> GgufError {
        GgufError::Missing {
            key: self.name(key),
        }
    }

    fn count(&self, key: &str) -> Result<Option<u64>, GgufError> {
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

    fn required(&self, key: &str) -> Result<u64, GgufError> {
        self.count(key)?.ok_or_else(|| self.missing(key))
    }

    fn number(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.metadata.number(&self.name(key))
    }

    fn refuse_unimplemented_keys(&self) -> Result<(), GgufError> {
        for (key, neutral) in NEUTRAL {
            let given = self.number(key)?.filter(|given| *given != neutral);
            if let Some(given) = given {
                return Err(GgufError::Unsupported {
                    key: self.name(key),
                    given: given.to_string(),
                    supported: neutral.to_string(),
                });
            }
        }
        let causal = self.name("attention.causal");
        if self.metadata.boolean(&causal)? == Some(false) {
            return Err(self.metadata.invalid(&causal, "true"));
        }
        Ok(())
    }

    /// The rotary parameters, as `rope_parameters` of `config.json`.
    fn rope(&self, head_dim: u64) -> Result<Json, GgufError> {
        let mut rope = Map::new();
        let theta = self.number("rope.freq_base")?.unwrap_or(10_000.0);
        rope.insert("rope_theta".to_owned(), shortest(theta));
        if let Some(rotary) = self.count("rope.dimension_count")?
            && rotary != head_dim
        {
            let share = rotary as f64 / head_dim.max(1) as f64;
            rope.insert("partial_rotary_factor".to_owned(), json!(share));
        }
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

    fn frequency_factors(
        &self,
        config: &ModelConfig,
        tensors: &Tensors<'_>,
    ) -> Result<RopeScaling, GgufError> {
        let invalid = |bound: String, given: String| GgufError::Invalid {
            key: format!("tensor {FREQUENCY_FACTORS}"),
            bound,
            given,
        };
        let pairs = config.rope.rotary_dim / 2;
        let factors = tensors
            .floats(FREQUENCY_FACTORS)
            .filter(|factors| factors.len() == pairs)
            .ok_or_else(|| {
                let shape = tensors.shape(FREQUENCY_FACTORS);
                invalid(format!("{pairs} numbers in f32"), format!("{shape:?}"))
            })?;
        if let Some(bad) = factors.iter().find(|f| !(f.is_finite() && **f > 0.0)) {
            return Err(invalid("finite and above 0".to_owned(), bad.to_string()));
        }
        if config.rope.scaling != RopeScaling::None {
            let key = self.name("rope.scaling.type");
            return Err(self
                .metadata
                .invalid(&key, format!("none beside {FREQUENCY_FACTORS}")));
        }
        Ok(RopeScaling::Divided { factors })
    }
}
