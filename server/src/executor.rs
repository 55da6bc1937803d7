//! Where the engine's [`Executor`] meets the model's [`Decoder`].
//!
//! Architecture invariant: no other file names both.

mod wish;

use std::io::{IsTerminal, stderr};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hearth_engine::{
    Choices, CopyDirection, Executor, ExecutorError, ExecutorLimits, ForwardBatch, KvCopy, Logits,
    Sequence,
};
use hearth_model::progress::counting_bar;
use hearth_model::runner::{Batch, CopyWay, Decoder, Flight, ForwardError, Report, SequenceSpan};

use crate::warmup::{self, Sizes};
use wish::wish;

/// Opens the device and loads the model that was on it.
pub type Reload = Box<dyn FnMut(&Report) -> anyhow::Result<Box<dyn Decoder>>>;

/// A model that the engine can drive.
pub struct ModelExecutor {
    /// `None` while the device is lost and closed.
    decoder: Option<Box<dyn Decoder>>,
    report: Report,
    chooses: bool,
    reload: Reload,
    /// Forwards that are run before any request's; none on the CPU, whose kernels are there.
    sizes: Option<Sizes>,
    spans: Vec<SequenceSpan>,
    lost: Arc<AtomicBool>,
}

impl ModelExecutor {
    /// `reload` is called when the device was lost, with what was on it.
    pub fn new(decoder: Box<dyn Decoder>, sizes: Option<Sizes>, reload: Reload) -> Self {
        Self {
            report: decoder.report().clone(),
            chooses: decoder.chooses(),
            decoder: Some(decoder),
            reload,
            sizes,
            spans: Vec::new(),
            lost: Arc::default(),
        }
    }

    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Set while the device is gone: nothing is computed.
    pub fn lost(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.lost)
    }

    /// One forward of one token, so that kernels are compiled and pages are touched
    /// before the first client waits for them, and on a GPU one of every size class, with a
    /// bar where somebody watches. Slots are rewritten by whoever gets them.
    ///
    /// # Errors
    /// A forward fails: this model will not serve anybody.
    pub fn warm_up(&mut self) -> Result<(), ExecutorError> {
        let batch = ForwardBatch {
            tokens: vec![0],
            carried: Vec::new(),
            positions: vec![0],
            write_slots: vec![0],
            sequences: vec![Sequence {
                first_token: 0,
                tokens: 1,
                context: 1,
                first_slot: 0,
            }],
            slot_table: vec![0],
            logit_rows: vec![0],
            hidden_rows: Vec::new(),
            choice_rows: Vec::new(),
        };
        self.forward(&batch, &mut Vec::new)?;
        match self.sizes {
            Some(sizes) => self.warm_up_all(sizes),
            None => Ok(()),
        }
    }

    fn warm_up_all(&mut self, sizes: Sizes) -> Result<(), ExecutorError> {
        let started = Instant::now();
        let bar = stderr().is_terminal().then(|| counting_bar("warming up"));
        warmup::warm_up(self, sizes, |done, of| {
            if let Some(bar) = &bar {
                bar.set_length(of as u64);
                bar.set_position(done as u64);
            }
        })?;
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        tracing::info!(
            took_ms = started.elapsed().as_millis() as u64,
            reserved_mib = self.reserved_bytes().map(|bytes| bytes >> 20),
            "warm"
        );
        Ok(())
    }

    /// Bytes that a GPU's memory pool has taken.
    fn reserved_bytes(&self) -> Option<u64> {
        self.decoder.as_ref()?.reserved_bytes()
    }
}

/// Does `work` with the model. After a failure that is not the batch's the device is asked
/// whether it still computes; if not, it is `lost`.
fn watched<T>(
    decoder: &mut Option<Box<dyn Decoder>>,
    lost: &AtomicBool,
    work: impl FnOnce(&mut dyn Decoder) -> Result<T, ForwardError>,
) -> Result<T, ExecutorError> {
    let Some(decoder) = decoder else {
        return Err(ExecutorError::new("the device is lost"));
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| work(decoder.as_mut())));
    let suspect = matches!(&outcome, Err(_) | Ok(Err(ForwardError::Device(_))));
    if suspect && !lost.load(Ordering::Relaxed) && !decoder.is_alive() {
        lost.store(true, Ordering::Relaxed);
        let device = &decoder.report().device;
        tracing::error!(device, "the device is lost; it will be opened again");
    }
    match outcome {
        Ok(outcome) => outcome.map_err(ExecutorError::new),
        Err(panic) => resume_unwind(panic),
    }
}

impl Executor for ModelExecutor {
    type Flight = Flight;

    fn limits(&self) -> ExecutorLimits {
        ExecutorLimits {
            kv_slots: self.report.kv_slots,
            max_model_len: self.report.max_model_len,
            vocab_size: self.report.vocab_size,
        }
    }

    fn launch(
        &mut self,
        batch: &ForwardBatch,
        choices: &mut Choices<'_>,
    ) -> Result<Flight, ExecutorError> {
        self.spans.clear();
        self.spans
            .extend(batch.sequences.iter().map(|sequence| SequenceSpan {
                first_token: sequence.first_token,
                tokens: sequence.tokens,
                context: sequence.context,
                first_slot: sequence.first_slot,
            }));
        let batch = Batch {
            tokens: &batch.tokens,
            carried: &batch.carried,
            positions: &batch.positions,
            write_slots: &batch.write_slots,
            sequences: &self.spans,
            slot_table: &batch.slot_table,
            logit_rows: &batch.logit_rows,
            hidden_rows: &batch.hidden_rows,
            choice_rows: &batch.choice_rows,
        };
        watched(&mut self.decoder, &self.lost, |decoder| {
            decoder.launch(&batch, &mut || choices().into_iter().map(wish).collect())
        })
    }

