//! GPT-OSS (arXiv 2508.10925): experts with biases and a clamped activation, a sink for each head, and
//! windows in every second layer.

use hearth_shaders::{ExpertActivation, ExpertWeights, Routing};

use super::super::defaults::{Defaults, KvHeads};
use super::super::error::ConfigError;
use super::super::experts::{self, ExpertNames, ExpertsConfig};
use super::super::family::Family;
use super::super::fields::Fields;
use super::super::layers;
use super::super::rope::RopeDefaults;
use super::super::{AttentionBias, ModelConfig, TensorNames};

pub(super) const FAMILY: Family = Family {
    class_name: "GptOssForCausalLM",
    model_type: "gpt_oss",
    part: None,
    defaults: Defaults {
        max_position_embeddings: 131_072,
        kv_heads: KvHeads::Number(8),
        head_dim: Some(64),
        rms_norm_eps: 1e-5,
        rope: RopeDefaults {
            theta: 150_000.0,
            ..RopeDefaults::LLAMA
        },
        bos: None,
        eos: &[],
        names: TensorNames {
            experts: ExpertNames {
                router: "mlp.router",
                interleaved: true,
                ..ExpertNames::QWEN
            },
            ..TensorNames::LLAMA
        },
        ..Defaults::LLAMA
    },
    reads: &[
        "sliding_window",
        "layer_types",
        "num_local_experts",
        "num_experts",
        "num_experts_per_tok",
        "swiglu_limit",
    ],
    describe,
};

fn describe(config: Fields<'_>, model: &mut ModelConfig) -> Result<(), ConfigError> {
    let bias = config.boolean("attention_bias")?.unwrap_or(true);
    model.attention_bias = AttentionBias::all(bias);
    let count = model.layers.len();
    let window = layers::window(config, Some(128))?;
    let sliding = layers::sliding(config, count)?;
    let sliding = sliding.unwrap_or_else(|| (0..count).map(|i| i % 2 == 0).collect());
    layers::set_windows(config, model, window, &sliding)?;
    let (experts, top) = experts::counts(config, count, (128, 4))?;
    let activation = ExpertActivation::Clamped {
        alpha: config.factor("swiglu_alpha")?.unwrap_or(1.702),
        limit: config.factor("swiglu_limit")?.unwrap_or(7.0),
    };
    for layer in &mut model.layers {
        layer.sinks = true;
    }
    experts::set_all(model, |width| ExpertsConfig {
        experts,
        routing: Routing {
            top,
            weights: ExpertWeights::OfChosen,
        },
        width,
        activation,
        bias: true,
        shared: None,
    });
    Ok(())
}
