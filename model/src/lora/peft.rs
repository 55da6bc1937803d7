//! An adapter as PEFT saves it: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::BTreeMap;
use std::path::Path;

use hearth_forward::{AdaptedMatrix, LowRank};
use serde_json::{Map, Value};

use super::base::Base;
use super::error::LoraError;
use super::names::{is_of_experts, matrix_of, unknown_module};
use super::peft_config::PeftConfig;
use super::relative::Relative;
use super::{Factors, check_finite, check_shapes, read_file};
use crate::config::ModelConfig;
use crate::transformer::matrix_shape;
use crate::weights::Weights;

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";
/// The prefix that PEFT gives the name of every module.
const PREFIX: &str = "base_model.model.";
/// The longest configuration.
const MAX_CONFIG: u64 = 4 << 20;

/// The part that a tensor has in the change of its module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    A,
    B,
    Bias,
    EmbeddingA,
    EmbeddingB,
    Magnitude,
    /// The bias in place of the base model's.
    BaseBias,
}

/// The first that a name ends with counts.
const SUFFIXES: [(&str, Part); 9] = [
    (".lora_A.weight", Part::A),
    (".lora_B.weight", Part::B),
    (".lora_B.bias", Part::Bias),
    (".lora_embedding_A", Part::EmbeddingA),
    (".lora_embedding_B", Part::EmbeddingB),
    (".lora_magnitude_vector", Part::Magnitude),
    (".lora_magnitude_vector.weight", Part::Magnitude),
    (".base_layer.bias", Part::BaseBias),
    (".bias", Part::BaseBias),
];

/// The names of the tensors of one module.
struct Module<'a> {
    name: &'a str,
    a: Option<&'a str>,
    b: Option<&'a str>,
    bias: Option<&'a str>,
    magnitude: Option<&'a str>,
    base_bias: Option<&'a str>,
}

/// The changes of the adapter in `dir`.
pub fn read(dir: &Path, base: &Base<'_>, most_rank: usize) -> Result<Vec<LowRank>, LoraError> {
    let config = base.config;
    let adapter = read_config(dir)?;
    let path = dir.join(TENSORS);
    if !path.exists() && dir.join("adapter_model.bin").exists() {
        return Err(LoraError::tensor(
            "adapter_model.bin",
            format!("pickled files are not supported; save the adapter as {TENSORS}"),
        ));
    }
    let weights = Weights::from_bytes(path.clone(), read_file(&path, config, most_rank)?)?;
    let modules = modules(&weights, config)?;
    modules
        .into_iter()
        .map(|(matrix, module)| change(&weights, &adapter, matrix, &module, base, most_rank))
        .collect()
}

fn read_config(dir: &Path) -> Result<PeftConfig, LoraError> {
    let path = dir.join(CONFIG);
    let io = |error| LoraError::Io {
        path: path.clone(),
        error,
    };
    if !path.is_file() {
        return Err(LoraError::NotFound(dir.to_owned()));
    }
    let json = |reason: String| LoraError::Json {
        path: path.clone(),
        reason,
    };
    if path.metadata().map_err(io)?.len() > MAX_CONFIG {
        return Err(json(format!("it has more than {MAX_CONFIG} bytes")));
    }
    let text = std::fs::read_to_string(&path).map_err(io)?;
    let fields: Map<String, Value> =
        serde_json::from_str(&text).map_err(|error| json(error.to_string()))?;
    PeftConfig::read(&fields)
}

/// The tensors by the matrix that they change.
///
/// # Errors
/// Names a tensor that changes nothing that is known: leaving it out would leave out a part of the
/// adapter.
fn modules<'a>(
    weights: &'a Weights,
    config: &ModelConfig,
) -> Result<BTreeMap<AdaptedMatrix, Module<'a>>, LoraError> {
    let mut modules: BTreeMap<AdaptedMatrix, Module<'a>> = BTreeMap::new();
    let (mut unknown, mut known) = (None, false);
    for tensor in weights.names() {
        let name = tensor.strip_prefix(PREFIX).unwrap_or(tensor);
        let part = SUFFIXES
            .iter()
            .find_map(|(suffix, part)| Some((name.strip_suffix(suffix)?, *part)));
        let Some((module, part)) = part else {
            return Err(LoraError::tensor(tensor, unsupported(name)));
        };
        let Some(matrix) = matrix_of(module, config) else {
            unknown = unknown.or(Some(tensor));
            continue;
        };
        known = true;
        let is_embedding = matrix == AdaptedMatrix::Embedding;
        let of_embeddings = match part {
            Part::EmbeddingA | Part::EmbeddingB => Some(true),
            Part::A | Part::B | Part::Bias | Part::BaseBias => Some(false),
            Part::Magnitude => None,
        };
        if of_embeddings.is_some_and(|of_embeddings| of_embeddings != is_embedding) {
            let reason = "the tensor of an embedding has another name";
            return Err(LoraError::tensor(tensor, reason));
        }
        let entry = modules.entry(matrix).or_insert(Module {
            name: module,
            a: None,
            b: None,
            bias: None,
            magnitude: None,
            base_bias: None,
        });
        let place = match part {
            Part::A | Part::EmbeddingA => &mut entry.a,
            Part::B | Part::EmbeddingB => &mut entry.b,
            Part::Bias => &mut entry.bias,
            Part::Magnitude => &mut entry.magnitude,
            Part::BaseBias => &mut entry.base_bias,
        };
        if place.replace(tensor).is_some() {
            return Err(LoraError::tensor(
                tensor,
                "there are two tensors for its module",
            ));
        }
    }
    match unknown {
        None => Ok(modules),
        // Where no name fits, it is the adapter of another model, which one name does not say.
        Some(tensor) if known || is_of_experts(tensor, config) => {
            Err(LoraError::tensor(tensor, unknown_module(tensor, config)))
        }
        Some(_) => Err(LoraError::NoMatch),
    }
}

