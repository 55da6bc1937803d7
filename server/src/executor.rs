//! Opens the device, warms the model up, and opens a lost device again.
//!
//! For everything else, the engine calls the model's own [`Decoder`].

#[cfg(test)]
mod sampler_agreement;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hearth_forward::{
    Adapter, Executor, ExecutorLimits, ForwardBatch, ForwardError, ForwardOutput, KvCopy,
    SampleRequests, SequenceSpan, WindowLimits,
};
use hearth_model::progress::Progress;
use hearth_model::{Decoder, Report, Submission};

use crate::warmup::{self, Sizes};

/// Opens the device and loads the model that the report describes.
pub type Reload = Box<dyn FnMut(&Report) -> anyhow::Result<Box<dyn Decoder>>>;

/// A model that survives the loss of its device.
pub struct ModelExecutor {
    /// `None` while the device is lost and closed.
    decoder: Option<Box<dyn Decoder>>,
    report: Report,
    samples_on_device: bool,
    adapter_slots: usize,
    table_slots: usize,
    kv_token_bytes: usize,
    reload: Reload,
    /// The sizes of the forward passes that warm a GPU up. `None` on the CPU, whose kernels are
    /// compiled already.
    sizes: Option<Sizes>,
    lost: Arc<AtomicBool>,
}

impl ModelExecutor {
    /// `reload` is called with the report of the lost model when its device is lost.
    pub fn new(decoder: Box<dyn Decoder>, sizes: Option<Sizes>, reload: Reload) -> Self {
        Self {
            report: decoder.report().clone(),
            samples_on_device: decoder.samples_on_device(),
            kv_token_bytes: decoder.kv_token_bytes(),
            adapter_slots: decoder.adapter_slots(),
            table_slots: decoder.table_slots(),
            decoder: Some(decoder),
            reload,
            sizes,
            lost: Arc::default(),
        }
    }

    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Is set while the device is lost and nothing is computed.
    pub fn lost(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.lost)
    }

    /// Runs one forward pass of one token, so that kernels are compiled and pages are touched
    /// before the first client waits for them; on a GPU also one of every size class, and people are
    /// told how far it is. The values that this leaves in slots do not matter, because
    /// a request writes its slots before it reads them.
    ///
    /// # Errors
    /// A forward pass fails, so this model cannot serve.
    pub fn warm_up(&mut self) -> Result<(), ForwardError> {
        let batch = ForwardBatch {
            tokens: vec![0],
            positions: vec![0],
            write_slots: vec![0],
            sequences: vec![SequenceSpan {
                tokens: 1,
                context: 1,
                first_slot: 0,
            }],
            slot_table: vec![0],
            logit_rows: vec![0],
            ..ForwardBatch::default()
        };
        self.run(batch.clone())?;
        if self.adapter_slots > 0 {
            // The slots are empty, but the kernels of adapters do not depend on that. The first one has
            // tables if one does.
            self.run(ForwardBatch {
                adapters: vec![1],
                ..batch.clone()
            })?;
        }
        if self.table_slots > 0 && self.report.kv_slots > 1 {
            // Rows with a table of their own beside one of the base model.
            let mut both = batch;
            both.adapters = vec![0, 1];
            both.tokens.push(0);
            both.positions.push(0);
            both.write_slots.push(1);
            both.slot_table.push(1);
            both.logit_rows.push(1);
            both.sequences.push(SequenceSpan {
                tokens: 1,
                context: 1,
                first_slot: 1,
            });
            self.run(both)?;
        }
        match self.sizes {
            Some(sizes) => self.warm_up_all(sizes),
            None => Ok(()),
        }
    }

    /// Runs a batch, with window slots if the model has any.
    fn run(&mut self, batch: ForwardBatch) -> Result<(), ForwardError> {
        let batch = warmup::with_window(batch, self.window());
        self.forward(&batch, &mut Vec::new).map(drop)
    }

    fn warm_up_all(&mut self, sizes: Sizes) -> Result<(), ForwardError> {
        let started = Instant::now();
        let progress = Progress::begin("warming up");
        warmup::warm_up(self, sizes, |done, of| progress.at(done, of, ""))?;
        drop(progress);
        tracing::info!(
            took_ms = started.elapsed().as_millis() as u64,
            reserved_mib = self.reserved_bytes().map(|bytes| bytes >> 20),
            "warm"
        );
        Ok(())
    }

    /// Bytes that a GPU's memory pool has reserved.
    fn reserved_bytes(&self) -> Option<u64> {
        self.decoder.as_ref()?.reserved_bytes()
    }
}

