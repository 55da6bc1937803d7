//! Weights by name: safetensors and GGUF files mapped into memory, bytes compiled into the
//! binary, or random values.
//!
//! A file of any size opens at once, because its pages are read when a tensor is. Files come from
//! strangers, so each header is checked against its file before any data is handed out.

mod dummy;
mod error;
mod experts;
mod file_names;
mod format;
#[cfg(test)]
pub(crate) mod fuzz;
mod inventory;
mod mapped;
mod open;
mod packed;
pub(crate) mod quantise;
mod read;
mod stored;
#[cfg(test)]
mod tests;
mod view;

use std::collections::HashMap;
use std::path::PathBuf;

use indicatif::ProgressBar;

use crate::dtype::Dtype;
use crate::quantization::Scheme;
pub use error::WeightError;
use experts::Gathered;
pub(crate) use file_names::{INDEX, SINGLE};
pub use format::Format;
pub(crate) use mapped::{Bytes, map};
use packed::PackedMatrix;
pub use quantise::Quantization;
pub(crate) use stored::StoredTensor;
pub use view::{HeadOrder, TensorView};

enum Source {
    Files {
        files: Vec<(PathBuf, Bytes)>,
        entries: HashMap<String, StoredTensor>,
        /// Parts of experts that are put together when they are read.
        gathered: HashMap<String, Gathered>,
    },
    Dummy {
        dtype: Dtype,
        seed: u64,
    },
}

/// A tensor as the files have it.
enum Found<'a> {
    Whole(&'a StoredTensor),
    Gathered(&'a Gathered),
    Packed(&'a PackedMatrix),
}

impl<'a> Found<'a> {
    /// The places in the files that have its bytes, one at least.
    fn places(self) -> Vec<&'a StoredTensor> {
        match self {
            Self::Whole(stored) => vec![stored],
            Self::Gathered(part) => part.places(),
            Self::Packed(matrix) => matrix.parts().collect(),
        }
    }
}

/// The weights of one checkpoint.
pub struct Weights {
    source: Source,
    /// The matrices that are stored as several tensors, by the names that they would have as one.
    packed: HashMap<String, PackedMatrix>,
    /// For messages: the directory, or a description of another source.
    place: String,
    progress: ProgressBar,
}

impl Weights {
    /// The named `tensors` of files that were mapped and whose headers were read.
    pub(crate) fn from_files(
        files: Vec<(PathBuf, Bytes)>,
        tensors: Vec<(String, StoredTensor)>,
    ) -> Self {
        let place = files.first().map(|(path, _)| path.display().to_string());
        let mut weights = Self::empty(place.unwrap_or_default());
        weights.source = Source::Files {
            entries: tensors.into_iter().collect(),
            gathered: HashMap::new(),
            files,
        };
        weights
    }

    /// Reads matrices as `scheme` says; the others are as they are.
    ///
    /// # Errors
    /// Names a tensor that is missing, or that has another shape or type than the scheme needs.
    pub fn with_scheme(mut self, scheme: Scheme) -> Result<Self, WeightError> {
        if let Source::Files { entries, .. } = &self.source {
            self.packed = packed::find(scheme, entries)?;
        }
        Ok(self)
    }

    /// Random weights for any name and shape: standard deviation 0.02, norms 1. The values of a
    /// tensor depend only on its name and on `seed`.
    pub fn dummy(dtype: Dtype, seed: u64) -> Self {
        let mut weights = Self::empty("random weights".to_owned());
        weights.source = Source::Dummy { dtype, seed };
        weights
    }

    /// Advances `bar` by the bytes of each tensor that is read from now on.
    pub fn set_progress(&mut self, bar: ProgressBar) {
        self.progress = bar;
    }

    fn empty(place: String) -> Self {
        let source = Source::Files {
            files: Vec::new(),
            entries: HashMap::new(),
            gathered: HashMap::new(),
        };
        Self {
            source,
            packed: HashMap::new(),
            place,
            progress: ProgressBar::hidden(),
        }
    }

    fn find(&self, name: &str) -> Option<Found<'_>> {
        let Source::Files { gathered, .. } = &self.source else {
            return None;
        };
        let packed = named(&self.packed, name).map(Found::Packed);
        packed
            .or_else(|| gathered.get(name).map(Found::Gathered))
            .or_else(|| self.entry(name).map(Found::Whole))
    }

    fn entry(&self, name: &str) -> Option<&StoredTensor> {
        let Source::Files { entries, .. } = &self.source else {
            return None;
        };
        named(entries, name)
    }

    fn missing(&self, name: &str) -> WeightError {
        WeightError::MissingTensor {
            tensor: name.to_owned(),
            place: self.place.clone(),
        }
    }

    fn unsupported(&self, name: &str, tensor: &StoredTensor) -> WeightError {
        WeightError::UnsupportedDtype {
            tensor: name.to_owned(),
            file: self.file_of(tensor),
            found: tensor.format.to_string(),
        }
    }

    /// Refuses the tensor `name`, which is in the file of `stored`, if it has another shape.
    fn expect_shape(
        &self,
        name: &str,
        stored: &StoredTensor,
        found: &[usize],
        expected: &[usize],
    ) -> Result<(), WeightError> {
        if found == expected {
            return Ok(());
        }
        Err(WeightError::WrongShape {
            tensor: name.to_owned(),
            file: self.file_of(stored),
            found: found.to_vec(),
            expected: expected.to_vec(),
        })
    }

    fn file_of(&self, stored: &StoredTensor) -> String {
        match &self.source {
            Source::Files { files, .. } => files[stored.file].0.display().to_string(),
            Source::Dummy { .. } => self.place.clone(),
        }
    }
}

/// The value of `name`, with or without the prefix that files of a bare base model lack.
fn named<'a, T>(map: &'a HashMap<String, T>, name: &str) -> Option<&'a T> {
    map.get(name).or_else(|| match name.strip_prefix("model.") {
        Some(bare) => map.get(bare),
        None => map.get(&format!("model.{name}")),
    })
}
