//! Qwen3 (arXiv 2505.09388): Qwen2 with a norm of each query and key head in place of the biases.

use super::super::defaults::{Defaults, KvHeads};
use super::super::error::ConfigError;
use super::super::family::Family;
use super::super::fields::Fields;
use super::super::{AttentionBias, ModelConfig, QkNorms};
use super::qwen2;

pub(super) const FAMILY: Family = Family {
    class_name: "Qwen3ForCausalLM",
    model_type: "qwen3",
    part: None,
    defaults: Defaults {
        max_position_embeddings: 32768,
        kv_heads: KvHeads::Number(32),
        head_dim: Some(128),
        bos: None,
        eos: &[],
        ..Defaults::LLAMA
    },
    reads: qwen2::READS,
    describe,
};

fn describe(config: Fields<'_>, model: &mut ModelConfig) -> Result<(), ConfigError> {
    model.attention_bias = AttentionBias::all(config.flag("attention_bias")?);
    model.qk_norms = QkNorms::Heads;
    qwen2::windows(config, model)
}
