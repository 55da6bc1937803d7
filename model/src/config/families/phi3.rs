//! Phi-3 (arXiv 2404.14219), Phi-4 and Phi-4-mini (arXiv 2503.01743): stacked projections, LongRoPE and a
//! rotation of part of each head.

use super::super::defaults::Defaults;
use super::super::error::ConfigError;
use super::super::family::Family;
use super::super::fields::Fields;
use super::super::rope::RopeDefaults;
use super::super::{ModelConfig, RopeScaling, TensorNames, layers};

pub(super) const FAMILY: Family = Family {
    class_name: "Phi3ForCausalLM",
    model_type: "phi3",
    part: None,
    defaults: Defaults {
        max_position_embeddings: 4096,
        rms_norm_eps: 1e-5,
        rope: RopeDefaults {
            original_max_position: Some(4096),
            ..RopeDefaults::LLAMA
        },
        bos: Some(1),
        eos: &[32000],
        names: TensorNames {
            qkv: &["self_attn.qkv_proj"],
            gate_up: &["mlp.gate_up_proj"],
            ..TensorNames::LLAMA
        },
        ..Defaults::LLAMA
    },
    reads: &["sliding_window"],
    describe,
};

fn describe(config: Fields<'_>, model: &mut ModelConfig) -> Result<(), ConfigError> {
    // transformers reads "yarn" in these files as another name of LongRoPE, and no other types.
    match model.ropes[0].scaling {
        RopeScaling::None | RopeScaling::LongRope { .. } => {}
        _ => {
            let keys = ["rope_scaling", "rope_parameters"];
            let key = keys.into_iter().find(|key| config.value(key).is_some());
            let bound = "of the type \"longrope\" in this architecture";
            return Err(config.bad(key.unwrap_or(keys[0]), bound));
        }
    }
    let window = layers::window(config, None)?;
    layers::set_window(model, window);
    Ok(())
}
