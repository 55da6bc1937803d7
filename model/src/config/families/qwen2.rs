//! Qwen2 and Qwen2.5 (arXiv 2407.10671): Llama with biases of queries, keys and values, and windows in
//! some layers.

use super::super::defaults::{Defaults, KvHeads};
use super::super::error::ConfigError;
use super::super::family::Family;
use super::super::fields::Fields;
use super::super::layers;
use super::super::{AttentionBias, ModelConfig};

pub(super) const FAMILY: Family = Family {
    class_name: "Qwen2ForCausalLM",
    model_type: "qwen2",
    part: None,
    defaults: Defaults {
        max_position_embeddings: 32768,
        kv_heads: KvHeads::Number(32),
        bos: None,
        eos: &[],
        ..Defaults::LLAMA
    },
    reads: READS,
    describe,
};

pub(super) const READS: &[&str] = &[
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
];

fn describe(config: Fields<'_>, model: &mut ModelConfig) -> Result<(), ConfigError> {
    model.attention_bias = AttentionBias {
        qkv: true,
        output: false,
    };
    windows(config, model)
}

/// The windows of the layers from `max_window_layers` on, or of those that `layer_types` names.
pub(super) fn windows(config: Fields<'_>, model: &mut ModelConfig) -> Result<(), ConfigError> {
    if !config.flag("use_sliding_window")? {
        return Ok(());
    }
    let window = layers::window(config, Some(4096))?;
    if let Some(sliding) = layers::sliding(config, model.layers.len())? {
        return layers::set_windows(config, model, window, &sliding);
    }
    let first = config
        .integer("max_window_layers", 0, usize::MAX)?
        .unwrap_or(28);
    let upper = model.layers.iter_mut().skip(first);
    upper.for_each(|layer| layer.window = window);
    Ok(())
}
