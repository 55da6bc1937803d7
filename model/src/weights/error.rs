//! Errors in the weights of a checkpoint, which use the names of its files and tensors.

use std::path::PathBuf;

use hearth_shaders::BlockFormat;

use super::file_names::{INDEX, SINGLE};

/// An error in the weights of a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum WeightError {
    #[error("{dir} has neither {SINGLE} nor {INDEX}{hint}")]
    NoWeights { dir: PathBuf, hint: &'static str },
    #[error("cannot read {path}: {error}")]
    Io {
        path: PathBuf,
        error: std::io::Error,
    },
    #[error("{file} is not a valid safetensors file: {reason}")]
    Corrupt { file: PathBuf, reason: String },
    #[error("{file} is not a valid index of safetensors files: {reason}")]
    BadIndex { file: PathBuf, reason: String },
    #[error("{index} says that tensor {tensor} is in {file}, and it is not")]
    NotInShard {
        index: PathBuf,
        tensor: String,
        file: String,
    },
    #[error("tensor {tensor} is missing from {place}")]
    MissingTensor { tensor: String, place: String },
    #[error("tensor {tensor} has shape {found:?} in {file}, the config asks for {expected:?}")]
    WrongShape {
        tensor: String,
        file: String,
        found: Vec<usize>,
        expected: Vec<usize>,
    },
    #[error(
        "tensor {tensor} in {file} is {found}; supported: f32, f16, bf16 and, in GGUF files, {}",
        blocks()
    )]
    UnsupportedDtype {
        tensor: String,
        file: String,
        found: String,
    },
    #[error("tensor {tensor} is in blocks of {block} elements, and its rows have {columns}")]
    CutBlock {
        tensor: String,
        block: usize,
        columns: usize,
    },
    #[error("quantized tensor {tensor} {problem}")]
    Packed { tensor: String, problem: String },
    #[error(
        "tensor {tensor} cannot be quantized: a value of row {row} is not finite, or too large \
         for a scale in f16"
    )]
    NotFinite { tensor: String, row: usize },
}

/// The formats of blocks that are decoded.
fn blocks() -> String {
    let names = BlockFormat::integers().map(|format| format!("{format:?}"));
    names.collect::<Vec<_>>().join(", ")
}
