//! Adapters (LoRA) as they are published: directories of PEFT and GGUF files of llama.cpp.
//!
//! Truth about what an adapter changes is in its tensors. A field or a tensor that would change the
//! result in a way that is not implemented is refused by its name: an adapter that is half applied
//! answers fluently and wrongly.

mod base;
mod combine;
mod error;
mod gguf;
mod names;
mod peft;
mod peft_config;
mod relative;
mod tables;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use hearth_forward::{AdaptedMatrix, Adapter, LayerMatrix, LowRank, WholeTable};
use ring::digest::{Context, SHA256};

use crate::config::ModelConfig;
use crate::dtype::Dtype;
use crate::transformer::{adapter_bytes, matrix_shape};
pub use base::Base;
pub use combine::combined;
pub use error::LoraError;
use peft::Parts;

/// Bytes that a file may have beside the numbers of the largest adapter: headers, and matrices that
/// are stored twice.
const SLACK: u64 = 64 << 20;
/// Bytes of a table that are digested at a time: a multiple of every number's size.
const PIECE: usize = 1 << 20;

/// Reads the adapter of a directory or of a `*.gguf` file, for the model `base`, with a rank of at most
/// `most_rank`.
///
/// # Errors
/// Names the file that is missing or damaged, or the field or the tensor that cannot be applied.
pub fn read(path: &Path, base: &Base<'_>, most_rank: usize) -> Result<Adapter, LoraError> {
    if path.extension().is_some_and(|suffix| suffix == "gguf") {
        return adapter(gguf::read(path, base.config, most_rank)?, Vec::new());
    }
    let Parts { changes, tables } = peft::read(path, base, most_rank)?;
    adapter(changes, tables)
}

/// The adapter of `changes` and `tables`.
fn adapter(mut changes: Vec<LowRank>, tables: Vec<WholeTable>) -> Result<Adapter, LoraError> {
    if changes.is_empty() && tables.is_empty() {
        return Err(LoraError::NoMatch);
    }
    changes.sort_by_key(|change| change.matrix);
    let digest = digest(&changes, &tables);
    Ok(Adapter {
        digest,
        changes,
        tables,
    })
}

/// Checks that `adapter` can be loaded into a device with `table_slots` slots for whole tables.
///
/// # Errors
/// It has tables, and there is no room for any.
pub fn check_tables(adapter: &Adapter, table_slots: usize) -> Result<(), LoraError> {
    match adapter.has_tables() && table_slots == 0 {
        true => Err(LoraError::NoRoomForTables {
            bytes: adapter.table_bytes(),
        }),
        false => Ok(()),
    }
}

/// The digest of everything that changes a result.
fn digest(changes: &[LowRank], tables: &[WholeTable]) -> String {
    let mut context = Context::new(&SHA256);
    let mut bytes = Vec::new();
    for change in changes {
        let LowRank {
            matrix,
            rank,
            a,
            b,
            bias,
            scale,
        } = change;
        context.update(&tag(*matrix));
        let mut all = vec![a, b, bias];
        if !scale.is_empty() {
            // A tag that no matrix has.
            context.update(&[u8::MAX]);
            all.push(scale);
        }
        for numbers in all {
            context.update(&(*rank as u64).to_le_bytes());
            context.update(&(numbers.len() as u64).to_le_bytes());
            bytes.clear();
            bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            context.update(&bytes);
        }
    }
    for table in tables {
        // A tag that no matrix has.
        context.update(&[u8::MAX - 1]);
        context.update(&tag(table.matrix));
        context.update(&(table.bytes.len() as u64 / dtype_of(table).size() as u64).to_le_bytes());
        // As f32, because the same numbers in another type are the same function.
        for piece in table.bytes.chunks(PIECE) {
            let mut values = vec![0.0; piece.len() / dtype_of(table).size()];
            dtype_of(table).decode(piece, &mut values);
            context.update(&Dtype::F32.encode(values.into_iter()));
        }
    }
    hex(context.finish().as_ref())
}

