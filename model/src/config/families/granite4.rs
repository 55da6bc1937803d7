//! Granite 4 without experts and without recurrent layers: Granite 3 with a stacked MLP, and where the file
//! says so without rotations.

use super::super::bounds::MAX_WIDTH;
use super::super::defaults::Defaults;
use super::super::error::ConfigError;
use super::super::family::Family;
use super::super::fields::Fields;
use super::super::{AttentionBias, Mlp, ModelConfig, TensorNames};
use super::granite;

pub(super) const FAMILY: Family = Family {
    class_name: "GraniteMoeHybridForCausalLM",
    model_type: "granitemoehybrid",
    part: None,
    defaults: Defaults {
        names: TensorNames {
            gate_up: &["shared_mlp.input_linear"],
            down: "shared_mlp.output_linear",
            ..TensorNames::LLAMA
        },
        ..Defaults::LLAMA
    },
    reads: &[
        "attention_multiplier",
        "embedding_multiplier",
        "layer_types",
        "logits_scaling",
        "num_experts_per_tok",
        "num_local_experts",
        "residual_multiplier",
    ],
    describe,
};

fn describe(config: Fields<'_>, model: &mut ModelConfig) -> Result<(), ConfigError> {
    // An absent field means 8.
    if config.integer("num_local_experts", 0, usize::MAX)? != Some(0) {
        return Err(config.bad(
            "num_local_experts",
            "0: this architecture is loaded without experts",
        ));
    }
    let types = config
        .value("layer_types")
        .and_then(|types| types.as_array());
    let attends =
        |kind: &serde_json::Value| matches!(kind.as_str(), Some("attention" | "full_attention"));
    if !types.is_some_and(|types| types.len() == model.layers.len() && types.iter().all(attends)) {
        let bound =
            "\"attention\" for each layer: this architecture is loaded without recurrent layers";
        return Err(config.bad("layer_types", bound));
    }
    let width = config.count("shared_intermediate_size", MAX_WIDTH)?;
    let width = width.ok_or_else(|| config.missing("shared_intermediate_size"))?;
    let rotates = match config.text("position_embedding_type")? {
        Some("rope") => true,
        None | Some("nope") => false,
        Some(_) => return Err(config.bad("position_embedding_type", "\"rope\" or \"nope\"")),
    };
    for layer in &mut model.layers {
        layer.mlp = Mlp::Dense { width };
        layer.rope = layer.rope.filter(|_| rotates);
    }
    model.attention_bias = AttentionBias::all(config.flag("attention_bias")?);
    granite::factors(config, model)
}
