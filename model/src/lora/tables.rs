//! Whole tables in files of PEFT: an embedding or an output projection in place of the base model's.
//!
//! A module that `modules_to_save` names has a table of its own. Any other table in a file is the base
//! model's, as it was when the adapter was saved (`save_embedding_layers`): PEFT puts it in place of the
//! base model's, and with tied embeddings both modules have it.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use hearth_forward::{AdaptedMatrix, WholeTable};
use rayon::prelude::*;

use super::base::Base;
use super::error::LoraError;
use super::names::table_modules;
use super::peft_config::PeftConfig;
use crate::config::ModelConfig;
use crate::dtype::Dtype;
use crate::weights::{Format, TensorView, Weights};

/// Whose table a tensor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// The module's own, if `modules_to_save` names it, and else the base model's.
    Module,
    /// The module's own.
    Saved,
    /// The base model's.
    Base,
}

/// The tensors of tables by the matrix that they replace.
pub type Found<'a> = BTreeMap<AdaptedMatrix, Vec<(&'a str, Owner)>>;

/// The module that the whole weight `name` belongs to; `None` for a tensor of another kind.
pub fn owner_of(name: &str) -> Option<(&str, Owner)> {
    let inner = name.strip_suffix(".weight")?;
    for part in [".base_layer", ".original_module"] {
        if let Some(module) = inner.strip_suffix(part) {
            return Some((module, Owner::Base));
        }
    }
    // Some files have the adapter's name behind it.
    if let Some((module, rest)) = inner.split_once(".modules_to_save") {
        let name = rest.strip_prefix('.').unwrap_or_default();
        let is_module = rest.is_empty() || !(name.is_empty() || name.contains('.'));
        return is_module.then_some((module, Owner::Saved));
    }
    Some((inner, Owner::Module))
}

/// The tables that take the place of the base model's.
///
/// # Errors
/// A table has another shape than this model's or is not there, two tensors of one table differ, or a
/// value is not finite.
pub fn read(
    weights: &Weights,
    found: &Found<'_>,
    adapter: &PeftConfig,
    base: &Base<'_>,
) -> Result<Vec<WholeTable>, LoraError> {
    let config = base.config;
    let mut own = [None; 2];
    let mut of_base = [None; 2];
    let modules = table_modules(config);
    let saves_one = modules.iter().any(|(_, module)| adapter.saves(module));
    let ties = config.tie_word_embeddings && adapter.ties_saved && saves_one;
    for (index, (matrix, module)) in modules.iter().enumerate() {
        let saves = ties || adapter.saves(module);
        let field = |reason: String| Err(LoraError::field("modules_to_save", reason));
        let tensors = found.get(matrix).map_or(&[][..], Vec::as_slice);
        let owned_by = |owners: &[Owner]| -> Vec<&str> {
            let owned = tensors.iter().filter(|(_, owner)| owners.contains(owner));
            owned.map(|(tensor, _)| *tensor).collect()
        };
        let same = "there is another table for its module";
        if saves {
            own[index] = the_one(
                weights,
                &owned_by(&[Owner::Module, Owner::Saved]),
                config,
                same,
            )?;
            of_base[index] = the_one(weights, &owned_by(&[Owner::Base]), config, same)?;
        } else {
            if let Some(tensor) = owned_by(&[Owner::Saved]).first() {
                return field(format!(
                    "does not name {module}, for which there is {tensor}"
                ));
            }
            let tensors = owned_by(&[Owner::Module, Owner::Base]);
            of_base[index] = the_one(weights, &tensors, config, same)?;
        }
        if adapter.saves(module) && own[index].is_none() {
            return field(format!("names {module}, for which there is no tensor"));
        }
    }
    if config.tie_word_embeddings {
        let all: Vec<&str> = of_base.into_iter().flatten().collect();
        let differ = "the embeddings of this model are tied, and its other table differs";
        of_base = [the_one(weights, &all, config, differ)?; 2];
        if ties {
            let all: Vec<&str> = own.into_iter().flatten().collect();
            own = [the_one(weights, &all, config, differ)?; 2];
        }
    }
    let mut is_base: BTreeMap<&str, bool> = BTreeMap::new();
    let mut read: BTreeMap<&str, WholeTable> = BTreeMap::new();
    let mut tables = Vec::new();
    for (index, (matrix, _)) in modules.into_iter().enumerate() {
        let Some(tensor) = own[index].or(of_base[index]) else {
            continue;
        };
        let is_base = match is_base.get(tensor) {
            Some(is_base) => *is_base,
            None => {
                let view = view(weights, tensor, config)?;
                let compared = is_the_same(&view, &base.matrix(matrix)?);
                is_base.insert(tensor, compared);
                compared
            }
        };
        if is_base {
            continue;
        }
        let table = match read.entry(tensor) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => place.insert(table(weights, tensor, config)?),
        };
        tables.push(WholeTable {
            matrix,
            ..table.clone()
        });
    }
    Ok(tables)
}

