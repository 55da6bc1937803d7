//! Where the engine's [`Executor`] meets the model's [`Decoder`].
//!
//! Architecture invariant: no other file names both.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hearth_engine::{
    CopyDirection, Executor, ExecutorError, ExecutorLimits, ForwardBatch, KvCopy, Logits, Sequence,
};
use hearth_model::runner::{Batch, CopyWay, Decoder, ForwardError, SequenceSpan};

/// A model that the engine can drive.
pub struct ModelExecutor {
    decoder: Box<dyn Decoder>,
    limits: ExecutorLimits,
    spans: Vec<SequenceSpan>,
    lost: Arc<AtomicBool>,
}

impl ModelExecutor {
    pub fn new(decoder: Box<dyn Decoder>, limits: ExecutorLimits) -> Self {
        Self {
            decoder,
            limits,
            spans: Vec::new(),
            lost: Arc::default(),
        }
    }

    /// Set when the device is gone: nothing will be computed any more.
    pub fn lost(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.lost)
    }

    /// One forward of one token, so that kernels are compiled and pages are touched
    /// before the first client waits for them. Slot 0 is rewritten by whoever gets it.
    ///
    /// # Errors
    /// The forward fails: this model will not serve anybody.
    pub fn warm_up(&mut self) -> Result<(), ExecutorError> {
        let batch = ForwardBatch {
            tokens: vec![0],
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
            greedy_rows: vec![0],
        };
        self.forward(&batch).map(drop)
    }

    /// Bytes that a GPU's memory pool has taken.
    pub fn reserved_bytes(&self) -> Option<u64> {
        self.decoder.reserved_bytes()
    }
}

/// Does `work` with the model. After a failure that is not the batch's the device is asked
/// whether it still computes; if not, it is `lost`.
fn watched<T>(
    decoder: &mut dyn Decoder,
    lost: &AtomicBool,
    work: impl FnOnce(&mut dyn Decoder) -> Result<T, ForwardError>,
) -> Result<T, ExecutorError> {
    let outcome = catch_unwind(AssertUnwindSafe(|| work(&mut *decoder)));
    let suspect = matches!(&outcome, Err(_) | Ok(Err(ForwardError::Device(_))));
    if suspect && !lost.load(Ordering::Relaxed) && !decoder.is_alive() {
        lost.store(true, Ordering::Relaxed);
        let device = &decoder.report().device;
        tracing::error!(
            device,
            "the device is lost: no request will be answered any more"
        );
    }
    match outcome {
        Ok(outcome) => outcome.map_err(ExecutorError::new),
        Err(panic) => resume_unwind(panic),
    }
}

impl Executor for ModelExecutor {
    fn limits(&self) -> ExecutorLimits {
        self.limits
    }

    fn forward(&mut self, batch: &ForwardBatch) -> Result<Logits, ExecutorError> {
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
            positions: &batch.positions,
            write_slots: &batch.write_slots,
            sequences: &self.spans,
            slot_table: &batch.slot_table,
            logit_rows: &batch.logit_rows,
            hidden_rows: &batch.hidden_rows,
            greedy_rows: &batch.greedy_rows,
        };
        let outputs = watched(self.decoder.as_mut(), &self.lost, |decoder| {
            decoder.forward(&batch)
        })?;
        Ok(Logits {
            values: outputs.logits,
            vocab: self.limits.vocab_size,
            hidden: outputs.hidden,
            greedy: outputs.greedy,
        })
    }

    fn chooses(&self) -> bool {
        true
    }

    fn host_slots(&self) -> usize {
        self.decoder.report().host_slots
    }

    fn copy(&mut self, copy: &KvCopy) -> Result<(), ExecutorError> {
        let way = match copy.direction {
            CopyDirection::ToHost => CopyWay::ToHost,
            CopyDirection::ToDevice => CopyWay::ToDevice,
        };
        watched(self.decoder.as_mut(), &self.lost, |decoder| {
            decoder.copy(way, &copy.device, &copy.host)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_model::dtype::Dtype;
    use hearth_model::runner::{Outputs, Report};

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

        fn forward(&mut self, _: &Batch<'_>) -> Result<Outputs, ForwardError> {
            (self.how)()
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

    fn is_lost(how: fn() -> Result<Outputs, ForwardError>, alive: bool) -> bool {
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
        let limits = ExecutorLimits {
            kv_slots: 1,
            max_model_len: 1,
            vocab_size: 1,
        };
        let decoder = Failing { report, how, alive };
        let mut executor = ModelExecutor::new(Box::new(decoder), limits);
        let lost = executor.lost();
        let failed = catch_unwind(AssertUnwindSafe(|| executor.warm_up().is_err()));
        assert!(failed.unwrap_or(true));
        lost.load(Ordering::Relaxed)
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