/// Runs `work` with the model. After a failure that the batch did not cause, the device is asked
/// whether it still computes; if it does not, `lost` is set.
fn watched<T>(
    decoder: &mut Option<Box<dyn Decoder>>,
    lost: &AtomicBool,
    work: impl FnOnce(&mut dyn Decoder) -> Result<T, ForwardError>,
) -> Result<T, ForwardError> {
    let Some(decoder) = decoder else {
        return Err(ForwardError::other("the device is lost"));
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| work(decoder.as_mut())));
    let suspect = matches!(&outcome, Err(_) | Ok(Err(ForwardError::Device(_))));
    if suspect && !lost.load(Ordering::Relaxed) && !decoder.is_alive() {
        lost.store(true, Ordering::Relaxed);
        let device = &decoder.report().device;
        tracing::error!(device, "the device is lost; it will be opened again");
    }
    outcome.unwrap_or_else(|panic| resume_unwind(panic))
}

impl Executor for ModelExecutor {
    type Submission = Submission;

    fn limits(&self) -> ExecutorLimits {
        ExecutorLimits {
            kv_slots: self.report.kv_slots,
            max_model_len: self.report.max_model_len,
            vocab_size: self.report.vocab_size,
        }
    }

    fn submit(
        &mut self,
        batch: &ForwardBatch,
        sample_requests: &mut SampleRequests<'_>,
    ) -> Result<Submission, ForwardError> {
        watched(&mut self.decoder, &self.lost, |decoder| {
            decoder.submit(batch, sample_requests)
        })
    }

    fn complete(&mut self, submission: Submission) -> Result<ForwardOutput, ForwardError> {
        watched(&mut self.decoder, &self.lost, |decoder| {
            decoder.complete(submission)
        })
    }

    fn samples_on_device(&self) -> bool {
        self.samples_on_device
    }

    fn window(&self) -> Option<WindowLimits> {
        self.report.window
    }

    fn host_slots(&self) -> usize {
        self.report.host_slots
    }

    fn copy_kv(&mut self, copy: &KvCopy) -> Result<(), ForwardError> {
        watched(&mut self.decoder, &self.lost, |decoder| {
            decoder.copy_kv(copy)
        })
    }

    fn kv_token_bytes(&self) -> usize {
        self.kv_token_bytes
    }

    fn read_kv(&mut self, slots: &[u32]) -> Result<Vec<u8>, ForwardError> {
        watched(&mut self.decoder, &self.lost, |decoder| {
            decoder.read_kv(slots)
        })
    }

    fn write_kv(&mut self, slots: &[u32], bytes: &[u8]) -> Result<(), ForwardError> {
        watched(&mut self.decoder, &self.lost, |decoder| {
            decoder.write_kv(slots, bytes)
        })
    }

    fn adapter_slots(&self) -> usize {
        self.adapter_slots
    }

    fn table_slots(&self) -> usize {
        self.table_slots
    }

    fn load_adapter(&mut self, slot: u32, adapter: &Adapter) -> Result<(), ForwardError> {
        watched(&mut self.decoder, &self.lost, |decoder| {
            decoder.load_adapter(slot, adapter)
        })
    }

