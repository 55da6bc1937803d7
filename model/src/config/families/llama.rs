//! Llama (arXiv 2302.13971) and all that share its class.

use super::super::defaults::Defaults;
use super::super::error::ConfigError;
use super::super::family::Family;
use super::super::fields::Fields;
use super::super::{AttentionBias, ModelConfig};

pub(super) const FAMILY: Family = Family {
    class_name: "LlamaForCausalLM",
    model_type: "llama",
    part: None,
    defaults: Defaults::LLAMA,
    // transformers' Llama has no windows, and ignores these fields.
    reads: &["sliding_window", "layer_types"],
    describe,
};

fn describe(config: Fields<'_>, model: &mut ModelConfig) -> Result<(), ConfigError> {
    model.attention_bias = AttentionBias::all(config.flag("attention_bias")?);
    model.mlp_bias = config.flag("mlp_bias")?;
    Ok(())
}
