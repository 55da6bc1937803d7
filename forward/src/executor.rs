//! The one trait through which the scheduler drives a model.

use crate::{Adapter, ForwardBatch, ForwardError, ForwardOutput, KvCopy, SampleRequests};

/// The sizes of an executor, fixed for its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutorLimits {
    /// KV slots in the device's pool, one per token. Slot ids are `0..kv_slots`.
    pub kv_slots: usize,
    /// Longest sequence in tokens, prompt and output together.
    pub max_model_len: usize,
    /// Token ids are `0..vocab_size`.
    pub vocab_size: usize,
}

/// The slots of layers that attend a window, where these have a pool of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowLimits {
    /// Window slots, one per token. Slot ids are `0..slots`. There are at least
    /// [`LEAST_BESIDE`](Self::LEAST_BESIDE) more than `tokens`.
    pub slots: usize,
    /// Positions that a token attends in these layers, its own included.
    pub tokens: usize,
}

impl WindowLimits {
    /// Window slots that a request takes beside those of a window: for the rest of a page (of at
    /// most 64 tokens) at both ends of the window, for tokens to compute, and for slots that are
    /// given up together.
    pub const LEAST_BESIDE: usize = 384;
}

/// A model with a KV pool. It is created, used and dropped on one thread, so it need not be
/// `Send`.
///
/// **Architecture Invariant.** The scheduler knows slots, positions and logits; it never sees
/// a tensor or a device. An executor knows tensors and devices; it never sees a request.
pub trait Executor {
    /// A forward pass that was submitted and has not completed.
    type Submission;

    fn limits(&self) -> ExecutorLimits;

    /// Submits a forward pass: the model writes every token's keys and values to its slot,
    /// then attends through the slot table. `sample_requests` is called if the batch has
    /// `sample_rows`. This need not wait for the device.
    ///
    /// # Errors
    /// After an error or a panic, the engine fails the requests of this batch and frees
    /// their slots. Slots outside `batch.write_slots` must be intact.
    fn submit(
        &mut self,
        batch: &ForwardBatch,
        sample_requests: &mut SampleRequests<'_>,
    ) -> Result<Self::Submission, ForwardError>;

    /// Waits for a forward pass and returns its output. Submissions are completed in the
    /// order in which they were submitted; the next one may be submitted before that.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    fn complete(&mut self, submission: Self::Submission) -> Result<ForwardOutput, ForwardError>;

    /// Submits a forward pass and waits for it.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    fn forward(
        &mut self,
        batch: &ForwardBatch,
        sample_requests: &mut SampleRequests<'_>,
    ) -> Result<ForwardOutput, ForwardError> {
        let submission = self.submit(batch, sample_requests)?;
        self.complete(submission)
    }

    /// Whether the executor samples tokens on the device, so that no logits need to leave it,
    /// and can [carry](ForwardBatch::carried_rows) them into the next forward pass.
    fn samples_on_device(&self) -> bool {
        false
    }

    /// The slots of layers that attend a window, if they have a pool of their own: then the lists
    /// `window_write_slots` and `window_table` of a batch are filled. A pool with window slots can
    /// neither be copied to the host nor read or written.
    fn window(&self) -> Option<WindowLimits> {
        None
    }

    /// Slots of a second KV pool in the host's memory. Slot ids are `0..host_slots()`.
    fn host_slots(&self) -> usize {
        0
    }

    /// Copies keys and values between the two pools, before the next forward pass writes to
    /// any slot. It is never called where there are no host slots.
    ///
    /// # Errors
    /// After an error or a panic, the engine forgets everything that the host's pool holds.
    fn copy_kv(&mut self, copy: &KvCopy) -> Result<(), ForwardError> {
        let _ = copy;
        Err(ForwardError::other("there are no slots on the host"))
    }

    /// Bytes of the keys and values of one token over all layers, as [`read_kv`](Self::read_kv)
    /// returns them; 0 for an executor whose pool can be neither read nor written.
    fn kv_token_bytes(&self) -> usize {
        0
    }

    /// Reads keys and values out of the device's pool, between two forward passes: for each
    /// layer the keys and then the values, `[slots, kv_heads, head_dim]`, in the pool's number
    /// format and the byte order of the machine.
    ///
    /// # Errors
    /// A slot beyond the pool, or the device fails.
    fn read_kv(&mut self, slots: &[u32]) -> Result<Vec<u8>, ForwardError> {
        let _ = slots;
        Err(ForwardError::other("the KV pool cannot be read"))
    }

    /// Writes to the device's pool what [`read_kv`](Self::read_kv) returned for as many slots,
    /// here or on another machine with the same model. No slot may occur twice.
    ///
    /// # Errors
    /// A slot beyond the pool, a wrong number of bytes, or the device fails; then the contents
    /// of `slots` are unknown.
    fn write_kv(&mut self, slots: &[u32], bytes: &[u8]) -> Result<(), ForwardError> {
        let _ = (slots, bytes);
        Err(ForwardError::other("the KV pool cannot be written"))
    }

    /// Slots for adapters on the device, counted from 1; 0 for an executor that takes none.
    fn adapter_slots(&self) -> usize {
        0
    }

    /// How many of the slots, the first ones, have room for adapters with whole tables.
    fn table_slots(&self) -> usize {
        0
    }

    /// Puts `adapter` into `slot`, in place of what was there, before the next forward pass. What a slot
    /// that was never filled computes is of use only to warm up.
    ///
    /// # Errors
    /// A slot beyond the last, an adapter of another model or of a rank beyond the executor's bound,
    /// whole tables in a slot without room for them, or the device fails. Then the slot computes as the
    /// base model.
    fn load_adapter(&mut self, slot: u32, adapter: &Adapter) -> Result<(), ForwardError> {
        let _ = (slot, adapter);
        Err(ForwardError::other("this executor takes no adapters"))
    }

    /// True if a driver resets the device when one forward pass takes too long. The engine then bounds
    /// the time of each.
    fn has_watchdog(&self) -> bool {
        false
    }

    /// Whether the device is gone, and with it the contents of both pools. The engine asks
    /// before and after every forward pass, and submits nothing until the executor is
    /// [open again](Self::reopen).
    fn is_lost(&self) -> bool {
        false
    }

    /// Opens a lost device again, with the same [limits](Self::limits) and with empty slots, those
    /// of adapters included.
    /// The engine retries at intervals for as long as it lives.
    ///
    /// # Errors
    /// The device is still lost.
    fn reopen(&mut self) -> Result<(), ForwardError> {
        Err(ForwardError::other("it cannot be opened again"))
    }
}
