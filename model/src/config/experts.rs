//! Mixture of experts: its fields in `config.json`, and the names of its tensors.

#[cfg(test)]
mod tests;

use std::collections::HashSet;

use hearth_shaders::{ExpertActivation, ExpertWeights, Routing};
use serde_json::Value;

use super::bounds::{MAX_ALL_EXPERTS, MAX_EXPERTS, MAX_LAYERS, MAX_WIDTH};
use super::error::ConfigError;
use super::fields::Fields;
use super::{Mlp, ModelConfig};

/// The experts of a layer, and the MLP that all tokens take besides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertsConfig {
    pub experts: usize,
    pub routing: Routing,
    /// The number of an expert's gates.
    pub width: usize,
    pub activation: ExpertActivation,
    /// The router and the projections of the experts have a bias.
    pub bias: bool,
    /// The number of gates of the shared expert, whose output is multiplied with the sigmoid of a further
    /// projection (Qwen2-MoE, arXiv 2407.10671).
    pub shared: Option<usize>,
}

/// A matrix of an expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertMatrix {
    Gate,
    Up,
    Down,
}

/// How a family names the tensors of experts, relative to the layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertNames {
    pub router: &'static str,
    /// The beginning of the names of tensors with all experts of a layer.
    pub merged: &'static str,
    /// The part of a name before the index of an expert.
    pub single: &'static str,
    /// The gate, up and down projections of one expert.
    pub matrices: [&'static str; 3],
    /// The gate, up and down projections of the shared expert.
    pub shared: [&'static str; 3],
    pub shared_gate: &'static str,
    /// In tensors with all experts, floats are `[experts, in, out]` and gates alternate with the rows
    /// that they are multiplied with (GPT-OSS).
    pub interleaved: bool,
}

impl ExpertNames {
    pub const QWEN: ExpertNames = ExpertNames {
        router: "mlp.gate",
        merged: "mlp.experts",
        single: "mlp.experts.",
        matrices: ["gate_proj", "up_proj", "down_proj"],
        shared: [
            "mlp.shared_expert.gate_proj",
            "mlp.shared_expert.up_proj",
            "mlp.shared_expert.down_proj",
        ],
        shared_gate: "mlp.shared_expert_gate",
        interleaved: false,
    };
}

/// The tensors of a layer's experts: how many there are, their sizes and their names.
pub struct ExpertTensors {
    pub experts: usize,
    pub width: usize,
    pub hidden: usize,
    /// The beginning of the names of tensors with all experts.
    pub merged: String,
    /// The beginning of the names of tensors with one expert, before its index.
    single: String,
    matrices: [&'static str; 3],
    /// As [`ExpertNames::interleaved`].
    pub interleaved: bool,
}

impl ExpertTensors {
    /// The module with a matrix of one expert.
    pub fn name(&self, expert: usize, matrix: ExpertMatrix) -> String {
        let matrix = self.matrices[matrix as usize];
        format!("{}{expert}.{matrix}", self.single)
    }
}

impl ModelConfig {
    /// The tensors of the experts of the layer `index`, if it has experts.
    pub fn expert_tensors(&self, index: usize) -> Option<ExpertTensors> {
        let Mlp::Experts(experts) = &self.layers[index].mlp else {
            return None;
        };
        let names = &self.names.experts;
        let full = |name: &str| self.names.in_layer(index, name);
        Some(ExpertTensors {
            experts: experts.experts,
            width: experts.width,
            hidden: self.hidden_size,
            merged: full(names.merged),
            single: full(names.single),
            matrices: names.matrices,
            interleaved: names.interleaved,
        })
    }

    /// The experts of a layer that has some; all such layers have the same sizes.
    pub fn experts(&self) -> Option<&ExpertsConfig> {
        self.layers.iter().find_map(|layer| match &layer.mlp {
            Mlp::Experts(experts) => Some(experts),
            Mlp::Dense { .. } => None,
        })
    }
}

/// Reads the number of experts, which files spell in either way, and those of a token.
pub(super) fn counts(
    config: Fields<'_>,
    layers: usize,
    default: (usize, usize),
) -> Result<(usize, usize), ConfigError> {
    let (one, other) = ("num_local_experts", "num_experts");
    let count = |key: &str| config.count(key, MAX_EXPERTS);
    let key = if config.value(one).is_some() {
        one
    } else {
        other
    };
    let experts = match (count(one)?, count(other)?) {
        (Some(a), Some(b)) if a != b => {
            return Err(config.bad(other, format!("{one} = {a}")));
        }
        (a, b) => a.or(b).unwrap_or(default.0),
    };
    if experts * layers > MAX_ALL_EXPERTS {
        return Err(ConfigError::Invalid {
            field: config.name(key),
            bound: format!("at most {MAX_ALL_EXPERTS} in all {layers} layers together"),
            given: format!("{experts} in each"),
        });
    }
    let key = "num_experts_per_tok";
    let top = config.count(key, MAX_EXPERTS)?.unwrap_or(default.1);
    if top > experts {
        return Err(ConfigError::Invalid {
            field: config.name(key),
            bound: format!("at most the number of experts, {experts}"),
            given: top.to_string(),
        });
    }
    Ok((experts, top))
}

/// `norm_topk_prob`: true if the weights of the chosen experts add up to 1.
pub(super) fn weights(config: Fields<'_>) -> Result<ExpertWeights, ConfigError> {
    Ok(match config.flag("norm_topk_prob")? {
        true => ExpertWeights::OfChosen,
        false => ExpertWeights::OfAll,
    })
}

/// `moe_intermediate_size`
pub(super) fn width(config: Fields<'_>, default: usize) -> Result<usize, ConfigError> {
    let width = config.count("moe_intermediate_size", MAX_WIDTH)?;
    Ok(width.unwrap_or(default))
}

/// Gives experts to every layer. `experts` gets the width of the file's `intermediate_size`.
pub(super) fn set_all(model: &mut ModelConfig, experts: impl Fn(usize) -> ExpertsConfig) {
    for layer in &mut model.layers {
        if let Mlp::Dense { width } = layer.mlp {
            layer.mlp = Mlp::Experts(experts(width));
        }
    }
}

/// Gives `experts` to every `decoder_sparse_step`-th layer that is not one of `mlp_only_layers`. The
/// others keep a dense MLP.
pub(super) fn set_sparse(
    config: Fields<'_>,
    model: &mut ModelConfig,
    experts: ExpertsConfig,
) -> Result<(), ConfigError> {
    let step = config
        .count("decoder_sparse_step", MAX_LAYERS)?
        .unwrap_or(1);
    let key = "mlp_only_layers";
    // A set, because the list of a stranger may be long.
    let dense: HashSet<u64> = match config.value(key) {
        None => HashSet::new(),
        Some(value) => {
            let layers = value.as_array();
            layers
                .and_then(|layers| layers.iter().map(Value::as_u64).collect())
                .ok_or_else(|| config.bad(key, "a list of indices of layers"))?
        }
    };
    for (index, layer) in model.layers.iter_mut().enumerate() {
        if !dense.contains(&(index as u64)) && (index + 1).is_multiple_of(step) {
            layer.mlp = Mlp::Experts(experts);
        }
    }
    Ok(())
}
