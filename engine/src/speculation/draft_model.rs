//! A second, smaller model that drafts.

use hearth_forward::{Executor, ExecutorLimits, ForwardBatch, ForwardError};

/// A model that drafts tokens for another model with the same vocabulary. Every [`Executor`] is
/// one.
///
/// It is created, used and dropped on the engine thread, so it need not be `Send`.
pub trait DraftModel {
    /// The sizes of the model.
    fn sizes(&self) -> ExecutorLimits;

    /// Makes a forward pass and waits for it. Returns `[logit_rows, vocab_size]`.
    ///
    /// # Errors
    /// As [`Executor::submit`].
    fn logits(&mut self, batch: &ForwardBatch) -> Result<Vec<f32>, ForwardError>;
}

impl<E: Executor> DraftModel for E {
    fn sizes(&self) -> ExecutorLimits {
        self.limits()
    }

    fn logits(&mut self, batch: &ForwardBatch) -> Result<Vec<f32>, ForwardError> {
        Ok(self.forward(batch, &mut Vec::new)?.logits)
    }
}