fn dtype_of(table: &WholeTable) -> Dtype {
    table.numbers.into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A number for each matrix, which a digest keeps for ever.
fn tag(matrix: AdaptedMatrix) -> [u8; 5] {
    let (kind, layer) = match matrix {
        AdaptedMatrix::Embedding => (0, 0),
        AdaptedMatrix::LmHead => (1, 0),
        AdaptedMatrix::Layer(layer, matrix) => {
            let kind = match matrix {
                LayerMatrix::Query => 2,
                LayerMatrix::Key => 3,
                LayerMatrix::Value => 4,
                LayerMatrix::Output => 5,
                LayerMatrix::Gate => 6,
                LayerMatrix::Up => 7,
                LayerMatrix::Down => 8,
            };
            (kind, layer)
        }
    };
    let [a, b, c, d] = layer.to_le_bytes();
    [kind, a, b, c, d]
}

/// The factors of one matrix, as a file has them.
struct Factors {
    /// `[rank, in]`, or `[vocab, rank]` for the embedding.
    a: Vec<f32>,
    /// `[out, rank]`
    b: Vec<f32>,
    bias: Vec<f32>,
    rank: usize,
    scale: f64,
}

impl Factors {
    /// The change of `matrix`, with the scale in `b` and in the bias.
    fn scaled(self, matrix: AdaptedMatrix) -> LowRank {
        let Self {
            a,
            b,
            bias,
            rank,
            scale,
        } = self;
        let output = b.len() / rank;
        let mut turned = vec![0.0; b.len()];
        for (column, values) in b.chunks_exact(rank).enumerate() {
            for (row, value) in values.iter().enumerate() {
                turned[row * output + column] = (f64::from(*value) * scale) as f32;
            }
        }
        let bias = bias.iter().map(|value| (f64::from(*value) * scale) as f32);
        LowRank {
            matrix,
            rank,
            a,
            b: turned,
            bias: bias.collect(),
            scale: Vec::new(),
        }
    }
}

/// Checks a rank and the shapes `[rank, in]` and `[out, rank]` of the factors of `matrix`, which the
/// file calls `tensor`. For the embedding the first shape is `[vocab, rank]` already.
fn check_shapes(
    tensor: &str,
    matrix: AdaptedMatrix,
    [a, b]: [&[usize]; 2],
    config: &ModelConfig,
    most_rank: usize,
) -> Result<usize, LoraError> {
    let Some([input, output]) = matrix_shape(config, matrix) else {
        return Err(LoraError::tensor(tensor, "this model has no such module"));
    };
    let (rank, given) = match (matrix, a, b) {
        (AdaptedMatrix::Embedding, [vocab, rank], [hidden, other]) if rank == other => {
            (*rank, [*vocab, *hidden])
        }
        (_, [rank, input], [output, other])
            if rank == other && matrix != AdaptedMatrix::Embedding =>
        {
            (*rank, [*input, *output])
        }
        _ => {
            return Err(LoraError::tensor(
                tensor,
                format!(
                    "its factors have the shapes {a:?} and {b:?}, which do not belong together"
                ),
            ));
        }
    };
    if given != [input, output] {
        return Err(LoraError::tensor(
            tensor,
            format!(
                "it is for a matrix of {} inputs and {} outputs; this model's has {input} and \
                 {output}",
                given[0], given[1]
            ),
        ));
    }
    if rank == 0 {
        return Err(LoraError::tensor(tensor, "its rank is 0"));
    }
    if rank > most_rank {
        return Err(LoraError::Rank {
            given: rank,
            most: most_rank,
        });
    }
    Ok(rank)
}

fn check_finite(tensor: &str, values: &[f32]) -> Result<(), LoraError> {
    match values.iter().all(|value| value.is_finite()) {
        true => Ok(()),
        false => Err(LoraError::tensor(tensor, "a value is not finite")),
    }
}

/// The bytes of a file, which has no more than an adapter of this model can have, with up to `tables`
/// bytes of whole tables. They are read and not mapped, because an adapter may be overwritten while the
/// server runs.
fn read_file(
    path: &Path,
    config: &ModelConfig,
    most_rank: usize,
    tables: u64,
) -> Result<Vec<u8>, LoraError> {
    let io = |error| LoraError::Io {
        path: path.to_owned(),
        error,
    };
    let [largest, _] = adapter_bytes(config, 1, most_rank, Dtype::F32);
    let most = largest.saturating_add(SLACK).saturating_add(tables);
    let file = File::open(path).map_err(io)?;
    let mut bytes = Vec::new();
    let read = file.take(most + 1).read_to_end(&mut bytes).map_err(io)?;
    if read as u64 > most {
        return Err(LoraError::TooLarge {
            path: path.to_owned(),
            most,
            rank: most_rank,
        });
    }
    Ok(bytes)
}
