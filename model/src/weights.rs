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
mod mapped;
mod packed;
pub(crate) mod quantise;
mod stored;
#[cfg(test)]
mod tests;
mod view;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use safetensors::SafeTensors;
use serde::Deserialize;

use crate::dtype::Dtype;
use crate::quantization::Scheme;
use crate::regular_file::{self, TOKENIZER_BYTES};
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

/// The weights of one checkpoint.
pub struct Weights {
    source: Source,
    /// The matrices that are stored as several tensors, by the names that they would have as one.
    packed: HashMap<String, PackedMatrix>,
    /// For messages: the directory, or a description of another source.
    place: String,
    progress: ProgressBar,
}

#[derive(Deserialize)]
struct ShardIndex {
    weight_map: BTreeMap<String, String>,
}

impl Weights {
    /// Maps `model.safetensors`, or the shards that `model.safetensors.index.json` lists.
    ///
    /// # Errors
    /// Names the file that is missing, unreadable or damaged, and the tensor where one is.
    pub fn open_dir(dir: &Path) -> Result<Self, WeightError> {
        let single = dir.join(SINGLE);
        let index = dir.join(INDEX);
        let mut weights = Self::empty(dir.display().to_string());
        if single.exists() {
            weights.add(single.clone(), map(&single)?)?;
        } else if index.exists() {
            weights.add_shards(dir, &index)?;
        } else {
            let pickled = dir.join("pytorch_model.bin").exists()
                || dir.join("pytorch_model.bin.index.json").exists();
            let hint = if pickled {
                "; pytorch_model.bin is not supported"
            } else {
                ""
            };
            return Err(WeightError::NoWeights {
                dir: dir.to_owned(),
                hint,
            });
        }
        Ok(weights)
    }

    /// Reads one safetensors file that is compiled into the binary.
    ///
    /// # Errors
    /// [`WeightError::Corrupt`] when the header and the bytes disagree.
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Result<Self, WeightError> {
        let mut weights = Self::empty(name.to_owned());
        weights.add(PathBuf::from(name), Bytes::Static(bytes))?;
        Ok(weights)
    }

    /// Reads a safetensors file that was read into memory.
    ///
    /// # Errors
    /// As [`Weights::from_static`].
    pub(crate) fn from_bytes(path: PathBuf, bytes: Vec<u8>) -> Result<Self, WeightError> {
        let mut weights = Self::empty(path.display().to_string());
        weights.add(path, Bytes::Read(bytes))?;
        Ok(weights)
    }

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

