//! `hearth pull`, `list` and `rm`: the models of the Hugging Face Hub that are on this machine, in the
//! cache that the Python tools share.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use hearth_model::hub::{self, HubOptions};

use crate::banner::bytes_text;

/// The beginning of the name of a model's folder in the cache.
const PREFIX: &str = "models--";

/// Downloads what the cache lacks of a model, and prints where it is.
///
/// # Errors
/// The name is none of the Hub, or the Hub cannot be reached.
pub fn pull(repo: &str) -> Result<()> {
    check(repo)?;
    let folder = hub::fetch(repo, &HubOptions::from_env()?)?;
    println!("{repo} is in {}", folder.display());
    Ok(())
}

/// Prints the models in the cache with their sizes.
///
/// # Errors
/// The cache cannot be read.
pub fn list() -> Result<()> {
    let cache = HubOptions::from_env()?.cache;
    let models = models(&cache)?;
    if models.is_empty() {
        println!("There are no models in {}.", cache.display());
    }
    for (name, bytes) in models {
        println!("{:>10}  {name}", bytes_text(bytes));
    }
    Ok(())
}

/// Removes a model from the cache.
///
/// # Errors
/// The model is not there, or cannot be removed.
pub fn remove(repo: &str) -> Result<()> {
    check(repo)?;
    let cache = HubOptions::from_env()?.cache;
    let freed = remove_from(&cache, repo)?;
    println!("Removed {repo}, which had {}.", bytes_text(freed));
    Ok(())
}

fn check(repo: &str) -> Result<()> {
    if !hub::is_repo_id(repo) {
        bail!("{repo:?} is not the name of a model of the Hub, such as Qwen/Qwen3-0.6B");
    }
    Ok(())
}

/// The models in `cache` with their bytes, by name.
fn models(cache: &Path) -> Result<Vec<(String, u64)>> {
    if !cache.exists() {
        return Ok(Vec::new());
    }
    let entries =
        fs::read_dir(cache).with_context(|| format!("cannot read {}", cache.display()))?;
    let mut models = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(name) = name.strip_prefix(PREFIX) {
            models.push((name.replacen("--", "/", 1), size(&entry.path())));
        }
    }
    models.sort();
    Ok(models)
}

fn remove_from(cache: &Path, repo: &str) -> Result<u64> {
    let folder = folder(cache, repo);
    if !folder.is_dir() {
        bail!(
            "{repo} is not in {}; `hearth list` shows what is",
            cache.display()
        );
    }
    let bytes = size(&folder);
    fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    Ok(bytes)
}

fn folder(cache: &Path, repo: &str) -> PathBuf {
    cache.join(format!("{PREFIX}{}", repo.replace('/', "--")))
}

/// Bytes of the files below `path`. Snapshots are links to files that count once.
fn size(path: &Path) -> u64 {
    let Ok(meta) = path.symlink_metadata() else {
        return 0;
    };
    if !meta.is_dir() {
        return if meta.is_file() { meta.len() } else { 0 };
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| size(&entry.path())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_listed_with_what_they_take_and_removed() {
        let cache = std::env::temp_dir().join(format!("hearth-hub-{}", std::process::id()));
        assert_eq!(models(&cache).unwrap(), []);
        let blobs = folder(&cache, "org/a--model").join("blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join("x"), [0; 100]).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(blobs.join("x"), blobs.join("link")).unwrap();
        fs::create_dir_all(cache.join("datasets--other")).unwrap();
        assert_eq!(models(&cache).unwrap(), [("org/a--model".to_owned(), 100)]);
        let error = remove_from(&cache, "org/b").unwrap_err().to_string();
        assert!(error.contains("org/b is not in"), "{error}");
        assert_eq!(remove_from(&cache, "org/a--model").unwrap(), 100);
        assert_eq!(models(&cache).unwrap(), []);
        fs::remove_dir_all(&cache).unwrap();
        assert!(check("../x/y").is_err() && check("model").is_err() && check("a/b").is_ok());
    }
}
