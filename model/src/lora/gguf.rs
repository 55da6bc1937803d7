//! An adapter as llama.cpp's `convert_lora_to_gguf.py` writes it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use hearth_forward::{AdaptedMatrix, LowRank};

use super::error::LoraError;
use super::names::{matrix_of, unknown_module};
use super::{Factors, check_finite, check_shapes, read_file};
use crate::config::ModelConfig;
use crate::gguf::{self, Gguf, GgufAdapter};
use crate::weights::{Bytes, Weights};

/// The changes of the adapter in the file `path`.
pub fn read(
    path: &Path,
    config: &ModelConfig,
    most_rank: usize,
) -> Result<Vec<LowRank>, LoraError> {
    if !path.is_file() {
        return Err(LoraError::NotFound(path.to_owned()));
    }
    let bytes = read_file(path, config, most_rank, 0)?;
    let in_file = |error| LoraError::Gguf {
        path: path.to_owned(),
        error,
    };
    let GgufAdapter {
        architecture,
        alpha,
        tensors,
    } = Gguf::parse(&bytes)
        .and_then(|file| file.into_adapter(config))
        .map_err(in_file)?;
    let expected = gguf::architecture_of(config.architecture);
    if expected != Some(architecture.as_str()) {
        let expected = expected.unwrap_or(config.architecture.class_name());
        return Err(LoraError::tensor(
            "general.architecture",
            format!("the adapter is for {architecture:.40}, this model is {expected}"),
        ));
    }
    let weights = Weights::from_files(
        vec![(path.to_owned(), Bytes::Read(Arc::new(bytes)))],
        tensors,
    );
    let mut modules: BTreeMap<AdaptedMatrix, [Option<&str>; 2]> = BTreeMap::new();
    for tensor in weights.names() {
        let parts = [".weight.lora_a", ".weight.lora_b"];
        let found = (0..2).find_map(|part| Some((tensor.strip_suffix(parts[part])?, part)));
        let Some((module, part)) = found else {
            return Err(LoraError::tensor(tensor, "it is no factor of a change"));
        };
        let Some(matrix) = matrix_of(module, config) else {
            return Err(LoraError::tensor(tensor, unknown_module(module, config)));
        };
        modules.entry(matrix).or_default()[part] = Some(tensor);
    }
    modules
        .into_iter()
        .map(|(matrix, names)| {
            let [Some(a), Some(b)] = names else {
                let there = names.into_iter().flatten().next().unwrap_or_default();
                return Err(LoraError::tensor(there, "the other factor is missing"));
            };
            let shapes = [a, b].map(|name| weights.shape(name).unwrap_or_default().to_vec());
            let rank = check_shapes(a, matrix, [&shapes[0], &shapes[1]], config, most_rank)?;
            let [a, b] = [(a, &shapes[0]), (b, &shapes[1])].map(|(name, shape)| {
                let values = weights.get(name, shape)?.to_f32();
                check_finite(name, &values)?;
                Ok::<_, LoraError>(values)
            });
            let factors = Factors {
                a: a?,
                b: b?,
                bias: Vec::new(),
                rank,
                // As llama.cpp: without an alpha, the scale is 1.
                scale: match alpha {
                    0.0 => 1.0,
                    alpha => alpha / rank as f64,
                },
            };
            Ok(factors.scaled(matrix))
        })
        .collect()
}
