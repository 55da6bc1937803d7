//! A model as it is published: config, tokenizer, chat template and weights, from a directory,
//! a GGUF file, the Hugging Face Hub or the binary itself.

mod embedded;
mod error;
mod generation;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::certified::Packaging;
use crate::chat_template::{ChatTemplate, ChatTemplateError};
use crate::config::ModelConfig;
use crate::dtype::Dtype;
use crate::gguf::split::{self, SplitFiles};
use crate::gguf::{Gguf, GgufError};
use crate::hub::{self, HubOptions};
use crate::quantization::Scheme;
use crate::refused;
use crate::regular_file::{self, CONFIG_BYTES, TOKENIZER_BYTES};
use crate::tokenizer::Tokenizer;
use crate::weights::{self, Weights};
pub use embedded::EMBEDDED_NAME;
pub use error::CheckpointError;
pub use generation::{GenerationConfig, GenerationConfigError};

const TOKENIZER: &str = "tokenizer.json";

/// Where the values of the weights come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoadFormat {
    /// The checkpoint's own: safetensors files, or the tensors of a GGUF file.
    #[default]
    Safetensors,
    /// Random weights of the config's shapes, for measuring speed.
    Dummy { seed: u64 },
}

/// An opened model: everything except the weights is in memory and checked.
pub struct Checkpoint {
    /// The repository, or the last part of the directory's path.
    pub name: String,
    pub config: ModelConfig,
    pub generation: GenerationConfig,
    /// `None` if the checkpoint has none; see [`Checkpoint::tokenizer`].
    pub tokenizer: Option<Tokenizer>,
    /// An error if the checkpoint has none or it does not compile. Completions work without one.
    pub chat_template: Result<ChatTemplate, ChatTemplateError>,
    pub weights: Weights,
    pub packaging: Packaging,
    place: String,
}

/// The small files of a checkpoint.
enum Files {
    Dir(PathBuf),
    Embedded(&'static [(&'static str, &'static [u8])]),
}

impl Checkpoint {
    /// Opens what `--model` names: a directory, a file `*.gguf`, or otherwise a repository
    /// `org/name` of the Hub.
    ///
    /// # Errors
    /// [`CheckpointError`] names the file, field or tensor that is missing or wrong.
    pub fn open(model: &str, format: LoadFormat) -> Result<Self, CheckpointError> {
        let path = Path::new(model);
        let extension = path.extension();
        if extension.is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
            && !path.is_dir()
        {
            return Self::open_gguf(path, format);
        }
        if path.exists() || !hub::is_repo_id(model) {
            return Self::open_dir(path, format);
        }
        let mut options = HubOptions::from_env()?;
        options.without_weights = format != LoadFormat::Safetensors;
        let dir = hub::fetch(model, &options)?;
        Ok(Self {
            name: model.to_owned(),
            ..Self::open_dir(&dir, format)?
        })
    }

    /// The directory or the file that it was read from; for a repository of the Hub, the directory in
    /// the cache that has the commit's files.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Opens a directory in Hugging Face format.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn open_dir(dir: &Path, format: LoadFormat) -> Result<Self, CheckpointError> {
        if !dir.is_dir() {
            return Err(CheckpointError::NotADirectory {
                path: dir.to_owned(),
            });
        }
        // "." and ".." have no name of their own.
        let full = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        let name = full
            .file_name()
            .unwrap_or(full.as_os_str())
            .to_string_lossy()
            .into_owned();
        let parts = Parts::read(&Files::Dir(dir.to_owned()))?;
        let scheme = parts.quantization;
        Self::assemble(name, parts, |config| match format {
            LoadFormat::Safetensors => {
                let weights = Weights::open_dir(dir)?;
                Ok(match scheme {
                    None => weights,
                    Some(scheme) => weights.with_scheme(scheme)?,
                })
            }
            LoadFormat::Dummy { seed } => Ok(dummy(config, seed)),
        })
    }

