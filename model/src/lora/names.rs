//! The matrices of a model by the names of its modules in transformers.

use hearth_forward::{AdaptedMatrix, LayerMatrix};

use crate::config::{ModelConfig, TensorNames};
use crate::transformer::matrix_shape;

/// The modules of a layer that have a matrix of their own here. A module that a checkpoint stores
/// stacked of several matrices has none, so that its adapters are refused.
fn modules(names: &TensorNames) -> Vec<(&'static str, LayerMatrix)> {
    use LayerMatrix::{Down, Gate, Key, Output, Query, Up, Value};
    let apart = |modules: &'static [&'static str], matrices: &[LayerMatrix]| {
        let pairs = modules.iter().copied().zip(matrices.to_vec());
        let whole = modules.len() == matrices.len();
        pairs.filter(|_| whole).collect::<Vec<_>>()
    };
    let mut modules = vec![(names.output, Output), (names.down, Down)];
    modules.extend(apart(names.qkv, &[Query, Key, Value]));
    modules.extend(apart(names.gate_up, &[Gate, Up]));
    modules
}

/// The modules whose tables can be replaced whole, in the order of their matrices.
pub fn table_modules(config: &ModelConfig) -> [(AdaptedMatrix, String); 2] {
    let embedding = format!("{}embed_tokens", config.names.body);
    let lm_head = config.names.lm_head.to_owned();
    [
        (AdaptedMatrix::Embedding, embedding),
        (AdaptedMatrix::LmHead, lm_head),
    ]
}

/// The matrix of a module: `model.layers.3.self_attn.q_proj`. Adapters of a bare base model lack the
/// `model.` in front.
pub fn matrix_of(module: &str, config: &ModelConfig) -> Option<AdaptedMatrix> {
    if module == config.names.lm_head {
        return Some(AdaptedMatrix::LmHead);
    }
    let inner = module.strip_prefix(config.names.body).unwrap_or(module);
    if inner == "embed_tokens" {
        return Some(AdaptedMatrix::Embedding);
    }
    let (layer, part) = inner.strip_prefix("layers.")?.split_once('.')?;
    let plain = layer.bytes().all(|byte| byte.is_ascii_digit());
    let layer: u32 = layer.parse().ok().filter(|_| plain)?;
    let modules = modules(&config.names);
    let (_, matrix) = modules.iter().find(|(name, _)| *name == part)?;
    let matrix = AdaptedMatrix::Layer(layer, *matrix);
    let there = (layer as usize) < config.layers.len();
    (there && matrix_shape(config, matrix).is_some()).then_some(matrix)
}

/// True if the tensor `name` belongs to experts of the model or to their router.
pub fn is_of_experts(name: &str, config: &ModelConfig) -> bool {
    let names = &config.names.experts;
    let of_experts = [names.router, names.merged, names.single, names.shared_gate];
    let mut of_experts = of_experts.iter().chain(&names.shared);
    config.experts().is_some() && of_experts.any(|module| name.contains(module))
}

/// The reason to refuse the tensor `name` of a module that [`matrix_of`] does not know.
pub fn unknown_module(name: &str, config: &ModelConfig) -> &'static str {
    match is_of_experts(name, config) {
        true => "adapters of experts and of their router are not supported",
        false => "this model has no such module",
    }
}
