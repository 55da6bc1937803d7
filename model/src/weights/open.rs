//! Opens the safetensors files of a checkpoint.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::SafeTensors;
use serde::Deserialize;

use super::error::WeightError;
use super::file_names::{INDEX, SINGLE};
use super::format::Format;
use super::mapped::{Bytes, map};
use super::stored::StoredTensor;
use super::{Source, Weights};
use crate::regular_file::{self, TOKENIZER_BYTES};

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
        weights.add(path, Bytes::Read(Arc::new(bytes)))?;
        Ok(weights)
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
