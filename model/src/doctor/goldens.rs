//! Tiny models and the logits that `transformers` gave for them: a device that gets these
//! right runs the whole model right.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;

use crate::checkpoint::{Checkpoint, LoadFormat};
use crate::device::DeviceSpec;
use crate::dtype::Dtype;
use crate::runner::{self, Batch, Choice, Decoder, LoadOptions, Outputs, SequenceSpan, Wish};

/// Largest absolute difference of a logit in f32.
const TOLERANCE: f32 = 1e-3;

/// How far one model is off.
#[derive(Debug, Clone)]
pub struct GoldenFinding {
    pub name: String,
    /// Largest absolute difference of a logit.
    pub error: f32,
    pub tolerance: f32,
}

impl GoldenFinding {
    pub fn is_right(&self) -> bool {
        self.error <= self.tolerance
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct GoldenError {
    path: PathBuf,
    reason: String,
}

fn error(path: &Path, reason: impl ToString) -> GoldenError {
    GoldenError {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

/// The directories in `root` that have a checkpoint and its `golden.safetensors`.
///
/// # Errors
/// `root` cannot be read, or has none.
pub fn golden_directories(root: &Path) -> Result<Vec<PathBuf>, GoldenError> {
    let entries = std::fs::read_dir(root).map_err(|cause| error(root, cause))?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("golden.safetensors").exists())
        .collect();
    found.sort();
    match found.is_empty() {
        true => Err(error(root, "no directory in it has a golden.safetensors")),
        false => Ok(found),
    }
}

/// Runs the checkpoint in `directory` on `device`: its golden prompt at once, then token by
/// token.
///
/// # Errors
/// A file is missing or malformed, the model does not load, or a forward fails.
pub fn golden_logits(directory: &Path, device: DeviceSpec) -> Result<GoldenFinding, GoldenError> {
    let failed = |cause: String| error(directory, cause);
    let golden = Golden::read(&directory.join("golden.safetensors"))?;
    let path = directory
        .to_str()
        .ok_or_else(|| error(directory, "not in UTF-8"))?;
    let checkpoint = Checkpoint::open(path, LoadFormat::Safetensors)
        .map_err(|cause| failed(cause.to_string()))?;
    let slots = golden.prompt.len() + golden.decode_tokens.len();
    let options = LoadOptions {
        device,
        dtype: Some(Dtype::F32),
        kv_tokens: Some(slots),
        max_model_len: Some(slots),
        ..LoadOptions::default()
    };
    let mut decoder =
        runner::load(&checkpoint, &options).map_err(|cause| failed(cause.to_string()))?;
    let mut outputs = feed(decoder.as_mut(), &golden.prompt, 0).map_err(failed)?;
    for (step, token) in golden.decode_tokens.iter().enumerate() {
        let past = golden.prompt.len() + step;
        let more = feed(decoder.as_mut(), &[*token], past).map_err(failed)?;
        outputs.logits.extend(more.logits);
        outputs.chosen.extend(more.chosen);
    }
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    Ok(GoldenFinding {
        name: name.into_owned(),
        error: match !decoder.chooses()
            || likeliest_are_chosen(&outputs, decoder.report().vocab_size)
        {
            true => largest_difference(&outputs.logits, &golden.logits),
            false => f32::INFINITY,
        },
        tolerance: TOLERANCE,
    })
}

/// Infinite where a value is none, or there are too few or too many.
fn largest_difference(got: &[f32], want: &[f32]) -> f32 {
    if got.len() != want.len() {
        return f32::INFINITY;
    }
    let off = got.iter().zip(want).map(|(got, want)| (got - want).abs());
    off.fold(0.0, |worst, off| {
        if off <= worst {
            worst
        } else if off.is_nan() {
            f32::INFINITY
        } else {
            off
        }
    })
}

/// Whether the tokens that the device chose are those of the largest logits.
fn likeliest_are_chosen(outputs: &Outputs, vocab: usize) -> bool {
    let rows = outputs.logits.chunks_exact(vocab);
    let chosen = outputs.chosen.iter();
    rows.len() == chosen.len()
        && rows.zip(chosen).all(|(row, chosen)| {
            let chosen = chosen.and_then(|token| row.get(token as usize));
            chosen.is_some_and(|chosen| row.iter().all(|logit| logit <= chosen))
        })
}

/// Feeds `tokens` after `past` positions; logits of all of them, and what is likeliest where the
/// device tells.
fn feed(decoder: &mut dyn Decoder, tokens: &[u32], past: usize) -> Result<Outputs, String> {
    let context = (past + tokens.len()) as u32;
    let positions: Vec<u32> = (past as u32..context).collect();
    // Backwards, so that an index mistaken for a position shows.
    let last = decoder.report().kv_slots as u32 - 1;
    let slots: Vec<u32> = (0..context).map(|position| last - position).collect();
    let rows: Vec<u32> = (0..tokens.len() as u32).collect();
    let span = SequenceSpan {
        first_token: 0,
        tokens: tokens.len() as u32,
        context,
        first_slot: 0,
    };
    let choice_rows = if decoder.chooses() { &rows[..] } else { &[] };
    let likeliest = || choice_rows.iter().map(|_| Wish::Token(Choice::GREEDY));
    let batch = Batch {
        tokens,
        carried: &[],
        positions: &positions,
        write_slots: &slots[past..],
        sequences: &[span],
        slot_table: &slots,
        logit_rows: &rows,
        hidden_rows: &[],
        choice_rows,
    };
    let outputs = decoder.forward(&batch, &mut || likeliest().collect());
    outputs.map_err(|cause| cause.to_string())
}

struct Golden {
    prompt: Vec<u32>,
    decode_tokens: Vec<u32>,
    /// `[prompt + decode_tokens, vocab]`
    logits: Vec<f32>,
}

impl Golden {
    fn read(path: &Path) -> Result<Self, GoldenError> {
        let bytes = std::fs::read(path).map_err(|cause| error(path, cause))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|cause| error(path, cause))?;
        let words = |name: &str| -> Result<Vec<[u8; 4]>, GoldenError> {
            let tensor = file.tensor(name).map_err(|cause| error(path, cause))?;
            Ok(tensor.data().as_chunks::<4>().0.to_vec())
        };
        let ids = |name: &str| -> Result<Vec<u32>, GoldenError> {
            Ok(words(name)?.into_iter().map(u32::from_le_bytes).collect())
        };
        let mut logits = words("prefill_logits")?;
        logits.extend(words("decode_logits")?);
        Ok(Self {
            prompt: ids("prompt")?,
            decode_tokens: ids("decode_tokens")?,
            logits: logits.into_iter().map(f32::from_le_bytes).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_gets_every_golden_right() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens");
        let directories = golden_directories(&root).unwrap();
        assert!(directories.len() >= 10, "{directories:?}");
        for directory in directories {
            let finding = golden_logits(&directory, DeviceSpec::parse("cpu").unwrap()).unwrap();
            assert!(finding.is_right(), "{finding:?}");
        }
    }

    #[test]
    fn a_token_that_is_not_the_likeliest_is_seen() {
        let chosen = |chosen: Vec<Option<u32>>| {
            let outputs = Outputs {
                logits: vec![0.0, 2.0, 1.0, 3.0, -1.0, 3.0],
                chosen,
                ..Outputs::default()
            };
            likeliest_are_chosen(&outputs, 3)
        };
        assert!(chosen(vec![Some(1), Some(0)]));
        for wrong in [
            vec![Some(1), Some(1)],
            vec![Some(1)],
            vec![Some(1), None],
            vec![Some(1), Some(3)],
        ] {
            assert!(!chosen(wrong.clone()), "{wrong:?}");
        }
    }

    #[test]
    fn a_wrong_logit_a_missing_one_and_none_at_all_are_seen() {
        assert_eq!(largest_difference(&[1.0, 2.5], &[1.0, 2.0]), 0.5);
        assert_eq!(largest_difference(&[1.0], &[1.0, 2.0]), f32::INFINITY);
        assert_eq!(
            largest_difference(&[f32::NAN, 2.0], &[1.0, 2.0]),
            f32::INFINITY
        );
        let missing = golden_directories(Path::new("/nonexistent")).unwrap_err();
        assert!(
            missing.to_string().starts_with("/nonexistent: "),
            "{missing}"
        );
    }
}
