//! The matrices of a model by the names of its modules in transformers.

use hearth_forward::{AdaptedMatrix, LayerMatrix};

use crate::config::ModelConfig;

const LAYER: [(&str, LayerMatrix); 7] = [
    ("self_attn.q_proj", LayerMatrix::Query),
    ("self_attn.k_proj", LayerMatrix::Key),
    ("self_attn.v_proj", LayerMatrix::Value),
    ("self_attn.o_proj", LayerMatrix::Output),
    ("mlp.gate_proj", LayerMatrix::Gate),
    ("mlp.up_proj", LayerMatrix::Up),
    ("mlp.down_proj", LayerMatrix::Down),
];

/// The matrix of a module: `model.layers.3.self_attn.q_proj`. Adapters of a bare base model lack the
/// `model.` in front.
pub fn matrix_of(module: &str, config: &ModelConfig) -> Option<AdaptedMatrix> {
    let inner = module.strip_prefix("model.").unwrap_or(module);
    match inner {
        "embed_tokens" => return Some(AdaptedMatrix::Embedding),
        "lm_head" => return Some(AdaptedMatrix::LmHead),
        _ => {}
    }
    let (layer, part) = inner.strip_prefix("layers.")?.split_once('.')?;
    let plain = layer.bytes().all(|byte| byte.is_ascii_digit());
    let layer: u32 = layer.parse().ok().filter(|_| plain)?;
    let (_, matrix) = LAYER.iter().find(|(name, _)| *name == part)?;
    ((layer as usize) < config.layers).then_some(AdaptedMatrix::Layer(layer, *matrix))
}
