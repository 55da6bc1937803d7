//! Mistral (arXiv 2310.06825): Llama with a sliding window in every layer.

use super::super::ModelConfig;
use super::super::defaults::{Defaults, KvHeads};
use super::super::error::ConfigError;
use super::super::family::Family;
use super::super::fields::Fields;
use super::super::layers;

pub(super) const FAMILY: Family = Family {
    class_name: "MistralForCausalLM",
    model_type: "mistral",
    part: None,
    defaults: Defaults {
        max_position_embeddings: 4096 * 32,
        kv_heads: KvHeads::Number(8),
        ..Defaults::LLAMA
    },
    reads: &["sliding_window"],
    describe,
};

fn describe(config: Fields<'_>, model: &mut ModelConfig) -> Result<(), ConfigError> {
    let window = layers::window(config, Some(4096))?;
    layers::set_window(model, window);
    Ok(())
}
