//! Models in several files, as `llama-gguf-split` writes them. The first file has the metadata; every
//! file has some of the tensors.

use std::path::{Path, PathBuf};

/// The key of the number of files.
pub const COUNT: &str = "split.count";
/// The key of the index of a file.
pub(super) const NUMBER: &str = "split.no";
/// Digits of a number in a file's name.
const DIGITS: usize = 5;

/// The files of a split model.
#[derive(Debug, PartialEq)]
pub struct SplitFiles {
    /// The name that the files share.
    pub name: String,
    /// The paths of all files in their order.
    pub paths: Vec<PathBuf>,
}

impl SplitFiles {
    /// The files beside `path`, which is one of `count` files named `NAME-00001-of-00003.gguf` and so
    /// on; `None` if it has another name.
    pub fn of(path: &Path, count: u64) -> Option<Self> {
        let number = |digits: &str| -> Option<u64> {
            let valid = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|_| valid)
        };
        let (rest, all) = path.file_stem()?.to_str()?.rsplit_once("-of-")?;
        let (name, this) = rest.rsplit_once('-')?;
        let (all, this) = (number(all)?, number(this)?);
        if all != count || !(1..=count).contains(&this) {
            return None;
        }
        let extension = path.extension()?.to_str()?;
        let file = |part| format!("{name}-{part:0DIGITS$}-of-{all:0DIGITS$}.{extension}");
        Some(Self {
            name: name.to_owned(),
            paths: (1..=count)
                .map(|part| path.with_file_name(file(part)))
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_any_part_leads_to_all_parts() {
        for part in ["a/b-00001-of-00002.gguf", "a/b-00002-of-00002.gguf"] {
            let files = SplitFiles::of(Path::new(part), 2).unwrap();
            assert_eq!(files.name, "b");
            let paths = ["a/b-00001-of-00002.gguf", "a/b-00002-of-00002.gguf"];
            assert_eq!(files.paths, paths.map(PathBuf::from));
        }
        for other in [
            "b.gguf",
            "b-00001-of-00003.gguf",
            "b-00003-of-00002.gguf",
            "b-00000-of-00002.gguf",
            "b-1-of-2.gguf",
            "b-+0001-of-00002.gguf",
            "00001-of-00002.gguf",
            "b-00001-of-00002",
        ] {
            assert_eq!(SplitFiles::of(Path::new(other), 2), None, "{other}");
        }
    }
}
