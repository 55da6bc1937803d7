//! Weights by name: safetensors and GGUF files mapped into memory, bytes compiled into the
//! binary, or random values.
//!
//! A file of any size opens at once; pages are read when a tensor is. Headers come from
//! strangers, so each is checked against its file before a byte of data is handed out.

mod blocks;
mod dummy;
mod error;
mod format;
#[cfg(test)]
mod fuzz;
pub(crate) mod quantise;
#[cfg(test)]
mod tests;
mod view;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use memmap2::Mmap;
use safetensors::SafeTensors;
use serde::Deserialize;

use crate::dtype::Dtype;
use crate::gguf::GgufTensor;
pub use blocks::BlockType;
pub use error::WeightError;
pub use format::Format;
pub use quantise::Quantization;
pub use view::{HeadOrder, TensorView};

pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Where one tensor lies.
struct Entry {
    file: usize,
    format: Format,
    shape: Vec<usize>,
    start: usize,
    end: usize,
    heads: Option<HeadOrder>,
}

/// The bytes of a file.
pub(crate) enum Bytes {
    Mapped(Mmap),
    Static(&'static [u8]),
}

impl Bytes {
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Static(bytes) => bytes,
        }
    }
}

enum Source {
    Files {
        files: Vec<(PathBuf, Bytes)>,
        entries: HashMap<String, Entry>,
    },
    Dummy {
        dtype: Dtype,
        seed: u64,
    },
}

/// The weights of one checkpoint.
pub struct Weights {
    source: Source,
    /// For messages: the directory, or what stands for it.
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

    /// The tensors of a GGUF file that was mapped and read.
    pub(crate) fn from_gguf(path: PathBuf, bytes: Bytes, tensors: Vec<GgufTensor>) -> Self {
        let mut weights = Self::empty(path.display().to_string());
        let entries = tensors.into_iter().map(|tensor| {
            let entry = Entry {
                file: 0,
                format: tensor.format,
                shape: tensor.shape,
                start: tensor.bytes.start,
                end: tensor.bytes.end,
                heads: tensor.heads,
            };
            (tensor.name, entry)
        });
        weights.source = Source::Files {
            entries: entries.collect(),
            files: vec![(path, bytes)],
        };
        weights
    }

    /// Random weights of whatever name and shape is asked for: standard deviation 0.02, norms 1.
    /// A tensor's values depend on its name and `seed` only.
    pub fn dummy(dtype: Dtype, seed: u64) -> Self {
        let mut weights = Self::empty("random weights".to_owned());
        weights.source = Source::Dummy { dtype, seed };
        weights
    }

    /// Advances `bar` by the bytes of each tensor got from now on.
    pub fn set_progress(&mut self, bar: ProgressBar) {
        self.progress = bar;
    }

    /// The tensor `name`, which must have the shape `expected`. Names are found with and
    /// without the prefix `model.`, which checkpoints of a bare base model lack.
    ///
    /// # Errors
    /// Names the tensor, and what of its presence, shape or dtype is wrong.
    pub fn get(&self, name: &str, expected: &[usize]) -> Result<TensorView<'_>, WeightError> {
        let view = match &self.source {
            Source::Dummy { dtype, seed } => TensorView {
                format: Format::Float(*dtype),
                shape: expected.to_vec(),
                bytes: Cow::Owned(dummy::tensor(name, expected, *dtype, *seed)),
                heads: None,
            },
            Source::Files { files, .. } => {
                let entry = self.entry(name).ok_or_else(|| WeightError::MissingTensor {
                    tensor: name.to_owned(),
                    place: self.place.clone(),
                })?;
                let (path, bytes) = &files[entry.file];
                let file = || path.display().to_string();
                let row: usize = entry.shape.iter().skip(1).product();
                // Rows that are put in order must begin with a block.
                let cut = entry.heads.is_some() && !row.is_multiple_of(entry.format.block().0);
                if cut || matches!(entry.format, Format::Other(_)) {
                    return Err(WeightError::UnsupportedDtype {
                        tensor: name.to_owned(),
                        file: file(),
                        found: entry.format.to_string(),
                    });
                }
                if entry.shape != expected {
                    return Err(WeightError::WrongShape {
                        tensor: name.to_owned(),
                        file: file(),
                        found: entry.shape.clone(),
                        expected: expected.to_vec(),
                    });
                }
                let bytes = Cow::Borrowed(&bytes.as_slice()[entry.start..entry.end]);
                TensorView {
                    format: entry.format.clone(),
                    shape: entry.shape.clone(),
                    bytes,
                    heads: entry.heads,
                }
            }
        };
        self.progress.inc(view.bytes.len() as u64);
        Ok(view)
    }

    /// Whether `name` is there. Random weights have every name.
    pub fn contains(&self, name: &str) -> bool {
        matches!(self.source, Source::Dummy { .. }) || self.entry(name).is_some()
    }

    /// How `name` is stored, if it is there.
    pub fn format(&self, name: &str) -> Option<Format> {
        match &self.source {
            Source::Dummy { dtype, .. } => Some(Format::Float(*dtype)),
            Source::Files { .. } => self.entry(name).map(|entry| entry.format.clone()),
        }
    }

    /// A format of blocks that a tensor is stored in, if one is.
    pub fn blocks(&self) -> Option<BlockType> {
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
        entries
            .values()
            .map(|entry| (entry.end - entry.start) as u64)
            .sum()
    }

    /// The format that most bytes are in, which is what `--dtype auto` means; `None` when no
    /// tensor is a float. Blocks count as bf16: they hold less, and it overflows no sooner than
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
                *sum += entry.end - entry.start;
            }
        }
        // By bytes, not the widest: some bf16 checkpoints keep their norms in f32.
        bytes
            .into_iter()
            .filter(|(_, sum)| *sum > 0)
            .max_by_key(|(_, sum)| *sum)
            .map(|(d, _)| d)
    }

    /// Gives the memory of a tensor that was copied elsewhere back to the system, so that
    /// loading does not hold two copies of a model. It can be got again, from disk.
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
                    entry.start,
                    entry.end - entry.start,
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

    fn entry(&self, name: &str) -> Option<&Entry> {
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

    /// Indexes one file, after its header was checked against its bytes.
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
            let shape = info.shape.clone();
            entries.insert(
                name,
                Entry {
                    file: files.len(),
                    format: Format::of_safetensors(info.dtype),
                    shape,
                    start,
                    end,
                    heads: None,
                },
            );
        }
        files.push((path, bytes));
        Ok(())
    }

    fn add_shards(&mut self, dir: &Path, index: &Path) -> Result<(), WeightError> {
        let bad = |reason: String| WeightError::BadIndex {
            file: index.to_owned(),
            reason,
        };
        let text = std::fs::read_to_string(index).map_err(|source| WeightError::Io {
            path: index.to_owned(),
            source,
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

/// Maps a file into memory.
pub(crate) fn map(path: &Path) -> Result<Bytes, WeightError> {
    let io = |source| WeightError::Io {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(io)?;
    // SAFETY: the mapping is read-only and only plain numbers are read from it. Whoever
    // truncates a weight file under a running server gets SIGBUS, as with every mmap loader.
    let map = unsafe { Mmap::map(&file) }.map_err(io)?;
    Ok(Bytes::Mapped(map))
}