    /// Opens a GGUF file, which contains all parts of a checkpoint, and the files beside it if it is
    /// one of several that the tensors are split over.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn open_gguf(path: &Path, format: LoadFormat) -> Result<Self, CheckpointError> {
        let place = path.display().to_string();
        let wrong = |file: &Path, error| CheckpointError::Gguf {
            file: file.to_owned(),
            error,
        };
        let stem = path.file_stem().unwrap_or(path.as_os_str());
        let mut name = stem.to_string_lossy().into_owned();
        let mut files = vec![(path.to_owned(), weights::map(path)?)];
        let parts = Gguf::parse(files[0].1.as_slice()).and_then(|file| file.parts());
        let parts = parts.map_err(|error| wrong(path, error))?;
        if parts > 1 {
            let split = SplitFiles::of(path, parts).ok_or_else(|| {
                let error = GgufError::Unsupported {
                    key: split::COUNT.to_owned(),
                    given: parts.to_string(),
                    supported: "parts whose names end in -00001-of-0000N.gguf".to_owned(),
                };
                wrong(path, error)
            })?;
            name = split.name;
            files.clear();
            for path in split.paths {
                let bytes = weights::map(&path)?;
                files.push((path, bytes));
            }
        }
        let mut whole: Option<Gguf<'_>> = None;
        for (part, (path, bytes)) in files.iter().enumerate() {
            let file = Gguf::parse(bytes.as_slice()).map_err(|error| wrong(path, error))?;
            match &mut whole {
                None => whole = Some(file),
                Some(whole) => whole.join(file, part).map_err(|error| wrong(path, error))?,
            }
        }
        let file = whole.expect("there is a first file");
        let first = &files[0].0;
        let config = file.config().map_err(|error| wrong(first, error))?;
        let tokenizer = file.tokenizer().map_err(|error| wrong(first, error))?;
        let tensors = file.into_tensors(&config);
        let tensors = tensors.map_err(|error| wrong(first, error))?;
        let mut parts = Parts {
            place,
            packaging: Packaging::Gguf,
            config,
            quantization: None,
            generation: GenerationConfig::default(),
            tokenizer: None,
            tokenizer_config: Map::new(),
            special_tokens_map: Map::new(),
            chat_template: None,
        };
        if let Some(converted) = tokenizer {
            parts.tokenizer = Some(Cow::Owned(converted.tokenizer));
            parts.tokenizer_config = converted.config;
            parts.generation.eos_token_ids = Some(converted.eos_token_ids);
        }
        Self::assemble(name, parts, |config| {
            Ok(match format {
                LoadFormat::Safetensors => Weights::from_files(files, tensors),
                LoadFormat::Dummy { seed } => dummy(config, seed),
            })
        })
    }

    /// The model that is compiled into the binary.
    ///
    /// # Errors
    /// [`CheckpointError::NotEmbedded`] when the binary was built without it.
    pub fn embedded() -> Result<Self, CheckpointError> {
        let files = embedded::files()?;
        let parts = Parts::read(&Files::Embedded(files))?;
        Self::assemble(EMBEDDED_NAME.to_owned(), parts, |_| {
            let file = files.iter().find(|(name, _)| *name == weights::SINGLE);
            let bytes = file.map_or(&[] as &[u8], |(_, bytes)| *bytes);
            Ok(Weights::from_static(EMBEDDED_NAME, bytes)?)
        })
    }

    fn assemble(
        name: String,
        parts: Parts,
        weights: impl FnOnce(&ModelConfig) -> Result<Weights, CheckpointError>,
    ) -> Result<Self, CheckpointError> {
        let Parts { place, config, .. } = parts;
        let tokenizer_config = parts.tokenizer_config;
        let tokenizer = parts
            .tokenizer
            .map(|json| Tokenizer::from_json(&json, &tokenizer_config, &parts.special_tokens_map))
            .transpose()
            .map_err(|error| CheckpointError::Tokenizer {
                place: place.clone(),
                error,
            })?;
        let special_tokens = tokenizer
            .as_ref()
            .map(|tokenizer| tokenizer.special_tokens().clone());
        let chat_template = ChatTemplate::from_checkpoint(
            parts.chat_template.as_deref(),
            &tokenizer_config,
            special_tokens.unwrap_or_default(),
        );
        if let Some(tokenizer) = &tokenizer
            && tokenizer.vocab_size() > config.vocab_size
        {
            tracing::warn!(
                tokens = tokenizer.vocab_size(),
                embeddings = config.vocab_size,
                "the tokenizer has tokens that the model does not"
            );
        }
        let mut weights = weights(&config)?;
        for layer in (0..config.layers.len()).filter_map(|layer| config.expert_tensors(layer)) {
            weights.split_experts(&layer)?;
        }
        Ok(Self {
            name,
            config,
            generation: parts.generation,
            tokenizer,
            chat_template,
            weights,
            packaging: parts.packaging,
            place,
        })
    }

    /// The tokenizer, without which a server cannot work.
    ///
    /// # Errors
    /// [`CheckpointError::MissingFile`] when the checkpoint has no `tokenizer.json`.
    pub fn tokenizer(&self) -> Result<&Tokenizer, CheckpointError> {
        self.tokenizer
            .as_ref()
            .ok_or_else(|| CheckpointError::MissingFile {
                place: self.place.clone(),
                file: TOKENIZER.to_owned(),
            })
    }

    /// Token ids that end a generation: those of `generation_config.json`, else of
    /// `config.json`, and the tokenizer's own, which some files forget.
    pub fn eos_token_ids(&self) -> Vec<u32> {
        let configured = self.generation.eos_token_ids.as_ref();
        let mut ids = configured.unwrap_or(&self.config.eos_token_ids).clone();
        ids.extend(self.tokenizer.as_ref().and_then(Tokenizer::eos_id));
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

/// The parts of a checkpoint except the weights.
struct Parts {
    /// The directory or file, for messages.
    place: String,
    packaging: Packaging,
    config: ModelConfig,
    /// How the matrices are quantized, if they are.
    quantization: Option<Scheme>,
    generation: GenerationConfig,
    /// `tokenizer.json`
    tokenizer: Option<Cow<'static, [u8]>>,
    tokenizer_config: Map<String, Value>,
    special_tokens_map: Map<String, Value>,
    /// `chat_template.jinja`
    chat_template: Option<String>,
}

impl Parts {
    fn read(files: &Files) -> Result<Self, CheckpointError> {
        let place = files.place();
        let config = files
            .text("config.json")?
            .ok_or_else(|| CheckpointError::MissingFile {
                place: place.clone(),
                file: "config.json".to_owned(),
            })?;
        let older = files.text("quantize_config.json")?;
        let quantization = Scheme::of_checkpoint(&config, older.as_deref());
        let quantization = quantization.map_err(|error| CheckpointError::Quantization {
            place: place.clone(),
            error,
        })?;
        let config = ModelConfig::from_json(&config).map_err(|error| CheckpointError::Config {
            place: place.clone(),
            error: refused::advised(error),
        })?;
        let generation = match files.text("generation_config.json")? {
            None => GenerationConfig::default(),
            Some(text) => {
                GenerationConfig::from_json(&text).map_err(|error| CheckpointError::Generation {
                    place: place.clone(),
                    error,
                })?
            }
        };
        Ok(Self {
            place,
            packaging: Packaging::Safetensors,
            config,
            quantization,
            generation,
            tokenizer: files.read(TOKENIZER)?,
            tokenizer_config: files.object("tokenizer_config.json")?,
            special_tokens_map: files.object("special_tokens_map.json")?,
            chat_template: files.text("chat_template.jinja")?,
        })
    }
}

fn dummy(config: &ModelConfig, seed: u64) -> Weights {
    Weights::dummy(config.torch_dtype.unwrap_or(Dtype::Bf16), seed)
}

impl Files {
    fn place(&self) -> String {
        match self {
            Files::Dir(dir) => dir.display().to_string(),
            Files::Embedded(_) => EMBEDDED_NAME.to_owned(),
        }
    }

    /// The bytes of a file, `None` when there is no such file.
    fn read(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>, CheckpointError> {
        match self {
            Files::Embedded(files) => {
                let found = files.iter().find(|(file, _)| *file == name);
                Ok(found.map(|(_, bytes)| Cow::Borrowed(*bytes)))
            }
            Files::Dir(dir) => {
                let path = dir.join(name);
                let most = match name {
                    TOKENIZER => TOKENIZER_BYTES,
                    _ => CONFIG_BYTES,
                };
                match regular_file::read(&path, most) {
                    Ok(bytes) => Ok(Some(Cow::Owned(bytes))),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(CheckpointError::Io { path, error }),
                }
            }
        }
    }

    fn text(&self, name: &'static str) -> Result<Option<String>, CheckpointError> {
        // Invalid UTF-8 is left to the parsers: it is bad JSON, or odd but harmless Jinja.
        Ok(self
            .read(name)?
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// An optional JSON object; empty when there is no such file.
    fn object(&self, name: &'static str) -> Result<Map<String, Value>, CheckpointError> {
        let Some(bytes) = self.read(name)? else {
            return Ok(Map::new());
        };
        serde_json::from_slice(&bytes).map_err(|error| CheckpointError::Json {
            place: self.place(),
            file: name,
            reason: error.to_string(),
        })
    }
}
