//! Qwen3-MoE (arXiv 2505.09388): Qwen3 with experts in some layers.

use hearth_shaders::{ExpertActivation, Routing};

use super::super::defaults::{Defaults, KvHeads};
use super::super::error::ConfigError;
use super::super::experts::{self, ExpertsConfig};
use super::super::family::Family;
use super::super::fields::Fields;
use super::super::layers;
use super::super::{AttentionBias, ModelConfig, QkNorms};

pub(super) const FAMILY: Family = Family {
    class_name: "Qwen3MoeForCausalLM",
    model_type: "qwen3_moe",
    part: None,
    defaults: Defaults {
        max_position_embeddings: 32768,
        kv_heads: KvHeads::Number(4),
        bos: None,
        eos: &[],
        ..Defaults::LLAMA
    },
    reads: &[
        "sliding_window",
        "use_sliding_window",
        "max_window_layers",
        "num_local_experts",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
    ],
    describe,
};

fn describe(config: Fields<'_>, model: &mut ModelConfig) -> Result<(), ConfigError> {
    model.attention_bias = AttentionBias::all(config.flag("attention_bias")?);
    model.qk_norms = QkNorms::Heads;
    // Unlike in Qwen3, all layers have the window, whatever `max_window_layers` says.
    if config.flag("use_sliding_window")? {
        let window = layers::window(config, Some(4096))?;
        layers::set_window(model, window);
    }
    let (experts, top) = experts::counts(config, model.layers.len(), (128, 8))?;
    let experts = ExpertsConfig {
        experts,
        routing: Routing {
            top,
            weights: experts::weights(config)?,
        },
        width: experts::width(config, 768)?,
        activation: ExpertActivation::Silu,
        bias: false,
        shared: None,
    };
    experts::set_sparse(config, model, experts)
}
