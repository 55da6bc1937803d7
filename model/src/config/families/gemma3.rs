//! Gemma 3 (arXiv 2503.19786), text alone: norms of query and key heads in place of bounds, and five layers
//! with a window and a rotation of their own for each layer without.

use super::super::defaults::Defaults;
use super::super::error::ConfigError;
use super::super::family::{Family, Part};
use super::super::fields::Fields;
use super::super::rope::RopeDefaults;
use super::super::{ModelConfig, QkNorms, TensorNames};
use super::gemma2;

pub(super) const TEXT: Family = Family {
    class_name: "Gemma3ForCausalLM",
    model_type: "gemma3_text",
    part: None,
    defaults: DEFAULTS,
    reads: READS,
    describe,
};

/// The model with a part for images, which is not loaded: requests have text alone.
pub(super) const WITH_IMAGES: Family = Family {
    class_name: "Gemma3ForConditionalGeneration",
    model_type: "gemma3",
    part: Some(Part {
        key: "text_config",
        prefix: "text_config.",
    }),
    defaults: Defaults {
        names: TensorNames {
            body: "language_model.model.",
            lm_head: "language_model.lm_head",
            ..DEFAULTS.names
        },
        ..DEFAULTS
    },
    reads: READS,
    describe,
};

const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(262_208),
    max_position_embeddings: 131_072,
    rope: RopeDefaults {
        theta: 1_000_000.0,
        local_theta: Some(10_000.0),
        ..RopeDefaults::LLAMA
    },
    ..gemma2::DEFAULTS
};

const READS: &[&str] = &[
    "final_logit_softcapping",
    "hidden_activation",
    "layer_types",
    "query_pre_attn_scalar",
    "rope_local_base_freq",
    "sliding_window",
    "sliding_window_pattern",
];

fn describe(config: Fields<'_>, model: &mut ModelConfig) -> Result<(), ConfigError> {
    gemma2::block(config, model)?;
    model.qk_norms = QkNorms::Heads;
    model.logit_cap = gemma2::cap(config, "final_logit_softcapping", None)?;
    let pattern = config.count("sliding_window_pattern", usize::MAX)?;
    gemma2::windows(config, model, pattern.unwrap_or(6))?;
    for layer in &mut model.layers {
        layer.rope = Some(usize::from(layer.window.is_some()));
    }
    Ok(())
}
