//! Mixtral (arXiv 2401.04088): Mistral with experts in every layer, the weights of which always add up
//! to 1.

use hearth_shaders::{ExpertActivation, ExpertWeights, Routing};

use super::super::defaults::{Defaults, KvHeads};
use super::super::error::ConfigError;
use super::super::experts::{self, ExpertNames, ExpertsConfig};
use super::super::family::Family;
use super::super::fields::Fields;
use super::super::layers;
use super::super::rope::RopeDefaults;
use super::super::{ModelConfig, TensorNames};

pub(super) const FAMILY: Family = Family {
    class_name: "MixtralForCausalLM",
    model_type: "mixtral",
    part: None,
    defaults: Defaults {
        max_position_embeddings: 4096 * 32,
        kv_heads: KvHeads::Number(8),
        rms_norm_eps: 1e-5,
        rope: RopeDefaults {
            theta: 1_000_000.0,
            ..RopeDefaults::LLAMA
        },
        names: TensorNames {
            experts: ExpertNames {
                router: "block_sparse_moe.gate",
                single: "block_sparse_moe.experts.",
                matrices: ["w1", "w3", "w2"],
                ..ExpertNames::QWEN
            },
            ..TensorNames::LLAMA
        },
        ..Defaults::LLAMA
    },
    reads: &[
        "sliding_window",
        "num_local_experts",
        "num_experts",
        "num_experts_per_tok",
    ],
    describe,
};

fn describe(config: Fields<'_>, model: &mut ModelConfig) -> Result<(), ConfigError> {
    let window = layers::window(config, None)?;
    let (experts, top) = experts::counts(config, model.layers.len(), (8, 2))?;
    layers::set_window(model, window);
    experts::set_all(model, |width| ExpertsConfig {
        experts,
        routing: Routing {
            top,
            weights: ExpertWeights::OfChosen,
        },
        width,
        activation: ExpertActivation::Silu,
        bias: false,
        shared: None,
    });
    Ok(())
}
