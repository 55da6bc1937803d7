//! Granite 3: Llama with factors of embeddings, residuals, scores and logits.

use super::super::defaults::Defaults;
use super::super::error::ConfigError;
use super::super::family::Family;
use super::super::fields::Fields;
use super::super::{AttentionBias, ModelConfig};

pub(super) const FAMILY: Family = Family {
    class_name: "GraniteForCausalLM",
    model_type: "granite",
    part: None,
    defaults: Defaults::LLAMA,
    reads: FACTORS,
    describe,
};

pub(super) const FACTORS: &[&str] = &[
    "attention_multiplier",
    "embedding_multiplier",
    "logits_scaling",
    "residual_multiplier",
];

fn describe(config: Fields<'_>, model: &mut ModelConfig) -> Result<(), ConfigError> {
    model.attention_bias = AttentionBias::all(config.flag("attention_bias")?);
    model.mlp_bias = config.flag("mlp_bias")?;
    factors(config, model)
}

/// The factors; each is 1 if it is absent, that of scores too.
pub(super) fn factors(config: Fields<'_>, model: &mut ModelConfig) -> Result<(), ConfigError> {
    let factor = |key: &str| Ok::<f32, ConfigError>(config.factor(key)?.unwrap_or(1.0));
    model.attention_scale = factor("attention_multiplier")?;
    model.embedding_scale = factor("embedding_multiplier")?;
    model.logit_divisor = factor("logits_scaling")?;
    model.residual_scale = factor("residual_multiplier")?;
    Ok(())
}
