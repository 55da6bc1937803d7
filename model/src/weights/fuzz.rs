//! Damaged files: opening a file with random changes and cuts and reading all its tensors gives
//! numbers or an error, and never a panic.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hearth_shaders::BlockMatrix;

use super::*;
use crate::checkpoint::{Checkpoint, LoadFormat};

/// Seconds for each kind of file, instead of [`CASES`].
pub(crate) const SECONDS: &str = "HEARTH_FUZZ_SECONDS";
pub(crate) const CASES: u64 = 1500;

/// SplitMix64.
pub(crate) struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Makes up to four changes, most of them near the front, where the header is.
pub(crate) fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    const WORDS: [u64; 8] = [
        0,
        1,
        u64::MAX,
        i64::MAX as u64,
        1 << 32,
        u32::MAX as u64,
        1 << 62,
        255,
    ];
    for _ in 0..=random.below(4) {
        let reach = match random.below(4) {
            0 => 64,
            1 => 2048,
            2 => 16384,
            _ => bytes.len(),
        };
        let at = random.below(reach.min(bytes.len()));
        match random.below(7) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 | 3 => {
                let word = WORDS[random.below(WORDS.len())].to_le_bytes();
                let width = [1, 4, 8][random.below(3)].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&word[..width]);
            }
            4 => {
                let (from, width) = (random.below(reach.min(bytes.len())), random.below(64));
                let piece: Vec<u8> = bytes.iter().skip(from).take(width).copied().collect();
                let end = (at + piece.len()).min(bytes.len());
                bytes[at..end].copy_from_slice(&piece[..end - at]);
            }
            5 => {
                let end = (at + random.below(64)).min(bytes.len());
                bytes.drain(at..end);
            }
            _ => {
                // Rarely, because a short file has little left that can be wrong.
                if random.below(4) == 0 {
                    bytes.truncate(at);
                }
            }
        }
        if bytes.is_empty() {
            return;
        }
    }
}

/// Opens damaged copies of `whole` as `file`, and counts those that open and those whose
/// tensors can all be read.
fn fuzz(name: &str, whole: &[u8], file: &str, open: impl Fn(&Path) -> Option<Checkpoint>) {
    let dir = std::env::temp_dir().join(format!("hearth-fuzz-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    let until = std::env::var(SECONDS).ok().map(|seconds| {
        Instant::now() + Duration::from_secs(seconds.parse().expect("a number of seconds"))
    });
    let (mut cases, mut opened, mut read) = (0, 0, 0);
    while until.map_or(cases < CASES, |until| Instant::now() < until) {
        let mut bytes = whole.to_vec();
        // A panic's message has the seed, from which the cases are counted.
        let mut random = Random(cases);
        damage(&mut bytes, &mut random);
        fs::write(dir.join(file), &bytes).unwrap();
        cases += 1;
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
            Err(_) => panic!("{name}: case {} panics", cases - 1),
        }
    }
    println!("{name}: {cases} damaged files, {opened} opened, {read} had all tensors");
    assert!(
        opened > 0 && read > 0 && opened < cases,
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
    let from = goldens().join("qwen3");
    let whole = fs::read(from.join(SINGLE)).unwrap();
    let config = fs::read(from.join("config.json")).unwrap();
    fuzz("safetensors", &whole, SINGLE, |dir| {
        fs::write(dir.join("config.json"), &config).unwrap();
        Checkpoint::open_dir(dir, LoadFormat::Safetensors).ok()
    });
}
