//! Gemma 2 (arXiv 2408.00118): norms before and after, bounded scores and logits, and a window in every
//! other layer.

use super::super::defaults::{Defaults, KvHeads};
use super::super::error::ConfigError;
use super::super::family::Family;
use super::super::fields::Fields;
use super::super::{Activation, AttentionBias, ModelConfig, NormPlacement, TensorNames, layers};

pub(super) const FAMILY: Family = Family {
    class_name: "Gemma2ForCausalLM",
    model_type: "gemma2",
    part: None,
    defaults: DEFAULTS,
    reads: &[
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "hidden_activation",
        "layer_types",
        "query_pre_attn_scalar",
        "sliding_window",
    ],
    describe,
};

pub(super) const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(256_000),
    heads: Some(8),
    kv_heads: KvHeads::Number(4),
    head_dim: Some(256),
    max_position_embeddings: 8192,
    activation_field: "hidden_activation",
    activation: Activation::GeluTanh,
    tie_word_embeddings: true,
    bos: Some(2),
    eos: &[1],
    names: TensorNames {
        mlp_norm: "pre_feedforward_layernorm",
        ..TensorNames::LLAMA
    },
    ..Defaults::LLAMA
};

fn describe(config: Fields<'_>, model: &mut ModelConfig) -> Result<(), ConfigError> {
    block(config, model)?;
    model.attention_cap = cap(config, "attn_logit_softcapping", Some(50.0))?;
    model.logit_cap = cap(config, "final_logit_softcapping", Some(30.0))?;
    windows(config, model, 2)
}

/// The parts of the description that Gemma 2 and 3 have in common.
pub(super) fn block(config: Fields<'_>, model: &mut ModelConfig) -> Result<(), ConfigError> {
    model.attention_bias = AttentionBias::all(config.flag("attention_bias")?);
    model.norms = NormPlacement::Both;
    model.norms_from_one = true;
    model.exceeds_f16 = true;
    model.embedding_scale = (model.hidden_size as f64).sqrt() as f32;
    let scalar = config.positive("query_pre_attn_scalar")?.unwrap_or(256.0);
    model.attention_scale = scalar.powf(-0.5) as f32;
    if !model.attention_scale.is_normal() {
        return Err(config.bad("query_pre_attn_scalar", "a number of usual size"));
    }
    Ok(())
}

/// A bound of scores or logits: `default` if the field is absent, and none if it is `null`.
pub(super) fn cap(
    config: Fields<'_>,
    key: &str,
    default: Option<f32>,
) -> Result<Option<f32>, ConfigError> {
    match config.factor(key)? {
        None if config.raw(key).is_none() => Ok(default),
        cap => Ok(cap),
    }
}

/// Windows in the layers that `layer_types` names, or in all but each layer whose number is a multiple
/// of `every`.
pub(super) fn windows(
    config: Fields<'_>,
    model: &mut ModelConfig,
    every: usize,
) -> Result<(), ConfigError> {
    let count = model.layers.len();
    let sliding = match layers::sliding(config, count)? {
        Some(sliding) => sliding,
        None => (1..=count)
            .map(|layer| !layer.is_multiple_of(every))
            .collect(),
    };
    let window = layers::window(config, Some(4096))?;
    layers::set_windows(config, model, window, &sliding)
}
