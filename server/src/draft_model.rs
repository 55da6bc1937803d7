//! The draft model of speculative decoding: opened with the model, and loaded after it, because
//! only then is it known whether the device drafts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use anyhow::{Context, Result, anyhow, bail, ensure};
use hearth_api::served::DraftModelInfo;
use hearth_engine::{BuildDraftModel, BuildError};
use hearth_model::checkpoint::Checkpoint;
use hearth_model::device::DeviceSpec;
use hearth_model::tokenizer::Tokenizer;
use hearth_model::{LoadOptions, Report};

use crate::config::Config;
use crate::executor::ModelExecutor;
use crate::load_formats::{formats_to_load, load_format};

/// A draft model that fits the model, and is not loaded yet.
pub struct DraftCheckpoint {
    checkpoint: Checkpoint,
    /// As the configuration names it.
    path: String,
}

impl DraftCheckpoint {
    /// Opens the draft model that the configuration names, if it names one, and compares its
    /// vocabulary with that of the model, `target`.
    ///
    /// # Errors
    /// A missing or malformed file, an unsupported architecture, or another vocabulary.
    pub fn open(config: &Config, target: &Checkpoint) -> Result<Option<Self>> {
        let Some(path) = config.drafting()?.and_then(|drafting| drafting.model) else {
            return Ok(None);
        };
        let checkpoint = Checkpoint::open(&path, load_format(config))
            .with_context(|| format!("cannot open the draft model {path}"))?;
        let [own, wanted] = [&checkpoint, target].map(|checkpoint| checkpoint.config.vocab_size);
        ensure!(
            own == wanted,
            "the draft model {path} has a vocabulary of {own} tokens, and the model {} one of \
             {wanted}: they must be the same",
            target.name,
        );
        if let (Some(own), Some(wanted)) = (&checkpoint.tokenizer, &target.tokenizer) {
            compare(own, wanted, larger_size(own, wanted)).with_context(|| {
                format!(
                    "the draft model {path} has another vocabulary than {}",
                    target.name
                )
            })?;
        }
        Ok(Some(Self { checkpoint, path }))
    }

    /// Returns the function that loads the draft model, on the thread that uses it, and reports
    /// its size. `taken` are the bytes of the model's KV pool, of which much is not in use yet.
    pub fn builder(
        self,
        config: Config,
        taken: Arc<AtomicU64>,
        report: Sender<DraftModelInfo>,
    ) -> BuildDraftModel {
        Box::new(move |limits| {
            let options = LoadOptions {
                // Devices that sample by themselves have no draft model.
                device: DeviceSpec::parse("cpu").map_err(BuildError::new)?,
                // Each sequence of the model may be one of the draft model.
                kv_tokens: Some(limits.kv_slots),
                ..formats_to_load(&config)
            };
            let executor = self.load(&options).map_err(|error| {
                BuildError::new(format!("cannot load the draft model: {error:#}"))
            })?;
            let headroom = executor.report().headroom_bytes;
            let taken = taken.load(Ordering::Relaxed);
            if headroom.is_some_and(|headroom| headroom < taken) {
                return Err(BuildError::new(format!(
                    "the draft model {} leaves {} MiB of memory to the model's KV cache, which \
                     needs {} MiB: a smaller --kv-tokens may fit",
                    self.path,
                    headroom.unwrap_or_default() >> 20,
                    taken >> 20,
                )));
            }
            // The receiver waits for this, so sending does not fail.
            let _ = report.send(self.info(executor.report()));
            Ok(Box::new(executor))
        })
    }

    fn load(&self, options: &LoadOptions) -> Result<ModelExecutor> {
        let decoder = hearth_model::load(&self.checkpoint, options)
            .with_context(|| self.checkpoint.name.clone())?;
        let reload = |_: &Report| Err(anyhow!("the CPU is never lost"));
        let mut executor = ModelExecutor::new(decoder, None, Box::new(reload));
        executor.warm_up().context("the first forward failed")?;
        Ok(executor)
    }

    fn info(&self, report: &Report) -> DraftModelInfo {
        DraftModelInfo {
            model_path: self.path.clone(),
            architecture: report.architecture.clone(),
            parameters: report.parameters,
            dtype: report.dtype.to_string(),
            quantization: report.quantization.clone(),
            kv_cache_dtype: report.kv_dtype.clone(),
            weight_bytes: report.weight_bytes,
            kv_bytes: report.kv_bytes,
        }
    }
}

/// One more than the largest id of either tokenizer.
fn larger_size(a: &Tokenizer, b: &Tokenizer) -> u32 {
    u32::try_from(a.vocab_size().max(b.vocab_size())).unwrap_or(u32::MAX)
}

/// Checks that each of the tokens below `end` is the same for both tokenizers.
fn compare(draft: &Tokenizer, model: &Tokenizer, end: u32) -> Result<()> {
    for id in 0..end {
        let [own, wanted] = [draft, model].map(|tokenizer| tokenizer.id_to_token(id));
        if own != wanted {
            let text =
                |token: Option<String>| token.map_or("none".to_owned(), |t| format!("{t:?}"));
            bail!(
                "token {id} is {} there and {} here",
                text(own),
                text(wanted)
            );
        }
    }
    Ok(())
}
