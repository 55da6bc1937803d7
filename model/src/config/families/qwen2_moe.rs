//! Qwen1.5-MoE and Qwen2-MoE (arXiv 2407.10671): Qwen2 with experts in some layers, and one that all
//! tokens take.

use hearth_shaders::{ExpertActivation, Routing};

use super::super::bounds::MAX_WIDTH;
use super::super::defaults::{Defaults, KvHeads};
use super::super::error::ConfigError;
use super::super::experts::{self, ExpertsConfig};
use super::super::family::Family;
use super::super::fields::Fields;
use super::super::layers;
use super::super::{AttentionBias, ModelConfig};

pub(super) const FAMILY: Family = Family {
    class_name: "Qwen2MoeForCausalLM",
    model_type: "qwen2_moe",
    part: None,
    defaults: Defaults {
        max_position_embeddings: 32768,
        kv_heads: KvHeads::Number(16),
        bos: None,
        eos: &[],
        ..Defaults::LLAMA
    },
    reads: &[
        "sliding_window",
        "use_sliding_window",
        "max_window_layers",
        "layer_types",
        "num_local_experts",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
    ],
    describe,
};

fn describe(config: Fields<'_>, model: &mut ModelConfig) -> Result<(), ConfigError> {
    model.attention_bias = AttentionBias {
        qkv: config.boolean("qkv_bias")?.unwrap_or(true),
        output: false,
    };
    windows(config, model)?;
    let (experts, top) = experts::counts(config, model.layers.len(), (60, 4))?;
    let shared = config.count("shared_expert_intermediate_size", MAX_WIDTH)?;
    let experts = ExpertsConfig {
        experts,
        routing: Routing {
            top,
            weights: experts::weights(config)?,
        },
        width: experts::width(config, 1408)?,
        activation: ExpertActivation::Silu,
        bias: false,
        shared: Some(shared.unwrap_or(5632)),
    };
    experts::set_sparse(config, model, experts)
}

/// The windows of every second layer below `max_window_layers`, or of those that `layer_types` names.
fn windows(config: Fields<'_>, model: &mut ModelConfig) -> Result<(), ConfigError> {
    if !config.flag("use_sliding_window")? {
        return Ok(());
    }
    let count = model.layers.len();
    let window = layers::window(config, Some(4096))?;
    let sliding = match layers::sliding(config, count)? {
        Some(sliding) => sliding,
        None => {
            let end = config.integer("max_window_layers", 0, usize::MAX)?;
            let end = end.unwrap_or(28);
            (0..count).map(|i| i % 2 == 0 && i < end).collect()
        }
    };
    layers::set_windows(config, model, window, &sliding)
}
