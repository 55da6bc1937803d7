//! Where the engine's [`Executor`] meets the model's [`Decoder`].
//!
//! Architecture invariant: no other file names both.

use hearth_engine::{
    CopyDirection, Executor, ExecutorError, ExecutorLimits, ForwardBatch, KvCopy, Logits, Sequence,
};
use hearth_model::runner::{Batch, CopyWay, Decoder, SequenceSpan};

/// A model that the engine can drive.
pub struct ModelExecutor {
    decoder: Box<dyn Decoder>,
    limits: ExecutorLimits,
    spans: Vec<SequenceSpan>,
}

impl ModelExecutor {
    pub fn new(decoder: Box<dyn Decoder>, limits: ExecutorLimits) -> Self {
        Self {
            decoder,
            limits,
            spans: Vec::new(),
        }
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
        };
        self.forward(&batch).map(drop)
    }

    /// Bytes that a GPU's memory pool has taken.
    pub fn reserved_bytes(&self) -> Option<u64> {
        self.decoder.reserved_bytes()
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
        };
        let outputs = self.decoder.forward(&batch).map_err(ExecutorError::new)?;
        Ok(Logits {
            values: outputs.logits,
            vocab: self.limits.vocab_size,
            hidden: outputs.hidden,
        })
    }

    fn host_slots(&self) -> usize {
        self.decoder.report().host_slots
    }

    fn copy(&mut self, copy: &KvCopy) -> Result<(), ExecutorError> {
        let way = match copy.direction {
            CopyDirection::ToHost => CopyWay::ToHost,
            CopyDirection::ToDevice => CopyWay::ToDevice,
        };
        self.decoder
            .copy(way, &copy.device, &copy.host)
            .map_err(ExecutorError::new)
    }
}
