//! Damaged files: opening a file with random changes and cuts and reading all its tensors gives
//! numbers or an error, and never a panic.

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};

use hearth_shaders::BlockMatrix;

use super::*;
use crate::checkpoint::{Checkpoint, LoadFormat};

#[path = "../../../tests/fuzz/mutate.rs"]
pub(crate) mod mutate;

pub(crate) use mutate::{Random, bytes as damage, cases};

/// Damaged copies of each file, if no variable says otherwise.
pub(crate) const CASES: u64 = 1500;

/// Opens damaged copies of `whole` as `file`, and counts those that open and those whose
/// tensors can all be read.
fn fuzz(name: &str, whole: &[u8], file: &str, open: impl Fn(&Path) -> Option<Checkpoint>) {
    let dir = std::env::temp_dir().join(format!("hearth-fuzz-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    let (mut count, mut opened, mut read) = (0, 0, 0);
    for case in cases(CASES) {
        let mut bytes = whole.to_vec();
        damage(&mut bytes, &mut Random(case));
        fs::write(dir.join(file), &bytes).unwrap();
        count += 1;
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let Some(checkpoint) = open(&dir) else {
                return (0, 0);
            };
            let tensors = checkpoint.config.tensors();
            let whole = tensors.iter().all(|(name, shape)| {
                let view = checkpoint.weights.get(name, shape);
                view.is_ok_and(|view| {
                    pack(&view);
                    view.to_dtype(Dtype::Bf16).len() == 2 * view.len()
                })
            });
            (1, u64::from(whole))
        }));
        match result {
            Ok((o, r)) => (opened, read) = (opened + o, read + r),
            Err(_) => panic!("{name}: case {case} panics"),
        }
    }
    println!("{name}: {count} damaged files, {opened} opened, {read} had all tensors");
    assert!(
        opened > 0 && read > 0 && opened < count,
        "{name}: damage was not varied"
    );
    let _ = fs::remove_dir_all(&dir);
}

/// Packs a matrix that is in blocks, as it is done for serving.
fn pack(view: &TensorView<'_>) {
    if let (Format::Blocks(format), [rows, columns]) = (&view.format, view.shape.as_slice()) {
        let mut matrix = BlockMatrix::zeros(&[(*format, *rows)], *columns);
        let set = matrix.set_rows(0..*rows, |row| Some(Cow::Borrowed(view.row_bytes(row))));
        assert_eq!(set, Ok(()));
    }
}

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens")
}

#[test]
fn a_damaged_gguf_file_is_an_error_and_nothing_worse() {
    for name in ["mixed", "blocks", "qwen3"] {
        let whole = fs::read(goldens().join(format!("gguf/{name}.gguf"))).unwrap();
        fuzz(&format!("gguf-{name}"), &whole, "model.gguf", |dir| {
            Checkpoint::open_gguf(&dir.join("model.gguf"), LoadFormat::Safetensors).ok()
        });
    }
}

#[test]
fn a_damaged_safetensors_file_is_an_error_and_nothing_worse() {
    for name in ["qwen3", "gpt-oss-mxfp4"] {
        let from = goldens().join(name);
        let whole = fs::read(from.join(SINGLE)).unwrap();
        let config = fs::read(from.join("config.json")).unwrap();
        fuzz(name, &whole, SINGLE, |dir| {
            fs::write(dir.join("config.json"), &config).unwrap();
            Checkpoint::open_dir(dir, LoadFormat::Safetensors).ok()
        });
    }
}

#[test]
fn a_damaged_quantized_checkpoint_is_an_error_and_nothing_worse() {
    for entry in fs::read_dir(goldens().join("quantised")).unwrap() {
        let from = entry.unwrap().path();
        let name = from.file_name().unwrap().to_string_lossy().into_owned();
        let whole = fs::read(from.join(SINGLE)).unwrap();
        fuzz(&format!("quantised-{name}"), &whole, SINGLE, |dir| {
            for file in ["config.json", "quantize_config.json"] {
                if let Ok(text) = fs::read(from.join(file)) {
                    fs::write(dir.join(file), text).unwrap();
                }
            }
            Checkpoint::open_dir(dir, LoadFormat::Safetensors).ok()
        });
    }
}

#[test]
fn a_damaged_quantization_config_is_an_error_and_nothing_worse() {
    for entry in fs::read_dir(goldens().join("quantised")).unwrap() {
        let from = entry.unwrap().path();
        let name = from.file_name().unwrap().to_string_lossy().into_owned();
        let whole = fs::read(from.join("config.json")).unwrap();
        let weights = fs::read(from.join(SINGLE)).unwrap();
        fuzz(
            &format!("quantization-config-{name}"),
            &whole,
            "config.json",
            |dir| {
                if !dir.join(SINGLE).exists() {
                    fs::write(dir.join(SINGLE), &weights).unwrap();
                    if let Ok(text) = fs::read(from.join("quantize_config.json")) {
                        fs::write(dir.join("quantize_config.json"), text).unwrap();
                    }
                }
                Checkpoint::open_dir(dir, LoadFormat::Safetensors).ok()
            },
        );
    }
}
