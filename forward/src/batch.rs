//! One forward pass, as the scheduler describes it.

/// One sequence's share of a [`ForwardBatch`].
///
/// The batch's tokens belong to its sequences one after another: a sequence has the next
/// `tokens` of them. They are the last of its `context` positions, and they attend
/// `slot_table[first_slot .. first_slot + context]`, their own slots included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceSpan {
    /// Tokens to compute: 1 for a decode row, more for a chunk of a prompt.
    pub tokens: u32,
    /// Positions that are attended, the tokens to compute included.
    pub context: u32,
    /// Index into [`ForwardBatch::slot_table`] of the slot of position 0.
    pub first_slot: u32,
}

/// A ragged batch: prefill chunks and decode rows of many requests in one forward pass.
///
/// A row is the index of a token in the batch. The row lists (`logit_rows`, `hidden_rows`,
/// `sample_rows`) are ascending and may be empty; the output has one entry for each of their
/// rows, in the same order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardBatch {
    /// `[tokens]` input ids, one sequence after another. Zeros where `carried_rows` is used.
    pub tokens: Vec<u32>,
    /// `[tokens]`, or empty. Used by overlap scheduling, where this batch is submitted before
    /// the previous one has completed: input `i` is the token that the previous batch samples
    /// at index `carried_rows[i]` of its `sample_rows`, and any valid id where it samples
    /// none. Always empty for an executor that does not
    /// [sample on the device](crate::Executor::samples_on_device).
    pub carried_rows: Vec<u32>,
    /// `[tokens]` position of each token in its sequence, counted from 0.
    pub positions: Vec<u32>,
    /// `[tokens]` KV slot that receives each token's keys and values. No slot occurs twice.
    pub write_slots: Vec<u32>,
    /// `[tokens]` window slot that receives each token's keys and values in layers that attend a
    /// window; empty for an executor without [window slots](crate::Executor::window).
    pub window_write_slots: Vec<u32>,
    /// The sequences, in the order of their tokens.
    pub sequences: Vec<SequenceSpan>,
    /// `[sequences]`, or empty for a batch of the base model alone: the adapter of each sequence, as
    /// a slot that [`load_adapter`](crate::Executor::load_adapter) filled, counted from 1; 0 for the
    /// base model.
    pub adapters: Vec<u32>,
    /// The KV slots of each sequence in order of position. Each sequence's slots are
    /// contiguous, but the sequences may lie in any order and with unused entries between
    /// them. Unused entries are valid slots, too.
    pub slot_table: Vec<u32>,
    /// The window slots of each sequence, at the same places as its slots in `slot_table`; empty for
    /// an executor without [window slots](crate::Executor::window). Entries of positions that no
    /// token of the batch attends are valid slots, and may belong to other sequences.
    pub window_table: Vec<u32>,
    /// Rows whose logits are returned in [`ForwardOutput::logits`](crate::ForwardOutput).
    pub logit_rows: Vec<u32>,
    /// Rows whose hidden states are returned in
    /// [`ForwardOutput::hidden`](crate::ForwardOutput).
    pub hidden_rows: Vec<u32>,
    /// Rows at which the executor samples, each by its [`SampleRequest`](crate::SampleRequest).
    /// Always empty for an executor that does not
    /// [sample on the device](crate::Executor::samples_on_device).
    pub sample_rows: Vec<u32>,
}
