//! The one trait through which the engine drives a model.
//!
//! **Architecture invariant.** The engine knows slots, positions and logits; it
//! never sees a tensor or a device. An executor knows tensors and devices; it
//! never sees a request.

use std::error::Error;

use hearth_forward::KvCopy;

use crate::constraint::Mask;

/// One sequence's share of a [`ForwardBatch`].
///
/// Tokens `first_token .. first_token + tokens` of the batch are the last
/// `tokens` of the sequence's `context` positions, and the sequence attends
/// `slot_table[first_slot .. first_slot + context]`, its new tokens included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    pub first_token: u32,
    pub tokens: u32,
    pub context: u32,
    pub first_slot: u32,
}

/// A ragged batch: prefill chunks and decode rows of many requests in one
/// forward. A decode row is a sequence of one token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardBatch {
    /// `[tokens]` input ids, sequences one after another.
    pub tokens: Vec<u32>,
    /// `[tokens]`, where the forward before has not been read, or empty: the input ids are what
    /// that one chose, each at this row of its `choice_rows`, and any id where it chose none;
    /// `tokens` are zeros then. Always empty for an executor that does not
    /// [choose](Executor::chooses).
    pub carried: Vec<u32>,
    /// `[tokens]` position of each token in its sequence, from 0.
    pub positions: Vec<u32>,
    /// `[tokens]` KV slot that receives each token's keys and values. No slot
    /// occurs twice.
    pub write_slots: Vec<u32>,
    pub sequences: Vec<Sequence>,
    /// The sequences' KV slots in position order, those of one after another's in no order.
    /// Between them are slots that mean nothing.
    pub slot_table: Vec<u32>,
    /// Indices into `tokens`, ascending, whose logits are wanted. May be empty.
    pub logit_rows: Vec<u32>,
    /// Indices into `tokens`, ascending, whose hidden states are wanted. May be empty.
    pub hidden_rows: Vec<u32>,
    /// Indices into `tokens`, ascending, after which the executor chooses the token, by the
    /// [`Choice`] of each. Empty for an executor that does not [choose](Executor::chooses).
    pub choice_rows: Vec<u32>,
}

/// What is wanted of one of a batch's [`choice_rows`](ForwardBatch::choice_rows).
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// A token.
    Token(TokenChoice),
    /// Its logits: what may be chosen is not known yet.
    Logits,
    Nothing,
}

/// How a token is chosen, in this order: of the tokens in `mask`, after `edits`, by
/// temperature, min-p, top-k, top-p over the share of what those two left, and `draw`; NaN and
/// minus infinity never.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenChoice {
    /// 0 is the first of the likeliest tokens, whatever the fields down to `draw` are.
    pub temperature: f32,
    pub top_k: Option<u32>,
    pub top_p: f32,
    pub min_p: f32,
    /// In [0, 1): where in the weights of the tokens that are left, in the order of their ids.
    pub draw: f64,
    pub mask: Option<Mask>,
    /// At most one for each token.
    pub edits: Vec<LogitEdit>,
}

/// What is done to the logit of `token`: `bias` is added; what that gives is divided by
/// `factor` where it is positive, and else multiplied; `amount` is subtracted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitEdit {
    pub token: u32,
    pub bias: f32,
    pub factor: f32,
    pub amount: f32,
}

/// Gives the choices of a batch's rows, once: to be called when all of the forward has been
/// given to the device, as it may wait for masks.
pub type Choices<'a> = dyn FnMut() -> Vec<Choice> + 'a;

/// What a forward gives for the rows that were wanted, in their order, row-major.
#[derive(Clone, Debug, Default)]
pub struct Logits {
    /// `[logit_rows, vocab]`
    pub values: Vec<f32>,
    pub vocab: usize,
    /// `[hidden_rows, hidden_size]`: what the output projection would read, after the
    /// last norm.
    pub hidden: Vec<f32>,
    /// One for each [`Choice::Token`]; `None` where there is none to choose from.
    pub chosen: Vec<Option<u32>>,
    /// `[rows, vocab]`, one for each [`Choice::Logits`].
    pub undecided: Vec<f32>,
}

impl Logits {
    /// No row.
    pub(crate) fn none(limits: ExecutorLimits) -> Self {
        Self {
            vocab: limits.vocab_size,
            ..Self::default()
        }
    }
}

/// What an executor can hold; fixed for its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutorLimits {
    /// KV slots in the pool, one per token; ids are `0..kv_slots`.
    pub kv_slots: usize,
    /// Longest sequence in tokens, prompt and output together.
    pub max_model_len: usize,
    /// Valid token ids are `0..vocab_size`.
    pub vocab_size: usize,
}

/// A model with a KV pool. It lives on a thread of its own from its making to
/// its end, so it need not be `Send`.
pub trait Executor {
    /// A forward that the device was given, until what it gives is read.
    type Flight;

    fn limits(&self) -> ExecutorLimits;

    /// Runs the model over `batch`: writes every token's keys and values to its
    /// slot, then attends through the slot table. `choices` is asked where the batch has
    /// rows to choose at. Need not wait for the device.
    ///
    /// # Errors
    /// After an error or a panic the engine fails the requests of this batch
    /// and frees their slots; slots outside `batch.write_slots` must be intact.
    fn launch(
        &mut self,
        batch: &ForwardBatch,
        choices: &mut Choices<'_>,
    ) -> Result<Self::Flight, ExecutorError>;

    /// Waits for what a forward gives. They are read in the order of their launches; another
    /// one may be launched before, which need not be done then.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    fn land(&mut self, flight: Self::Flight) -> Result<Logits, ExecutorError>;

    /// Launches a forward and waits for it.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    fn forward(
        &mut self,
        batch: &ForwardBatch,
        choices: &mut Choices<'_>,
    ) -> Result<Logits, ExecutorError> {
        let flight = self.launch(batch, choices)?;
        self.land(flight)
    }

    /// Whether it chooses tokens itself, so that no logits need leave the device, and can
    /// [carry](ForwardBatch::carried) them to the next forward.
    fn chooses(&self) -> bool {
        false
    }

    /// Slots of a second pool in the host's memory; ids are `0..host_slots()`.
    fn host_slots(&self) -> usize {
        0
    }

    /// Copies the keys and values of all layers between the two pools, before the next
    /// forward writes to any slot. Never called without host slots.
    ///
    /// # Errors
    /// After an error or a panic the engine forgets all that the host has.
    fn copy(&mut self, copy: &KvCopy) -> Result<(), ExecutorError> {
        let _ = copy;
        Err(ExecutorError::new("there are no slots on the host"))
    }

    /// Whether the device is gone, and with it what was in the slots of both pools. Asked
    /// before and after every forward; nothing is run then before it is [open again](Self::reopen).
    fn is_lost(&self) -> bool {
        false
    }

    /// Opens the device anew, with the same [limits](Self::limits) and all slots empty. Tried
    /// again after a while, for as long as the engine is there.
    ///
    /// # Errors
    /// It is still lost.
    fn reopen(&mut self) -> Result<(), ExecutorError> {
        Err(ExecutorError::new("it cannot be opened again"))
    }
}

/// A forward that did not happen; its text reaches the clients it failed.
#[derive(Debug, thiserror::Error)]
#[error("the model failed: {0}")]
pub struct ExecutorError(Box<dyn Error + Send + Sync>);

impl ExecutorError {
    pub fn new(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}

/// An executor that could not be made: a missing file, no memory, no device.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BuildError(Box<dyn Error + Send + Sync>);

impl BuildError {
    pub fn new(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}
