//! Weights by name: safetensors and GGUF files mapped into memory, bytes compiled into the
//! binary, or random values.
//!
//! A file of any size opens at once, because its pages are read when a tensor is. Files come from
//! strangers, so each header is checked against its file before any data is handed out.

mod dummy;
mod error;
mod file_names;
mod format;
#[cfg(test)]
pub(crate) mod fuzz;
mod mapped;
pub(crate) mod quantise;
mod stored;
#[cfg(test)]
mod tests;
mod view;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use hearth_shaders::BlockFormat;
use indicatif::ProgressBar;
use safetensors::SafeTensors;
use serde::Deserialize;

use crate::dtype::Dtype;
use crate::regular_file::{self, TOKENIZER_BYTES};
pub use error::WeightError;
pub(crate) use file_names::{INDEX, SINGLE};
pub use format::Format;
pub(crate) use mapped::{Bytes, map};
pub use quantise::Quantization;
pub(crate) use stored::StoredTensor;
pub use view::{HeadOrder, TensorView};

enum Source {
    Files {
        files: Vec<(PathBuf, Bytes)>,
        entries: HashMap<String, StoredTensor>,
    },
    Dummy {
        dtype: Dtype,
        seed: u64,
    },
}

/// The weights of one checkpoint.
pub struct Weights {
    source: Source,
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
            files,
        };
        weights
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
        let view = match &self.source {
            Source::Dummy { dtype, seed } => TensorView {
                format: Format::Float(*dtype),
                shape: expected.to_vec(),
                bytes: Cow::Owned(dummy::tensor(name, expected, *dtype, *seed)),
                heads: None,
            },
            Source::Files { files, .. } => {
                let tensor = self.entry(name).ok_or_else(|| WeightError::MissingTensor {
                    tensor: name.to_owned(),
                    place: self.place.clone(),
                })?;
                let (path, bytes) = &files[tensor.file];
                let file = || path.display().to_string();
                let row: usize = tensor.shape.iter().skip(1).product();
                // Rows that are to be reordered must begin with a block.
                let cut = tensor.heads.is_some() && !row.is_multiple_of(tensor.format.block().0);
                if cut || matches!(tensor.format, Format::Other(_)) {
                    return Err(WeightError::UnsupportedDtype {
                        tensor: name.to_owned(),
                        file: file(),
                        found: tensor.format.to_string(),
                    });
                }
                if tensor.shape != expected {
                    return Err(WeightError::WrongShape {
                        tensor: name.to_owned(),
                        file: file(),
                        found: tensor.shape.clone(),
                        expected: expected.to_vec(),
                    });
                }
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

    /// Whether there is a tensor `name`. Random weights have every name.
    pub fn contains(&self, name: &str) -> bool {
        matches!(self.source, Source::Dummy { .. }) || self.entry(name).is_some()
    }

    /// The format of the tensor `name`, if there is one.
    pub fn format(&self, name: &str) -> Option<Format> {
        match &self.source {
            Source::Dummy { dtype, .. } => Some(Format::Float(*dtype)),
            Source::Files { .. } => self.entry(name).map(|entry| entry.format.clone()),
        }
    }

    /// The shape of the tensor `name` of a file.
    pub(crate) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.entry(name).map(|entry| entry.shape.as_slice())
    }

    /// A format of blocks that some tensor is stored in, if there is one.
    pub fn blocks(&self) -> Option<BlockFormat> {
        let Source::Files { entries, .. } = &self.source else {
            return None;
        };
        entries.values().find_map(|entry| match entry.format {
            Format::Blocks(blocks) => Some(blocks),
            _ => None,
        })
    }

    /// Names of all tensors, sorted; none for random weights.
    pub fn names(&self) -> Vec<&str> {
        let Source::Files { entries, .. } = &self.source else {
            return Vec::new();
        };
        let mut names: Vec<&str> = entries.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Bytes of all tensors; 0 for random weights.
    pub fn total_bytes(&self) -> u64 {
        let Source::Files { entries, .. } = &self.source else {
            return 0;
        };
        entries.values().map(|entry| entry.bytes.len() as u64).sum()
    }

    /// The format of most of the bytes, which `--dtype auto` takes; `None` when no tensor is a
    /// float. Blocks count as bf16, which holds more than they do and overflows no sooner than
    /// the numbers that they were made from.
    pub fn dtype(&self) -> Option<Dtype> {
        let entries = match &self.source {
            Source::Dummy { dtype, .. } => return Some(*dtype),
            Source::Files { entries, .. } => entries,
        };
        let mut bytes = [(Dtype::F32, 0), (Dtype::Bf16, 0), (Dtype::F16, 0)];
        for entry in entries.values() {
            let dtype = match &entry.format {
                Format::Float(dtype) => Some(*dtype),
                Format::Blocks(_) => Some(Dtype::Bf16),
                Format::Other(_) => None,
            };
            if let Some(dtype) = dtype
                && let Some((_, sum)) = bytes.iter_mut().find(|(other, _)| *other == dtype)
            {
                *sum += entry.bytes.len();
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
        if let Source::Files { files, .. } = &self.source
            && let Some(entry) = self.entry(name)
            && let (_, Bytes::Mapped(map)) = &files[entry.file]
        {
            // SAFETY: the mapping is a file's, read-only: a dropped page is read again from
            // the file when it is touched, with the same bytes.
            let dropped = unsafe {
                map.unchecked_advise_range(
                    memmap2::UncheckedAdvice::DontNeed,
                    entry.bytes.start,
                    entry.bytes.len(),
                )
            };
            if let Err(error) = dropped {
                tracing::debug!(%error, name, "madvise refused");
            }
        }
        #[cfg(not(unix))]
        let _ = name;
    }

    fn empty(place: String) -> Self {
        let source = Source::Files {
            files: Vec::new(),
            entries: HashMap::new(),
        };
        Self {
            source,
            place,
            progress: ProgressBar::hidden(),
        }
    }

    fn entry(&self, name: &str) -> Option<&StoredTensor> {
        let Source::Files { entries, .. } = &self.source else {
            return None;
        };
        entries
            .get(name)
            .or_else(|| match name.strip_prefix("model.") {
                Some(bare) => entries.get(bare),
                None => entries.get(&format!("model.{name}")),
            })
    }

    /// Adds the tensors of a safetensors file whose header agrees with its bytes.
    fn add(&mut self, path: PathBuf, bytes: Bytes) -> Result<(), WeightError> {
        let Source::Files { files, entries } = &mut self.source else {
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
