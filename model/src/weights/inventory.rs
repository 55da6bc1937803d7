//! The names, shapes, formats and sizes of the tensors.

use super::format::Format;
use super::{Found, Source, Weights};
use crate::dtype::Dtype;

impl Weights {
    /// True if there is a tensor `name`. Random weights have every name.
    pub fn contains(&self, name: &str) -> bool {
        self.format(name).is_some()
    }

    /// The format of the tensor `name`, if there is one.
    pub fn format(&self, name: &str) -> Option<Format> {
        match &self.source {
            Source::Dummy { dtype, .. } => Some(Format::Float(*dtype)),
            Source::Files { files, .. } => Some(match self.find(name)? {
                Found::Whole(tensor) => tensor.format.clone(),
                Found::Gathered(part) => part.format(),
                Found::Packed(matrix) => matrix.format(files),
            }),
        }
    }

    /// The shape of the tensor `name` of a file.
    pub(crate) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.entry(name).map(|entry| entry.shape.as_slice())
    }

    /// How some tensor is quantized, if one is.
    pub fn quantized(&self) -> Option<String> {
        if !self.packed.is_empty() {
            return Some("quantization_config".to_owned());
        }
        let mut formats = self.formats().map(|(format, _)| format);
        formats.find_map(|format| match format {
            Format::Blocks(blocks) => Some(format!("{blocks:?}")),
            _ => None,
        })
    }

    /// Bytes in the files of the matrix `name`, if it is stored as several tensors.
    pub fn packed_bytes(&self, name: &str) -> Option<usize> {
        match self.find(name)? {
            Found::Packed(matrix) => Some(matrix.bytes()),
            Found::Whole(_) | Found::Gathered(_) => None,
        }
    }

    /// Names of all tensors, sorted; none for random weights.
    pub fn names(&self) -> Vec<&str> {
        let Source::Files {
            entries, gathered, ..
        } = &self.source
        else {
            return Vec::new();
        };
        let names = entries.keys().chain(gathered.keys());
        let mut names: Vec<&str> = names.map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Bytes of all tensors; 0 for random weights.
    pub fn total_bytes(&self) -> u64 {
        self.formats().map(|(_, bytes)| bytes as u64).sum()
    }

    /// The format of most of the bytes, which `--dtype auto` takes; `None` when no tensor is a
    /// float. Blocks and packed matrices count as bf16, which holds more than they do and overflows
    /// no sooner than the numbers that they were made from.
    pub fn dtype(&self) -> Option<Dtype> {
        if let Source::Dummy { dtype, .. } = &self.source {
            return Some(*dtype);
        }
        // However few bytes packed matrices have, they decide how fast the model is.
        if !self.packed.is_empty() {
            return Some(Dtype::Bf16);
        }
        let mut bytes = [(Dtype::F32, 0), (Dtype::Bf16, 0), (Dtype::F16, 0)];
        for (format, length) in self.formats() {
            let dtype = match format {
                Format::Float(dtype) => Some(dtype),
                Format::Blocks(_) => Some(Dtype::Bf16),
                Format::Other(_) => None,
            };
            if let Some(dtype) = dtype
                && let Some((_, sum)) = bytes.iter_mut().find(|(other, _)| *other == dtype)
            {
                *sum += length;
            }
        }
        // Not the widest format: some bf16 checkpoints keep their norms in f32.
        bytes
            .into_iter()
            .filter(|(_, sum)| *sum > 0)
            .max_by_key(|(_, sum)| *sum)
            .map(|(d, _)| d)
    }

    /// The format and the number of bytes of each tensor; none for random weights.
    fn formats(&self) -> impl Iterator<Item = (Format, usize)> {
        let (entries, gathered) = match &self.source {
            Source::Dummy { .. } => (None, None),
            Source::Files {
                entries, gathered, ..
            } => (Some(entries.values()), Some(gathered.values())),
        };
        let entries = entries.into_iter().flatten();
        let entries = entries.map(|entry| (entry.format.clone(), entry.bytes.len()));
        let gathered = gathered.into_iter().flatten();
        entries.chain(gathered.map(|part| (part.format(), part.length())))
    }
}