/// Why a tensor that is no factor of a change is refused.
fn unsupported(name: &str) -> &'static str {
    if name.contains("token_adapter") {
        "`trainable_token_indices` is not supported"
    } else if name.contains(".base_layer.") {
        "weights of the base model, as of a resized vocabulary, are not supported"
    } else if name.contains(".lora_") {
        "it is no factor of a change that is known"
    } else {
        "whole weights (`modules_to_save`) are not supported"
    }
}

/// The numbers of a tensor of the adapter.
fn values(weights: &Weights, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoraError> {
    let values = weights.get(name, shape)?.to_f32();
    check_finite(name, &values)?;
    Ok(values)
}

/// The change of a module, and what it is relative to the base model.
fn change(
    weights: &Weights,
    adapter: &PeftConfig,
    matrix: AdaptedMatrix,
    module: &Module<'_>,
    base: &Base<'_>,
    most_rank: usize,
) -> Result<LowRank, LoraError> {
    let mut change = match module.base_bias {
        Some(bias) if [module.a, module.b, module.bias, module.magnitude] == [None; 4] => {
            nothing(bias, matrix, base.config)?
        }
        _ => factors(weights, adapter, matrix, module, base.config, most_rank)?,
    };
    let output = [change.b.len() / change.rank];
    let relative = Relative {
        magnitude: match (module.magnitude, adapter.dora) {
            (Some(magnitude), true) => Some(values(weights, magnitude, &output)?),
            (None, false) => None,
            (Some(magnitude), false) => {
                let reason = "`use_dora` in adapter_config.json is not true";
                return Err(LoraError::tensor(magnitude, reason));
            }
            (None, true) if module.a.is_none() => None,
            (None, true) => {
                let reason = "there is no lora_magnitude_vector, though `use_dora` is true";
                return Err(LoraError::tensor(module.name, reason));
            }
        },
        bias: match module.base_bias {
            Some(bias) if !adapter.base_biases => {
                let reason = "`bias` in adapter_config.json is \"none\"";
                return Err(LoraError::tensor(bias, reason));
            }
            Some(bias) if base.bias(matrix)?.is_none() => {
                let reason = "this model's module has no bias";
                return Err(LoraError::tensor(bias, reason));
            }
            Some(bias) => Some(values(weights, bias, &output)?),
            None => None,
        },
    };
    relative.apply(&mut change, base)?;
    let numbers = [&change.b, &change.bias, &change.scale];
    for numbers in numbers {
        check_finite(module.magnitude.unwrap_or(module.name), numbers)?;
    }
    Ok(change)
}

/// A change of `matrix` by nothing, to which a bias is added.
fn nothing(
    tensor: &str,
    matrix: AdaptedMatrix,
    config: &ModelConfig,
) -> Result<LowRank, LoraError> {
    let Some([input, output]) = matrix_shape(config, matrix) else {
        return Err(LoraError::tensor(tensor, "this model has no such module"));
    };
    Ok(LowRank {
        matrix,
        rank: 1,
        a: vec![0.0; input],
        b: vec![0.0; output],
        bias: Vec::new(),
        scale: Vec::new(),
    })
}

/// The change of `matrix` by the factors of `module`.
fn factors(
    weights: &Weights,
    adapter: &PeftConfig,
    matrix: AdaptedMatrix,
    module: &Module<'_>,
    config: &ModelConfig,
    most_rank: usize,
) -> Result<LowRank, LoraError> {
    let (Some(a), Some(b)) = (module.a, module.b) else {
        let there = module.a.or(module.b).or(module.bias).unwrap_or(module.name);
        return Err(LoraError::tensor(
            there,
            "the other factor of its module is missing",
        ));
    };
    let shape = |name| weights.shape(name).unwrap_or_default().to_vec();
    let (shape_a, shape_b) = (shape(a), shape(b));
    let is_embedding = matrix == AdaptedMatrix::Embedding;
    // The factor of an embedding is `[rank, vocab]` in the file.
    let turned: Vec<usize> = match is_embedding {
        true => shape_a.iter().rev().copied().collect(),
        false => shape_a.clone(),
    };
    let rank = check_shapes(a, matrix, [&turned, &shape_b], config, most_rank)?;
    adapter.check_target(module.name, matrix)?;
    let said = adapter.rank(module.name)?;
    if said != rank {
        let reason =
            format!("its rank is {rank}; `r` and `rank_pattern` in adapter_config.json say {said}");
        return Err(LoraError::tensor(a, reason));
    }
    let mut factor_a = values(weights, a, &shape_a)?;
    if is_embedding {
        let vocab = shape_a[1];
        let by_token = |at: usize| factor_a[at % rank * vocab + at / rank];
        factor_a = (0..factor_a.len()).map(by_token).collect();
    }
    let bias = match module.bias {
        Some(bias) if !adapter.bias => {
            return Err(LoraError::tensor(
                bias,
                "`lora_bias` in adapter_config.json is not true",
            ));
        }
        Some(bias) => values(weights, bias, &shape_b[..1])?,
        None => Vec::new(),
    };
    let factors = Factors {
        a: factor_a,
        b: values(weights, b, &shape_b)?,
        bias,
        rank,
        scale: adapter.scale(module.name, rank)?,
    };
    Ok(factors.scaled(matrix))
}