    /// The tensor `name`, which must have the shape `expected`. Names are found with and
    /// without the prefix `model.`, which checkpoints of a bare base model lack.
    ///
    /// # Errors
    /// Names the tensor that is missing or has a wrong shape or an unsupported dtype.
    pub fn get(&self, name: &str, expected: &[usize]) -> Result<TensorView<'_>, WeightError> {
        if let (Source::Files { files, .. }, Some(matrix)) = (&self.source, self.matrix(name)) {
            return self.unpacked(matrix, files, name, expected);
        }
        let view = match &self.source {
            Source::Dummy { dtype, seed } => TensorView {
                format: Format::Float(*dtype),
                shape: expected.to_vec(),
                bytes: Cow::Owned(dummy::tensor(name, expected, *dtype, *seed)),
                heads: None,
            },
            Source::Files {
                files, gathered, ..
            } if gathered.contains_key(name) => {
                let part = &gathered[name];
                self.expect_shape(name, part.places()[0], part.shape(), expected)?;
                TensorView {
                    format: part.format(),
                    shape: expected.to_vec(),
                    bytes: Cow::Owned(part.bytes(files)),
                    heads: None,
                }
            }
            Source::Files { files, .. } => {
                let tensor = self.entry(name).ok_or_else(|| WeightError::MissingTensor {
                    tensor: name.to_owned(),
                    place: self.place.clone(),
                })?;
                let (_, bytes) = &files[tensor.file];
                let row: usize = tensor.shape.iter().skip(1).product();
                // Rows that are to be reordered must begin with a block.
                let cut = tensor.heads.is_some() && !row.is_multiple_of(tensor.format.block().0);
                if cut || matches!(tensor.format, Format::Other(_)) {
                    return Err(WeightError::UnsupportedDtype {
                        tensor: name.to_owned(),
                        file: self.file_of(tensor),
                        found: tensor.format.to_string(),
                    });
                }
                self.expect_shape(name, tensor, &tensor.shape, expected)?;
                let bytes = &bytes.as_slice()[tensor.bytes.clone()];
                TensorView {
                    format: tensor.format.clone(),
                    shape: tensor.shape.clone(),
                    bytes: Cow::Borrowed(bytes),
                    heads: tensor.heads,
                }
            }
        };
        self.progress.inc(view.bytes.len() as u64);
        Ok(view)
    }

    fn unpacked(
        &self,
        matrix: &PackedMatrix,
        files: &[(PathBuf, Bytes)],
        name: &str,
        expected: &[usize],
    ) -> Result<TensorView<'_>, WeightError> {
        let found = matrix.shape().to_vec();
        if found != expected {
            return Err(WeightError::WrongShape {
                tensor: name.to_owned(),
                file: self.place.clone(),
                found,
                expected: expected.to_vec(),
            });
        }
        let wrong = |problem| WeightError::Packed {
            tensor: name.to_owned(),
            problem,
        };
        self.progress.inc(matrix.bytes() as u64);
        Ok(TensorView {
            bytes: Cow::Owned(matrix.decode(files).map_err(wrong)?),
            format: matrix.format(files),
            shape: found,
            heads: None,
        })
    }

    /// Whether there is a tensor `name`. Random weights have every name.
    pub fn contains(&self, name: &str) -> bool {
        self.format(name).is_some()
    }

    /// The format of the tensor `name`, if there is one.
    pub fn format(&self, name: &str) -> Option<Format> {
        match &self.source {
            Source::Dummy { dtype, .. } => Some(Format::Float(*dtype)),
            Source::Files {
                files, gathered, ..
            } => match (self.matrix(name), gathered.get(name)) {
                (Some(matrix), _) => Some(matrix.format(files)),
                (None, Some(part)) => Some(part.format()),
                (None, None) => self.entry(name).map(|entry| entry.format.clone()),
            },
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
        self.matrix(name).map(PackedMatrix::bytes)
    }

    /// The stored bytes of the tensor `name` or of those that it is stored as, with what they are; none
    /// for random weights.
    pub fn stored(&self, name: &str) -> Vec<(String, &[u8])> {
        let Source::Files { files, .. } = &self.source else {
            return Vec::new();
        };
        let kind = match (self.matrix(name), self.format(name)) {
            (Some(matrix), _) => matrix.describe(),
            (None, Some(format)) => format.to_string(),
            (None, None) => return Vec::new(),
        };
        let bytes = |place: &StoredTensor| &files[place.file].1.as_slice()[place.bytes.clone()];
        let places = self.places(name).into_iter();
        places.map(|place| (kind.clone(), bytes(place))).collect()
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

    /// Returns the memory of a tensor that was copied elsewhere to the system, so that loading does
    /// not hold two copies of a model. The tensor can be read again, from disk.
    pub fn release(&self, name: &str) {
        #[cfg(unix)]
        if let Source::Files { files, .. } = &self.source {
            for place in self.places(name) {
                let (_, Bytes::Mapped(map)) = &files[place.file] else {
                    continue;
                };
                // SAFETY: the mapping is a file's, read-only: a dropped page is read again from
                // the file when it is touched, with the same bytes.
                let dropped = unsafe {
                    map.unchecked_advise_range(
                        memmap2::UncheckedAdvice::DontNeed,
                        place.bytes.start,
                        place.bytes.len(),
                    )
                };
                if let Err(error) = dropped {
                    tracing::debug!(%error, name, "madvise refused");
                }
            }
        }
        #[cfg(not(unix))]
        let _ = name;
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

    /// Where the bytes of the tensor `name` are in the files.
    fn places(&self, name: &str) -> Vec<&StoredTensor> {
        let Source::Files { gathered, .. } = &self.source else {
            return Vec::new();
        };
        match (self.matrix(name), gathered.get(name)) {
            (Some(matrix), _) => matrix.parts().collect(),
            (None, Some(part)) => part.places(),
            (None, None) => self.entry(name).into_iter().collect(),
        }
    }

    fn matrix(&self, name: &str) -> Option<&PackedMatrix> {
        named(&self.packed, name)
    }

    fn entry(&self, name: &str) -> Option<&StoredTensor> {
        let Source::Files { entries, .. } = &self.source else {
            return None;
        };
        named(entries, name)
    }

    /// Adds the tensors of a safetensors file whose header agrees with its bytes.
    fn add(&mut self, path: PathBuf, bytes: Bytes) -> Result<(), WeightError> {
        let Source::Files { files, entries, .. } = &mut self.source else {
            return Ok(());
        };
        let corrupt = |reason: String| WeightError::Corrupt {
            file: path.clone(),
            reason,
        };
        let (header, metadata) = SafeTensors::read_metadata(bytes.as_slice())
            .map_err(|error| corrupt(error.to_string()))?;
        let data = header + size_of::<u64>();
        for (name, info) in metadata.tensors() {
            let (start, end) = info.data_offsets;
            let range = data.checked_add(start).zip(data.checked_add(end));
            let (start, end) = range
                .filter(|(start, end)| start <= end && *end <= bytes.as_slice().len())
                .ok_or_else(|| corrupt(format!("tensor {name} lies outside the file")))?;
            let tensor = StoredTensor {
                file: files.len(),
                format: Format::of_safetensors(info.dtype),
                shape: info.shape.clone(),
                bytes: start..end,
                heads: None,
            };
            entries.insert(name, tensor);
        }
        files.push((path, bytes));
        Ok(())
    }

    fn add_shards(&mut self, dir: &Path, index: &Path) -> Result<(), WeightError> {
        let bad = |reason: String| WeightError::BadIndex {
            file: index.to_owned(),
            reason,
        };
        let text =
            regular_file::read_text(index, TOKENIZER_BYTES).map_err(|error| WeightError::Io {
                path: index.to_owned(),
                error,
            })?;
        let ShardIndex { weight_map } =
            serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
        let mut shards: Vec<&str> = weight_map.values().map(String::as_str).collect();
        shards.sort_unstable();
        shards.dedup();
        for shard in &shards {
            // A downloaded index must not reach outside its directory.
            if Path::new(shard)
                .file_name()
                .is_none_or(|name| name != *shard)
            {
                return Err(bad(format!("{shard:?} is not a plain file name")));
            }
            let path = dir.join(shard);
            self.add(path.clone(), map(&path)?)?;
        }
        for (tensor, file) in &weight_map {
            let found = self
                .entry(tensor)
                .is_some_and(|entry| shards[entry.file] == file);
            if !found {
                return Err(WeightError::NotInShard {
                    index: index.to_owned(),
                    tensor: tensor.clone(),
                    file: file.clone(),
                });
            }
        }
        Ok(())
    }
}

/// The value of `name`, with or without the prefix that files of a bare base model lack.
fn named<'a, T>(map: &'a HashMap<String, T>, name: &str) -> Option<&'a T> {
    map.get(name).or_else(|| match name.strip_prefix("model.") {
        Some(bare) => map.get(bare),
        None => map.get(&format!("model.{name}")),
    })
}
