//! An adapter as PEFT saves it: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::BTreeMap;
use std::path::Path;

use hearth_forward::{AdaptedMatrix, LowRank, WholeTable};
use serde_json::{Map, Value};

use super::base::Base;
use super::error::LoraError;
use super::names::{is_of_experts, matrix_of, table_modules, unknown_module};
use super::peft_config::PeftConfig;
use super::relative::Relative;
use super::tables::{self, Owner};
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

/// The parts of an adapter.
pub struct Parts {
    pub changes: Vec<LowRank>,
    pub tables: Vec<WholeTable>,
}

/// The adapter in `dir`.
pub fn read(dir: &Path, base: &Base<'_>, most_rank: usize) -> Result<Parts, LoraError> {
    let config = base.config;
    let adapter = read_config(dir)?;
    let [(_, embedding), (_, lm_head)] = table_modules(config);
    adapter.check_saved(&[&embedding, &lm_head])?;
    let path = dir.join(TENSORS);
    if !path.exists() && dir.join("adapter_model.bin").exists() {
        return Err(LoraError::tensor(
            "adapter_model.bin",
            format!("pickled files are not supported; save the adapter as {TENSORS}"),
        ));
    }
    let bytes = read_file(&path, config, most_rank, tables::most_bytes(config))?;
    let weights = Weights::from_bytes(path, bytes)?;
    let (modules, found) = modules(&weights, config)?;
    for (matrix, module) in &modules {
        let is_table = matches!(matrix, AdaptedMatrix::Embedding | AdaptedMatrix::LmHead);
        if adapter.saves(module.name) {
            let reason = format!("names {}, which has other tensors, too", module.name);
            return Err(LoraError::field("modules_to_save", reason));
        }
        if is_table && adapter.ties_saved && config.tie_word_embeddings {
            let reason = format!("is not supported with factors of {}", module.name);
            return Err(LoraError::field("ensure_weight_tying", reason));
        }
    }
    let tables = tables::read(&weights, &found, &adapter, base)?;
    let changes = modules.into_iter().map(|(matrix, module)| {
        let table = tables.iter().find(|table| table.matrix == matrix);
        let reader = Reader {
            weights: &weights,
            adapter: &adapter,
            base,
            most_rank,
        };
        reader.change(matrix, &module, table)
    });
    let changes = changes.collect::<Result<_, _>>()?;
    Ok(Parts { changes, tables })
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

/// The tensors by the matrix that they change, and those of whole tables.
///
/// # Errors
/// Names a tensor that changes nothing that is known: leaving it out would leave out a part of the
/// adapter.
fn modules<'a>(
    weights: &'a Weights,
    config: &ModelConfig,
) -> Result<(BTreeMap<AdaptedMatrix, Module<'a>>, tables::Found<'a>), LoraError> {
    let mut modules: BTreeMap<AdaptedMatrix, Module<'a>> = BTreeMap::new();
    let mut found = tables::Found::new();
    let (mut unknown, mut known) = (None, false);
    for tensor in weights.names() {
        let name = tensor.strip_prefix(PREFIX).unwrap_or(tensor);
        let part = SUFFIXES
            .iter()
            .find_map(|(suffix, part)| Some((name.strip_suffix(suffix)?, *part)));
        let Some((module, part)) = part else {
            let whole = tables::owner_of(name).filter(|_| !name.contains(".lora_"));
            let (module, owner) =
                whole.ok_or_else(|| LoraError::tensor(tensor, unsupported(name)))?;
            let matrix = table_of(tensor, module, owner, config)?;
            found.entry(matrix).or_default().push((tensor, owner));
            continue;
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
        None => Ok((modules, found)),
        // Where no name fits, it is the adapter of another model, which one name does not say.
        Some(tensor) if known || is_of_experts(tensor, config) => {
            Err(LoraError::tensor(tensor, unknown_module(tensor, config)))
        }
        Some(_) => Err(LoraError::NoMatch),
    }
}

/// The matrix of a module that has a whole table.
fn table_of(
    tensor: &str,
    module: &str,
    owner: Owner,
    config: &ModelConfig,
) -> Result<AdaptedMatrix, LoraError> {
    match matrix_of(module, config) {
        Some(matrix @ (AdaptedMatrix::Embedding | AdaptedMatrix::LmHead)) => Ok(matrix),
        _ if owner == Owner::Base => {
            let reason =
                "weights of the base model are supported for embed_tokens and lm_head only";
            Err(LoraError::tensor(tensor, reason))
        }
        _ => Err(tables::refused(module)),
    }
}

/// Why a tensor that is neither a factor of a change nor a whole weight is refused.
fn unsupported(name: &str) -> &'static str {
    match name.contains("token_adapter") {
        true => "`trainable_token_indices` is not supported",
        false => "it is no factor of a change that is known",
    }
}

/// The numbers of a tensor of the adapter.
fn values(weights: &Weights, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoraError> {
    let values = weights.get(name, shape)?.to_f32();
    check_finite(name, &values)?;
    Ok(values)
}

/// The sources from which the changes of an adapter are read.
struct Reader<'a> {
    weights: &'a Weights,
    adapter: &'a PeftConfig,
    base: &'a Base<'a>,
    most_rank: usize,
}

impl Reader<'_> {
    /// The change of a module, and what it is relative to the base model, or to `table` in its place.
    fn change(
        &self,
        matrix: AdaptedMatrix,
        module: &Module<'_>,
        table: Option<&WholeTable>,
    ) -> Result<LowRank, LoraError> {
        let Self {
            weights,
            adapter,
            base,
            ..
        } = self;
        let mut change = match module.base_bias {
            Some(bias) if [module.a, module.b, module.bias, module.magnitude] == [None; 4] => {
                nothing(bias, matrix, base.config)?
            }
            _ => self.factors(matrix, module)?,
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
        let table = table.map(|table| tables::view_of(table, base.config));
        relative.apply(&mut change, base, table.as_ref())?;
        let numbers = [&change.b, &change.bias, &change.scale];
        for numbers in numbers {
            check_finite(module.magnitude.unwrap_or(module.name), numbers)?;
        }
        Ok(change)
    }

    /// The change of `matrix` by the factors of `module`.
    fn factors(&self, matrix: AdaptedMatrix, module: &Module<'_>) -> Result<LowRank, LoraError> {
        let Self {
            weights, adapter, ..
        } = self;
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
        let shapes = [&turned[..], &shape_b];
        let rank = check_shapes(a, matrix, shapes, self.base.config, self.most_rank)?;
        adapter.check_target(module.name, matrix)?;
        let said = adapter.rank(module.name)?;
        if said != rank {
            let reason = format!(
                "its rank is {rank}; `r` and `rank_pattern` in adapter_config.json say {said}"
            );
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