/// The first of some tensors, which must be the same table.
fn the_one<'a>(
    weights: &Weights,
    tensors: &[&'a str],
    config: &ModelConfig,
    differ: &str,
) -> Result<Option<&'a str>, LoraError> {
    let Some((first, others)) = tensors.split_first() else {
        return Ok(None);
    };
    let first_view = view(weights, first, config)?;
    for other in others {
        let view = view(weights, other, config)?;
        if (&view.format, &view.bytes) != (&first_view.format, &first_view.bytes) {
            return Err(LoraError::tensor(other, differ));
        }
    }
    Ok(Some(first))
}

/// A table of the adapter as its file has it.
fn view<'a>(
    weights: &'a Weights,
    tensor: &str,
    config: &ModelConfig,
) -> Result<TensorView<'a>, LoraError> {
    let want = [config.vocab_size, config.hidden_size];
    match weights.shape(tensor) {
        Some([tokens, hidden]) if *hidden == want[1] && *tokens != want[0] => {
            let reason = format!(
                "its table has {tokens} tokens; the vocabulary of this model has {}, and resized ones \
                 are not supported",
                want[0]
            );
            Err(LoraError::tensor(tensor, reason))
        }
        _ => Ok(weights.get(tensor, &want)?),
    }
}

/// The numbers of a table, in their type in the file.
fn table(weights: &Weights, tensor: &str, config: &ModelConfig) -> Result<WholeTable, LoraError> {
    let view = view(weights, tensor, config)?;
    let Format::Float(dtype) = view.format else {
        return Err(LoraError::tensor(tensor, "its values are no floats"));
    };
    let finite = every_row(&view, |_, row| row.iter().all(|value| value.is_finite()));
    if !finite {
        return Err(LoraError::tensor(tensor, "a value is not finite"));
    }
    Ok(WholeTable {
        matrix: AdaptedMatrix::Embedding,
        numbers: dtype.into(),
        bytes: Arc::new(view.bytes.into_owned()),
    })
}

/// The numbers of a table that was read, for a model of this description.
pub fn view_of<'a>(table: &'a WholeTable, config: &ModelConfig) -> TensorView<'a> {
    TensorView {
        format: Format::Float(table.numbers.into()),
        shape: vec![config.vocab_size, config.hidden_size],
        bytes: Cow::Borrowed(table.bytes.as_slice()),
        heads: None,
    }
}

/// True if a table is that of the base model, rounded to the type in which the adapter has it.
fn is_the_same(table: &TensorView<'_>, base: &TensorView<'_>) -> bool {
    let Format::Float(dtype) = table.format else {
        return false;
    };
    let columns = base.shape[1];
    every_row(base, |index, row| {
        let mut rounded = vec![0; columns * dtype.size()];
        dtype.encode_into(row.iter().copied(), &mut rounded);
        let mut values = vec![0.0; columns];
        dtype.decode(&rounded, &mut values);
        let mut other = vec![0.0; columns];
        table.row(index, &mut other);
        values == other
    })
}

/// True if `holds` for every row, a row at a time in f32.
fn every_row(view: &TensorView<'_>, holds: impl Fn(usize, &[f32]) -> bool + Sync) -> bool {
    let [rows, columns] = view.shape[..] else {
        return false;
    };
    (0..rows).into_par_iter().all(|index| {
        let mut row = vec![0.0; columns];
        view.row(index, &mut row);
        holds(index, &row)
    })
}

/// The most bytes of the tables of a file: PEFT writes each up to three times.
pub fn most_bytes(config: &ModelConfig) -> u64 {
    let numbers = config.vocab_size as u64 * config.hidden_size as u64;
    2 * 3 * numbers * Dtype::F32.size() as u64
}

/// The error of a whole weight of a module that cannot be replaced.
pub fn refused(module: &str) -> LoraError {
    // Names come from strangers.
    let reason = format!(
        "is supported for embed_tokens and lm_head only; the adapter has a whole {module:.120}"
    );
    LoraError::field("modules_to_save", reason)
}
