//! SmolLM3: Llama in which some layers rotate nothing (NoPE, arXiv 2501.18795).

use super::super::defaults::{Defaults, KvHeads};
use super::super::error::ConfigError;
use super::super::family::Family;
use super::super::fields::Fields;
use super::super::rope::RopeDefaults;
use super::super::{AttentionBias, ModelConfig, layers};

pub(super) const FAMILY: Family = Family {
    class_name: "SmolLM3ForCausalLM",
    model_type: "smollm3",
    part: None,
    defaults: Defaults {
        max_position_embeddings: 32768,
        kv_heads: KvHeads::Number(4),
        tie_word_embeddings: true,
        rope: RopeDefaults {
            theta: 2_000_000.0,
            ..RopeDefaults::LLAMA
        },
        bos: Some(128_000),
        eos: &[128_001],
        ..Defaults::LLAMA
    },
    reads: &[
        "layer_types",
        "max_window_layers",
        "no_rope_layer_interval",
        "no_rope_layers",
        "sliding_window",
        "use_sliding_window",
    ],
    describe,
};

fn describe(config: Fields<'_>, model: &mut ModelConfig) -> Result<(), ConfigError> {
    model.attention_bias = AttentionBias::all(config.flag("attention_bias")?);
    model.mlp_bias = config.flag("mlp_bias")?;
    let rotated = rotated(config, model.layers.len())?;
    for (layer, rotated) in model.layers.iter_mut().zip(&rotated) {
        layer.rope = layer.rope.filter(|_| *rotated);
    }
    if !config.flag("use_sliding_window")? {
        return Ok(());
    }
    let window = layers::window(config, None)?;
    // Without a list, the layers that rotate nothing have the window.
    let sliding = match layers::sliding(config, model.layers.len())? {
        Some(sliding) => sliding,
        None => rotated
            .iter()
            .map(|rotated| !rotated && window.is_some())
            .collect(),
    };
    layers::set_windows(config, model, window, &sliding)
}

/// `[layers]`: true for a layer that rotates its heads. The list in the file has 1 for a layer that does,
/// against its name.
fn rotated(config: Fields<'_>, layers: usize) -> Result<Vec<bool>, ConfigError> {
    let key = "no_rope_layers";
    let Some(value) = config.value(key) else {
        let interval = "no_rope_layer_interval";
        let interval = config.count(interval, usize::MAX)?.unwrap_or(4);
        return Ok((1..=layers)
            .map(|layer| !layer.is_multiple_of(interval))
            .collect());
    };
    // As in transformers, the list may be longer.
    let flags = value.as_array().and_then(|flags| flags.get(..layers));
    let flag = |value: &serde_json::Value| match value.as_u64() {
        Some(0) => Some(false),
        Some(1) => Some(true),
        _ => None,
    };
    flags
        .and_then(|flags| flags.iter().map(flag).collect())
        .ok_or_else(|| config.bad(key, format!("a list of at least {layers} zeros and ones")))
}
