//! GGUF: a file with the config, the tokenizer, the chat template and the weights
//! (github.com/ggml-org/ggml, docs/gguf.md), whose tensors may be split over several files.
//!
//! The file is turned into the parts of a Hugging Face checkpoint, so that the rest of this crate
//! knows one kind of model: metadata becomes a [`ModelConfig`], a `tokenizer.json` and a
//! `tokenizer_config.json`, and tensors get their Hugging Face names.
//!
//! Files come from strangers. Lengths, counts and offsets are checked against the length of the
//! file before anything is allocated for them, and nothing but names is copied.

mod adapter;
mod config;
mod error;
mod families;
mod keys;
mod metadata;
mod pre_tokenizer;
pub(crate) mod split;
mod tensors;
#[cfg(test)]
mod tests;
mod tokenizer;

use crate::config::ModelConfig;
use crate::weights::StoredTensor;
pub(crate) use adapter::GgufAdapter;
pub use error::GgufError;
pub(crate) use families::architecture_of;
use metadata::{Metadata, Reader};
use tensors::Tensors;
pub use tokenizer::TokenizerFiles;

const MAGIC: &[u8; 4] = b"GGUF";
/// These versions differ only in parts that are not read here. Version 1 had 32-bit lengths.
const VERSIONS: std::ops::RangeInclusive<u32> = 2..=3;
/// The alignment of the data unless `general.alignment` says otherwise.
const ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 1 << 16;

/// A file whose header was read and checked.
pub struct Gguf<'a> {
    metadata: Metadata<'a>,
    tensors: Tensors<'a>,
}

impl<'a> Gguf<'a> {
    /// Reads the header of `bytes`, a whole file.
    ///
    /// # Errors
    /// [`GgufError::Corrupt`] says what is wrong at which byte.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, GgufError> {
        let mut reader = Reader::new(bytes);
        if reader.take(MAGIC.len())? != MAGIC {
            return Err(reader.corrupt("it does not begin with \"GGUF\""));
        }
        let version = reader.u32()?;
        if !VERSIONS.contains(&version) {
            return Err(GgufError::Version {
                given: if VERSIONS.contains(&version.swap_bytes()) {
                    "big-endian".to_owned()
                } else {
                    version.to_string()
                },
            });
        }
        let tensor_count = reader.u64()?;
        let metadata_count = reader.u64()?;
        let metadata = Metadata::read(&mut reader, metadata_count)?;
        let alignment = match metadata.count("general.alignment")? {
            None => ALIGNMENT,
            Some(given) if given.is_power_of_two() && (8..=MAX_ALIGNMENT).contains(&given) => given,
            Some(given) => {
                return Err(GgufError::Invalid {
                    key: "general.alignment".to_owned(),
                    bound: format!("a power of two from 8 to {MAX_ALIGNMENT}"),
                    given: given.to_string(),
                });
            }
        };
        let tensors = Tensors::read(&mut reader, tensor_count, alignment)?;
        Ok(Self { metadata, tensors })
    }

    /// The number of files that the model is split into: 1 for a model in one file.
    ///
    /// # Errors
    /// The number is not an integer.
    pub fn parts(&self) -> Result<u64, GgufError> {
        Ok(self.metadata.count(split::COUNT)?.unwrap_or(1))
    }

    /// Adds the tensors of `other`, which must be the part with the index `part` of as many parts.
    ///
    /// # Errors
    /// It is another part, or it has a tensor that an earlier part has.
    pub fn join(&mut self, other: Self, part: usize) -> Result<(), GgufError> {
        for (key, expected) in [(split::COUNT, self.parts()?), (split::NUMBER, part as u64)] {
            if other.metadata.count(key)? != Some(expected) {
                return Err(other
                    .metadata
                    .invalid(key, format!("{expected} in this file")));
            }
        }
        let joined = self.tensors.join(other.tensors);
        joined.map_err(|name| GgufError::Invalid {
            key: format!("tensor {name:.80}"),
            bound: "in one part".to_owned(),
            given: "two parts with it".to_owned(),
        })
    }

    /// The description of the decoder.
    ///
    /// # Errors
    /// Names the key that is missing or has a value that is not supported.
    pub fn config(&self) -> Result<ModelConfig, GgufError> {
        config::read(&self.metadata, &self.tensors)
    }

    /// The tokenizer and the chat template; `None` when the file has no tokenizer.
    ///
    /// # Errors
    /// As [`Gguf::config`].
    pub fn tokenizer(&self) -> Result<Option<TokenizerFiles>, GgufError> {
        tokenizer::convert(&self.metadata)
    }

    /// The tensors under their Hugging Face names. `config` is the config of this file.
    ///
    /// # Errors
    /// Names a tensor that is part of no supported model.
    pub(crate) fn into_tensors(
        self,
        config: &ModelConfig,
    ) -> Result<Vec<(String, StoredTensor)>, GgufError> {
        let paired = families::is_paired(self.metadata.architecture()?);
        self.tensors.renamed(config, paired)
    }

    /// The file as an adapter of the model of `config`.
    ///
    /// # Errors
    /// Names the key or the tensor that is missing or not supported.
    pub(crate) fn into_adapter(self, config: &ModelConfig) -> Result<GgufAdapter, GgufError> {
        // A part has a header of its own, so it would be read as an adapter that lacks tensors.
        let parts = self.parts()?;
        if parts > 1 {
            return Err(GgufError::Unsupported {
                key: split::COUNT.to_owned(),
                given: parts.to_string(),
                supported: "adapters in one file".to_owned(),
            });
        }
        adapter::read(&self.metadata, self.tensors, config)
    }
}
