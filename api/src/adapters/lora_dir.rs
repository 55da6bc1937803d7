//! The one directory below which requests may name adapters.

use std::path::{Component, Path, PathBuf};

use super::AdapterError;

/// `--lora-dir`.
#[derive(Clone, Debug)]
pub struct LoraDir(PathBuf);

impl LoraDir {
    /// # Errors
    /// There is no such directory.
    pub fn new(dir: &Path) -> std::io::Result<Self> {
        let dir = dir.canonicalize()?;
        match dir.is_dir() {
            true => Ok(Self(dir)),
            false => Err(std::io::Error::other("it is not a directory")),
        }
    }

    /// The path that a request names: below the directory, absolute or relative to it. It says the same
    /// about what is elsewhere whether there is anything or not, so that no request can explore the
    /// file system.
    ///
    /// # Errors
    /// The path is not below the directory, or there is nothing.
    pub fn resolve(&self, given: &str) -> Result<String, AdapterError> {
        let outside = || {
            let message = format!("the path {given:?} is not below --lora-dir");
            AdapterError::Refused(message)
        };
        let path = Path::new(given);
        let up = |part: Component<'_>| matches!(part, Component::ParentDir);
        if given.is_empty() || given.contains('\0') || path.components().any(up) {
            return Err(outside());
        }
        // An absolute path replaces the directory.
        let path = self.0.join(path);
        if !path.starts_with(&self.0) {
            return Err(outside());
        }
        let missing = |_| AdapterError::NotFound(format!("there is no adapter at {given:?}"));
        let found = path.canonicalize().map_err(missing)?;
        // Symbolic links may lead out of it.
        match found.starts_with(&self.0) && found != self.0 {
            true => Ok(found.display().to_string()),
            false => Err(outside()),
        }
    }
}
