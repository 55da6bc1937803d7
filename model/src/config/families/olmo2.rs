//! OLMo 2 (arXiv 2501.00656): norms after attention and MLP, and over whole queries and keys.

use super::super::defaults::Defaults;
use super::super::error::ConfigError;
use super::super::family::Family;
use super::super::fields::Fields;
use super::super::{AttentionBias, ModelConfig, NormPlacement, QkNorms};

pub(super) const FAMILY: Family = Family {
    class_name: "Olmo2ForCausalLM",
    model_type: "olmo2",
    part: None,
    defaults: Defaults {
        rms_norm_eps: 1e-5,
        bos: None,
        eos: &[50279],
        ..Defaults::LLAMA
    },
    reads: &[],
    describe,
};

fn describe(config: Fields<'_>, model: &mut ModelConfig) -> Result<(), ConfigError> {
    model.attention_bias = AttentionBias::all(config.flag("attention_bias")?);
    model.norms = NormPlacement::After;
    model.qk_norms = QkNorms::Projections;
    Ok(())
}
