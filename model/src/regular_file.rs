//! Files of models come from strangers, and a name may lead to a pipe or a device, which has no end
//! or never has a beginning. Only regular files are opened, and small ones read up to a bound.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Bytes of `config.json` and the like.
pub(crate) const CONFIG_BYTES: u64 = 64 << 20;
/// Bytes of `tokenizer.json` and of an index of shards; the largest in use have about fifty
/// million.
pub(crate) const TOKENIZER_BYTES: u64 = 512 << 20;

/// Opens a regular file.
///
/// # Errors
/// The path leads to something else than a regular file, or cannot be opened.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    // Asked before opening, because a pipe without a writer is not opened until it has one.
    require_regular(&path.metadata()?)?;
    let file = File::open(path)?;
    require_regular(&file.metadata()?)?;
    Ok(file)
}

/// The bytes of a regular file that has at most `most`.
///
/// # Errors
/// It is larger, or as for [`open`].
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let size = file.metadata()?.len();
    let too_large =
        |size| io::Error::other(format!("it may have at most {most} bytes, got {size}"));
    if size > most {
        return Err(too_large(size));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    // A file may grow while it is read.
    file.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 {
        size if size > most => Err(too_large(size)),
        _ => Ok(bytes),
    }
}

/// [`read`] for a text.
///
/// # Errors
/// It is not UTF-8, or as for [`read`].
pub(crate) fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read(path, most)?).map_err(io::Error::other)
}

fn require_regular(metadata: &std::fs::Metadata) -> io::Result<()> {
    match metadata.is_file() {
        true => Ok(()),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_and_a_folder_are_refused_and_large_files_too() {
        for path in ["/dev/zero", "/dev", "/proc/self/mem/.."] {
            let error = read(Path::new(path), 10).unwrap_err().to_string();
            assert!(!error.is_empty(), "{path}: {error}");
        }
        let error = read(Path::new("/dev/zero"), 10).unwrap_err().to_string();
        assert_eq!(error, "it is not a regular file");
        let this = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let error = read(&this, 10).unwrap_err().to_string();
        assert!(
            error.starts_with("it may have at most 10 bytes, got "),
            "{error}"
        );
        assert!(read_text(&this, 1 << 20).unwrap().contains("[package]"));
    }
}
