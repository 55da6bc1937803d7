//! `--model org/name`: a checkpoint from the Hugging Face Hub, through the cache that the Python
//! tools share.
//!
//! All files of one load come from one commit: the commit is requested first, then each file that
//! is not in the cache. When the Hub cannot be reached, the cached snapshot is used if it is
//! complete. `hf-hub` trusts only Mozilla's root certificates, so behind a proxy that re-signs TLS
//! the files have to be downloaded by other means, into the cache or a directory.

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};
use serde_json::Value;

use crate::regular_file::{TOKENIZER_BYTES, read_text};
use crate::weights::{INDEX, SINGLE};

const ENDPOINT: &str = "https://huggingface.co";
const CONFIG: &str = "config.json";
/// Small files that are fetched if the repository has them.
const OPTIONAL: [&str; 6] = [
    "generation_config.json",
    "quantize_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];

/// An error between a repository's name and its files.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("{given:?} is neither a directory nor a Hugging Face repository (org/name)")]
    BadName { given: String },
    #[error("{repo} is not on {endpoint}")]
    NotFound { repo: String, endpoint: String },
    #[error(
        "{endpoint} does not give access to {repo}: it does not exist, or is private or gated; \
         set HF_TOKEN to a token that may read it"
    )]
    NotAllowed { repo: String, endpoint: String },
    #[error(
        "cannot reach {endpoint} for {repo} ({reason}), and it is not in the cache {cache}; \
         check the network, or give --model a directory"
    )]
    Unreachable {
        repo: String,
        endpoint: String,
        reason: String,
        cache: PathBuf,
    },
    #[error("{repo} is not in the cache {cache}, and HF_HUB_OFFLINE is set")]
    Offline { repo: String, cache: PathBuf },
    #[error("{repo} has no {file}")]
    MissingFile { repo: String, file: String },
    #[error("{repo}: {file} cannot be downloaded: {reason}")]
    Download {
        repo: String,
        file: String,
        reason: String,
    },
    #[error("{repo}: {INDEX} is not an index of safetensors files: {reason}")]
    BadIndex { repo: String, reason: String },
    #[error("no directory for the Hugging Face cache: set HF_HOME")]
    NoCache,
}

/// Where and how to fetch.
#[derive(Debug, Clone)]
pub struct HubOptions {
    pub endpoint: String,
    /// The directory that holds `models--org--name`.
    pub cache: PathBuf,
    pub token: Option<String>,
    /// Use the cache only.
    pub offline: bool,
    /// Do not download the weights, for a model with random ones.
    pub without_weights: bool,
}

impl HubOptions {
    /// Reads the variables of the Python tools: `HF_ENDPOINT`, `HF_HUB_CACHE` or `HF_HOME`,
    /// `HF_TOKEN` (else the token that `hf auth login` stored), `HF_HUB_OFFLINE`.
    ///
    /// # Errors
    /// [`HubError::NoCache`] when there is neither a variable nor a home directory.
    pub fn from_env() -> Result<Self, HubError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let cache = variable("HF_HUB_CACHE")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(variable("HF_HOME")?).join("hub")))
            .or_else(|| Some(std::env::home_dir()?.join(".cache/huggingface/hub")))
            .ok_or(HubError::NoCache)?;
        let offline = variable("HF_HUB_OFFLINE").is_some_and(|value| {
            matches!(value.to_lowercase().as_str(), "1" | "true" | "yes" | "on")
        });
        let token = variable("HF_TOKEN").or_else(|| Cache::new(cache.clone()).token());
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        Ok(Self {
            endpoint,
            cache,
            token,
            offline,
            without_weights: false,
        })
    }
}

/// True if `name` has the form `org/name`.
pub fn is_repo_id(name: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && part.len() <= 96
            && !part.starts_with(['-', '.'])
            && !part.ends_with(['-', '.'])
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    name.split_once('/')
        .is_some_and(|(org, name)| part(org) && part(name))
}

/// The directory of the checkpoint `repo`. Files that the cache lacks are downloaded.
///
/// # Errors
/// [`HubError`] says whether the name, the access, the network or the repository is at fault.
pub fn fetch(repo: &str, options: &HubOptions) -> Result<PathBuf, HubError> {
    fetch_files(repo, options, &CHECKPOINT)
}

/// The directory of the adapter `repo`, as PEFT saves it. Files that the cache lacks are downloaded.
///
/// # Errors
/// As [`fetch`].
pub fn fetch_adapter(repo: &str, options: &HubOptions) -> Result<PathBuf, HubError> {
    fetch_files(repo, options, &ADAPTER)
}

/// The files of a kind of repository.
struct Files {
    config: &'static str,
    optional: &'static [&'static str],
    weights: &'static str,
    /// The list of the files of weights, where they may be several.
    index: Option<&'static str>,
}

const CHECKPOINT: Files = Files {
    config: CONFIG,
    optional: &OPTIONAL,
    weights: SINGLE,
    index: Some(INDEX),
};

const ADAPTER: Files = Files {
    config: "adapter_config.json",
    optional: &[],
    weights: "adapter_model.safetensors",
    index: None,
};

fn fetch_files(
    repo: &str,
    options: &HubOptions,
    files: &'static Files,
) -> Result<PathBuf, HubError> {
    if !is_repo_id(repo) {
        return Err(HubError::BadName {
            given: repo.to_owned(),
        });
    }
    let fetch = Fetch {
        repo,
        options,
        files,
        cache: Cache::new(options.cache.clone()),
    };
    if options.offline {
        return fetch.cached().ok_or_else(|| HubError::Offline {
            repo: repo.to_owned(),
            cache: options.cache.clone(),
        });
    }
    fetch.online()
}