    fn has_watchdog(&self) -> bool {
        !self.report.device.starts_with("cpu")
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    fn reopen(&mut self) -> Result<(), ForwardError> {
        if let Some(lost) = self.decoder.take() {
            // Its memory is freed first. A panic of the dead driver does not matter here.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(lost)));
        }
        let decoder = (self.reload)(&self.report)
            .map_err(|error| ForwardError::other(format!("{error:#}")))?;
        let sizes = |report: &Report| {
            let Report {
                kv_slots,
                window,
                host_slots,
                max_model_len,
                vocab_size,
                ..
            } = report;
            let window_slots = window.map_or(0, |window| window.slots);
            [
                *kv_slots,
                window_slots,
                *host_slots,
                *max_model_len,
                *vocab_size,
            ]
        };
        if sizes(decoder.report()) != sizes(&self.report) {
            return Err(ForwardError::other(
                "the model that was loaded has another size now",
            ));
        }
        self.decoder = Some(decoder);
        self.warm_up().inspect_err(|_| self.decoder = None)?;
        self.lost.store(false, Ordering::Relaxed);
        tracing::info!(device = self.report.device, "the device is open again");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_model::dtype::Dtype;

    /// A model whose forward passes all have the same outcome.
    struct Scripted {
        report: Report,
        outcome: fn() -> Result<ForwardOutput, ForwardError>,
        alive: bool,
    }

    impl Executor for Scripted {
        type Submission = Submission;

        fn limits(&self) -> ExecutorLimits {
            unreachable!("the report has the limits")
        }

        fn submit(
            &mut self,
            _: &ForwardBatch,
            _: &mut SampleRequests<'_>,
        ) -> Result<Submission, ForwardError> {
            Ok(Box::new(self.outcome))
        }

        fn complete(&mut self, submission: Submission) -> Result<ForwardOutput, ForwardError> {
            submission()
        }
    }

    impl Decoder for Scripted {
        fn report(&self) -> &Report {
            &self.report
        }

        fn reserved_bytes(&self) -> Option<u64> {
            None
        }

        fn is_alive(&mut self) -> bool {
            self.alive
        }
    }

    fn scripted(outcome: fn() -> Result<ForwardOutput, ForwardError>, alive: bool) -> Scripted {
        let report = Report {
            architecture: String::new(),
            parameters: 0,
            vocab_size: 1,
            hidden_size: 1,
            device: "vulkan:0".to_owned(),
            dtype: Dtype::F32,
            quantization: None,
            kv_dtype: "f32".to_owned(),
            kv_slots: 1,
            window: None,
            host_slots: 0,
            max_model_len: 1,
            weight_bytes: 0,
            kv_bytes: 0,
            headroom_bytes: None,
        };
        Scripted {
            report,
            outcome,
            alive,
        }
    }

    fn is_lost(outcome: fn() -> Result<ForwardOutput, ForwardError>, alive: bool) -> bool {
        let decoder = Box::new(scripted(outcome, alive));
        let mut executor = ModelExecutor::new(decoder, None, Box::new(|_| anyhow::bail!("no")));
        let lost = executor.lost();
        let failed = catch_unwind(AssertUnwindSafe(|| executor.warm_up().is_err()));
        assert!(failed.unwrap_or(true));
        lost.load(Ordering::Relaxed)
    }

    #[test]
    fn a_lost_device_is_opened_again_with_what_was_on_it() {
        let reset = || Err(ForwardError::Device("reset".to_owned()));
        let fine = || Ok(ForwardOutput::default());
        let mut attempts = 0;
        let reload = move |report: &Report| {
            attempts += 1;
            let mut decoder = scripted(fine, true);
            match attempts {
                1 => anyhow::bail!("no such device: {}", report.device),
                // The directory has another checkpoint now.
                2 => decoder.report.vocab_size = 2,
                // The device is lost again with the first forward pass.
                3 => decoder.outcome = reset,
                _ => {}
            }
            Ok(Box::new(decoder) as Box<dyn Decoder>)
        };
        let decoder = Box::new(scripted(reset, false));
        let mut executor = ModelExecutor::new(decoder, None, Box::new(reload));
        assert!(executor.warm_up().is_err() && executor.is_lost());
        for error in ["no such device: vulkan:0", "another size", "reset"] {
            let failed = executor.reopen().unwrap_err().to_string();
            assert!(failed.contains(error) && executor.is_lost(), "{failed}");
            assert!(executor.warm_up().is_err(), "it is closed");
        }
        executor.reopen().unwrap();
        assert!(!executor.is_lost());
        executor.warm_up().unwrap();
    }

    #[test]
    fn a_device_is_lost_when_it_fails_and_no_longer_computes() {
        let device = || Err(ForwardError::Device("reset".to_owned()));
        assert!(is_lost(device, false));
        assert!(!is_lost(device, true));
        let panics = || panic!("the driver panicked");
        assert!(is_lost(panics, false));
        assert!(!is_lost(panics, true));
        // An error in a batch says nothing about the device.
        let batch = || {
            Err(ForwardError::OutOfRange {
                what: "slot",
                value: 1,
                bound: 1,
            })
        };
        assert!(!is_lost(batch, false));
    }
}