    fn land(&mut self, flight: Flight) -> Result<Logits, ExecutorError> {
        let outputs = watched(&mut self.decoder, &self.lost, |_| flight())?;
        Ok(Logits {
            values: outputs.logits,
            vocab: self.report.vocab_size,
            hidden: outputs.hidden,
            chosen: outputs.chosen,
            undecided: outputs.undecided,
        })
    }

    fn chooses(&self) -> bool {
        self.chooses
    }

    fn host_slots(&self) -> usize {
        self.report.host_slots
    }

    fn copy(&mut self, copy: &KvCopy) -> Result<(), ExecutorError> {
        let way = match copy.direction {
            CopyDirection::ToHost => CopyWay::ToHost,
            CopyDirection::ToDevice => CopyWay::ToDevice,
        };
        watched(&mut self.decoder, &self.lost, |decoder| {
            decoder.copy(way, &copy.device, &copy.host)
        })
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    fn reopen(&mut self) -> Result<(), ExecutorError> {
        if let Some(lost) = self.decoder.take() {
            // Its memory goes first. What a dead driver says to that does not matter.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(lost)));
        }
        let decoder = (self.reload)(&self.report)
            .map_err(|error| ExecutorError::new(format!("{error:#}")))?;
        let sizes = |report: &Report| {
            let Report {
                kv_slots,
                host_slots,
                max_model_len,
                vocab_size,
                ..
            } = report;
            [*kv_slots, *host_slots, *max_model_len, *vocab_size]
        };
        if sizes(decoder.report()) != sizes(&self.report) {
            return Err(ExecutorError::new(
                "the model that was loaded has another size now",
            ));
        }
        self.decoder = Some(decoder);
        self.warm_up().inspect_err(|_| self.decoder = None)?;
        self.lost.store(false, Ordering::Relaxed);
        tracing::info!(device = self.report.device, "the device is there again");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_model::dtype::Dtype;
    use hearth_model::runner::{Outputs, Wishes};

    /// Fails as it is told to.
    struct Failing {
        report: Report,
        how: fn() -> Result<Outputs, ForwardError>,
        alive: bool,
    }

    impl Decoder for Failing {
        fn report(&self) -> &Report {
            &self.report
        }

        fn chooses(&self) -> bool {
            false
        }

        fn launch(&mut self, _: &Batch<'_>, _: &mut Wishes<'_>) -> Result<Flight, ForwardError> {
            // Where it shows.
            let how = self.how;
            Ok(Box::new(how))
        }

        fn copy(&mut self, _: CopyWay, _: &[u32], _: &[u32]) -> Result<(), ForwardError> {
            (self.how)().map(drop)
        }

        fn reserved_bytes(&self) -> Option<u64> {
            None
        }

        fn is_alive(&mut self) -> bool {
            self.alive
        }
    }

    fn failing(how: fn() -> Result<Outputs, ForwardError>, alive: bool) -> Failing {
        let report = Report {
            architecture: String::new(),
            parameters: 0,
            vocab_size: 1,
            hidden_size: 1,
            device: "vulkan:0".to_owned(),
            dtype: Dtype::F32,
            quantization: None,
            kv_slots: 1,
            host_slots: 0,
            max_model_len: 1,
            weight_bytes: 0,
            kv_bytes: 0,
            headroom_bytes: None,
        };
        Failing { report, how, alive }
    }

    fn is_lost(how: fn() -> Result<Outputs, ForwardError>, alive: bool) -> bool {
        let decoder = Box::new(failing(how, alive));
        let mut executor = ModelExecutor::new(decoder, None, Box::new(|_| anyhow::bail!("no")));
        let lost = executor.lost();
        let failed = catch_unwind(AssertUnwindSafe(|| executor.warm_up().is_err()));
        assert!(failed.unwrap_or(true));
        lost.load(Ordering::Relaxed)
    }

    #[test]
    fn a_lost_device_is_opened_again_with_what_was_on_it() {
        let reset = || Err(ForwardError::Device("reset".to_owned()));
        let fine = || Ok(Outputs::default());
        let mut attempts = 0;
        let reload = move |report: &Report| {
            attempts += 1;
            let mut decoder = failing(fine, true);
            match attempts {
                1 => anyhow::bail!("no such device: {}", report.device),
                // Another checkpoint lies there now.
                2 => decoder.report.vocab_size = 2,
                // It goes again with its first forward.
                3 => decoder.how = reset,
                _ => {}
            }
            Ok(Box::new(decoder) as Box<dyn Decoder>)
        };
        let decoder = Box::new(failing(reset, false));
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
    fn a_device_is_lost_when_it_fails_and_computes_no_more() {
        let device = || Err(ForwardError::Device("reset".to_owned()));
        assert!(is_lost(device, false));
        assert!(!is_lost(device, true));
        let panics = || panic!("the driver panicked");
        assert!(is_lost(panics, false));
        assert!(!is_lost(panics, true));
        // What is wrong with a batch says nothing about the device.
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
