//! The bytes of a file, mapped into memory or compiled into the binary.

use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use super::error::WeightError;
use crate::regular_file;

/// The bytes of a file.
pub(crate) enum Bytes {
    Mapped(Mmap),
    Static(&'static [u8]),
    /// Read into memory.
    Read(Arc<Vec<u8>>),
}

impl Bytes {
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Static(bytes) => bytes,
            Bytes::Read(bytes) => bytes,
        }
    }
}

/// Maps a file into memory.
pub(crate) fn map(path: &Path) -> Result<Bytes, WeightError> {
    let io = |error| WeightError::Io {
        path: path.to_owned(),
        error,
    };
    let file = regular_file::open(path).map_err(io)?;
    // SAFETY: the mapping is read-only and only plain numbers are read from it. If a weight file is
    // truncated while the server runs, the server gets SIGBUS, as every loader that maps files.
    let map = unsafe { Mmap::map(&file) }.map_err(io)?;
    Ok(Bytes::Mapped(map))
}
