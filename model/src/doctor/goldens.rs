//! Tiny models and the logits that `transformers` computed for them: a device that reproduces
//! these logits runs the whole model correctly.

use std::path::{Path, PathBuf};

use hearth_forward::{
    ForwardBatch, ForwardError, ForwardOutput, SampleParams, SampleRequest, SequenceSpan,
};
use safetensors::SafeTensors;

use crate::checkpoint::{Checkpoint, LoadFormat};
use crate::decoder::Decoder;
use crate::device::DeviceSpec;
use crate::dtype::Dtype;
use crate::load_options::LoadOptions;
use crate::runner;

/// Largest absolute difference of a logit in f32.
const TOLERANCE: f32 = 1e-3;

/// How far the logits of one model differ.
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

/// Lists the directories in `root` with a checkpoint and its `golden.safetensors`.
///
/// # Errors
/// `root` cannot be read, or it has no such directory.
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

/// Runs the checkpoint in `directory` on `device`: its golden prompt in one forward pass, then
/// the golden decode tokens one by one.
///
/// # Errors
/// A file is missing or malformed, the model does not load, or a forward pass fails.
pub fn golden_logits(directory: &Path, device: DeviceSpec) -> Result<GoldenFinding, GoldenError> {
    let golden = Golden::read(&directory.join("golden.safetensors"))?;
    let path = directory
        .to_str()
        .ok_or_else(|| error(directory, "not in UTF-8"))?;
    let checkpoint =
        Checkpoint::open(path, LoadFormat::Safetensors).map_err(|cause| error(directory, cause))?;
    let slots = golden.prompt.len() + golden.decode_tokens.len();
    let options = LoadOptions {
        device,
        dtype: Some(Dtype::F32),
        kv_tokens: Some(slots),
        max_model_len: Some(slots),
        ..LoadOptions::default()
    };
    let mut decoder =
        runner::load(&checkpoint, &options).map_err(|cause| error(directory, cause))?;
    let mut output =
        feed(decoder.as_mut(), &golden.prompt, 0).map_err(|cause| error(directory, cause))?;
    for (step, token) in golden.decode_tokens.iter().enumerate() {
        let past = golden.prompt.len() + step;
        let more =
            feed(decoder.as_mut(), &[*token], past).map_err(|cause| error(directory, cause))?;
        output.logits.extend(more.logits);
        output.sampled.extend(more.sampled);
    }
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    Ok(GoldenFinding {
        name: name.into_owned(),
        error: match !decoder.samples_on_device()
            || sampled_are_likeliest(&output, decoder.report().vocab_size)
        {
            true => largest_difference(&output.logits, &golden.logits),
            false => f32::INFINITY,
        },
        tolerance: TOLERANCE,
    })
}

/// Infinite if a value is NaN, or if there are too few or too many values.
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

/// True if the tokens that the device sampled greedily have the largest logits.
fn sampled_are_likeliest(output: &ForwardOutput, vocab: usize) -> bool {
    let rows = output.logits.chunks_exact(vocab);
    let sampled = output.sampled.iter();
    rows.len() == sampled.len()
        && rows.zip(sampled).all(|(row, token)| {
            let sampled = token.and_then(|token| row.get(token as usize));
            sampled.is_some_and(|sampled| row.iter().all(|logit| logit <= sampled))
        })
}

/// Computes `tokens` after `past` positions. Returns the logits of all of them, and the greedily
/// sampled tokens where the device samples.
fn feed(
    decoder: &mut dyn Decoder,
    tokens: &[u32],
    past: usize,
) -> Result<ForwardOutput, ForwardError> {
    let context = (past + tokens.len()) as u32;
    // Slots in descending order, so that an index mistaken for a position shows.
    let last = decoder.report().kv_slots as u32 - 1;
    let slots: Vec<u32> = (0..context).map(|position| last - position).collect();
    let rows: Vec<u32> = (0..tokens.len() as u32).collect();
    let batch = ForwardBatch {
        tokens: tokens.to_vec(),
        positions: (past as u32..context).collect(),
        write_slots: slots[past..].to_vec(),
        sequences: vec![SequenceSpan {
            tokens: tokens.len() as u32,
            context,
            first_slot: 0,
        }],
        slot_table: slots,
        sample_rows: match decoder.samples_on_device() {
            true => rows.clone(),
            false => Vec::new(),
        },
        logit_rows: rows,
        ..ForwardBatch::default()
    };
    let greedy = SampleRequest::Token(SampleParams::GREEDY);
    decoder.forward(&batch, &mut || {
        vec![greedy.clone(); batch.sample_rows.len()]
    })
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
        let likeliest = |sampled: Vec<Option<u32>>| {
            let output = ForwardOutput {
                logits: vec![0.0, 2.0, 1.0, 3.0, -1.0, 3.0],
                sampled,
                ..ForwardOutput::default()
            };
            sampled_are_likeliest(&output, 3)
        };
        assert!(likeliest(vec![Some(1), Some(0)]));
        for wrong in [
            vec![Some(1), Some(1)],
            vec![Some(1)],
            vec![Some(1), None],
            vec![Some(1), Some(3)],
        ] {
            assert!(!likeliest(wrong.clone()), "{wrong:?}");
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
