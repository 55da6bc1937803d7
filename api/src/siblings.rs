//! The four dialects never import each other.

use std::fs;
use std::path::Path;

const DIALECTS: [&str; 4] = ["anthropic", "ollama", "openai", "sglang"];

#[test]
fn no_dialect_names_another() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut read = 0;
    for dialect in DIALECTS {
        for (file, source) in sources(&src.join(dialect)) {
            read += 1;
            for other in DIALECTS.iter().filter(|&&other| other != dialect) {
                let other = format!("{other}::");
                let line = source.lines().find(|line| line.contains(&other));
                assert_eq!(line, None, "{file} names another dialect");
            }
        }
    }
    assert!(read > 30, "only {read} files were read");
}

/// Every Rust file in `folder` and the folders in it, with its text.
fn sources(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let source = fs::read_to_string(&path).unwrap();
            found.push((path.display().to_string(), source));
        }
    }
    found
}