struct Fetch<'a> {
    repo: &'a str,
    options: &'a HubOptions,
    files: &'static Files,
    cache: Cache,
}

impl Fetch<'_> {
    fn main(&self) -> Repo {
        Repo::model(self.repo.to_owned())
    }

    /// The cached snapshot of the main branch, if nothing is missing from it.
    fn cached(&self) -> Option<PathBuf> {
        let config = self.cache.repo(self.main()).get(self.files.config)?;
        let dir = config.parent()?;
        let has_shards = |index: &str| {
            read_text(&dir.join(index), TOKENIZER_BYTES).is_ok_and(|index| {
                shards(&index).is_ok_and(|shards| shards.iter().all(|s| dir.join(s).exists()))
            })
        };
        let complete = self.options.without_weights
            || dir.join(self.files.weights).exists()
            || self.files.index.is_some_and(has_shards);
        complete.then(|| dir.to_owned())
    }

    fn online(&self) -> Result<PathBuf, HubError> {
        let api = ApiBuilder::from_cache(self.cache.clone())
            .with_endpoint(self.options.endpoint.clone())
            .with_token(self.options.token.clone())
            .with_retries(3)
            .build()
            .map_err(|error| self.download_error("the list of files", &error))?;
        let info = match api.repo(self.main()).info() {
            Ok(info) => info,
            Err(error) => return self.without_info(error),
        };
        let has = |file: &str| {
            info.siblings
                .iter()
                .any(|sibling| sibling.rfilename == file)
        };
        let get = |file: &str| self.get(&api, &info.sha, file);
        let missing = |file: &str| HubError::MissingFile {
            repo: self.repo.to_owned(),
            file: file.to_owned(),
        };

        let files = self.files;
        if !has(files.config) {
            return Err(missing(files.config));
        }
        let config = get(files.config)?;
        for file in files.optional.iter().filter(|file| has(file)) {
            get(file)?;
        }
        let weights = if self.options.without_weights {
            Vec::new()
        } else if has(files.weights) {
            vec![files.weights.to_owned()]
        } else if let Some(index) = files.index.filter(|index| has(index)) {
            let bad = |reason| HubError::BadIndex {
                repo: self.repo.to_owned(),
                reason,
            };
            let path = get(index)?;
            let index =
                read_text(&path, TOKENIZER_BYTES).map_err(|error| bad(error.to_string()))?;
            shards(&index).map_err(bad)?
        } else {
            return Err(missing(files.weights));
        };
        for file in &weights {
            get(file)?;
        }
        // Only after all files: a later offline start must not find a half-downloaded commit.
        if let Err(error) = self.cache.repo(self.main()).create_ref(&info.sha) {
            tracing::debug!(%error, repo = self.repo, "the cache's ref was not written");
        }
        Ok(config.parent().unwrap_or(Path::new("")).to_owned())
    }

    /// One file of one commit.
    fn get(&self, api: &Api, commit: &str, file: &str) -> Result<PathBuf, HubError> {
        let repo = Repo::with_revision(self.repo.to_owned(), RepoType::Model, commit.to_owned());
        let cached = self
            .cache
            .repo(repo.clone())
            .pointer_path(commit)
            .join(file);
        if cached.exists() {
            return Ok(cached);
        }
        api.repo(repo)
            .download(file)
            .map_err(|error| self.download_error(file, &error))
    }

    /// The result when the Hub did not list the repository: the cached snapshot or an error.
    fn without_info(&self, error: ApiError) -> Result<PathBuf, HubError> {
        let (repo, endpoint) = (self.repo.to_owned(), self.options.endpoint.clone());
        match status(&error) {
            Some(404) => return Err(HubError::NotFound { repo, endpoint }),
            Some(401 | 403) => return Err(HubError::NotAllowed { repo, endpoint }),
            _ => {}
        }
        let reason = error.to_string();
        match self.cached() {
            Some(dir) => {
                tracing::warn!(%reason, repo, "the Hub cannot be reached; using the cache");
                Ok(dir)
            }
            None => {
                let cache = self.options.cache.clone();
                Err(HubError::Unreachable {
                    repo,
                    endpoint,
                    reason,
                    cache,
                })
            }
        }
    }

    fn download_error(&self, file: &str, error: &ApiError) -> HubError {
        let repo = self.repo.to_owned();
        match status(error) {
            // The file lists of gated repositories are public, but the files are not.
            Some(401 | 403) => HubError::NotAllowed {
                repo,
                endpoint: self.options.endpoint.clone(),
            },
            _ => HubError::Download {
                repo,
                file: file.to_owned(),
                reason: error.to_string(),
            },
        }
    }
}

fn status(error: &ApiError) -> Option<u16> {
    match error {
        ApiError::RequestError(error) => match **error {
            ureq::Error::StatusCode(code) => Some(code),
            _ => None,
        },
        ApiError::TooManyRetries(inner) => status(inner),
        _ => None,
    }
}

/// The files that an index lists, each once.
fn shards(index: &str) -> Result<Vec<String>, String> {
    let index: Value = serde_json::from_str(index).map_err(|error| error.to_string())?;
    let map = index
        .get("weight_map")
        .and_then(Value::as_object)
        .ok_or("weight_map is missing")?;
    let mut shards: Vec<String> = map
        .values()
        .map(|file| {
            file.as_str()
                .map(str::to_owned)
                .ok_or("weight_map holds no file names")
        })
        .collect::<Result<_, _>>()?;
    shards.sort_unstable();
    shards.dedup();
    match shards
        .iter()
        .find(|shard| shard.contains(['/', '\\']) || shard.starts_with('.'))
    {
        Some(shard) => Err(format!("{shard:?} is not a plain file name")),
        None => Ok(shards),
    }
}
