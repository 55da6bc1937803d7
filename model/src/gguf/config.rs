//! The metadata of a GGUF file as the `config.json` that it was converted from.

use serde_json::{Map, Value as Json, json};

use super::error::GgufError;
use super::families::Family;
use super::keys::{Keys, shortest};
use super::metadata::Metadata;
use super::tensors::Tensors;
use crate::config::{AttentionBias, ModelConfig, RopeScaling};

/// The numbers that the frequencies are divided by (Llama 3.1's scaling, computed by the
/// converter).
const FREQUENCY_FACTORS: &str = "rope_freqs.weight";

pub(super) fn read(
    metadata: &Metadata<'_>,
    tensors: &Tensors<'_>,
) -> Result<ModelConfig, GgufError> {
    let keys = Keys {
        metadata,
        tensors,
        architecture: metadata.architecture()?,
    };
    let family = Family::of(&keys)?;

    let heads = keys.required("attention.head_count")?;
    let mut config = Map::new();
    let mut set = |name: &str, value: Json| config.insert(name.to_owned(), value);
    set("architectures", json!([family.class_name]));
    set("vocab_size", json!(vocabulary(tensors)?));
    set("hidden_size", json!(keys.required("embedding_length")?));
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
    set("rms_norm_eps", shortest(eps));
    let head_dim = keys.head_dim()?;
    set("head_dim", json!(head_dim));
    let has = |name: &str| tensors.contains(name);
    set("tie_word_embeddings", json!(!has("output.weight")));
    for (name, key) in [("bos_token_id", "bos"), ("eos_token_id", "eos")] {
        let id = metadata.count(&format!("tokenizer.ggml.{key}_token_id"))?;
        set(name, json!(id));
    }
    set("rope_parameters", keys.rope(head_dim)?);
    (family.describe)(&keys, &mut config)?;

    let windows = config.contains_key("layer_types") || config.contains_key("sliding_window");
    let text = Json::Object(config).to_string();
    let mut config = ModelConfig::from_json(&text)?;
    // In a GGUF file every tensor is used, whatever the architecture.
    config.attention_bias = AttentionBias {
        qkv: has("blk.0.attn_q.bias") || has("blk.0.attn_qkv.bias"),
        output: has("blk.0.attn_output.bias"),
    };
    config.mlp_bias = has("blk.0.ffn_down.bias");
    // The converter adds the 1.
    config.norms_from_one = false;
    if let Some(window) = keys.count("attention.sliding_window")?.filter(|w| *w > 0)
        && !windows
    {
        let window = u32::try_from(window).unwrap_or(u32::MAX);
        let layers = config.layers.iter_mut();
        layers.for_each(|layer| layer.window = Some(window));
    }
    if let Some(factors) = keys.factors(FREQUENCY_FACTORS)? {
        divide(&keys, &mut config, factors)?;
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

/// Sets the factors that the frequencies are divided by.
fn divide(keys: &Keys<'_>, config: &mut ModelConfig, factors: Vec<f32>) -> Result<(), GgufError> {
    let beside = format!("none beside {FREQUENCY_FACTORS}");
    let [rope] = config.ropes.as_mut_slice() else {
        return Err(keys
            .metadata
            .invalid("general.architecture", "one with a single rotation"));
    };
    let pairs = rope.rotary_dim / 2;
    if factors.len() != pairs {
        return Err(GgufError::Invalid {
            key: format!("tensor {FREQUENCY_FACTORS}"),
            bound: format!("{pairs} numbers in f32"),
            given: factors.len().to_string(),
        });
    }
    if rope.scaling != RopeScaling::None {
        let key = keys.name("rope.scaling.type");
        return Err(keys.metadata.invalid(&key, beside));
    }
    rope.scaling = RopeScaling::Divided { factors };
    Ok(())
}
