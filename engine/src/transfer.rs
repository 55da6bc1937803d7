//! Reads and writes of keys and values by the engine's callers.
//!
//! Cached prefixes are read to be kept elsewhere, and put back into an engine that starts later; see
//! [`read_prefix`](crate::EngineHandle::read_prefix).
//!
//! With prefill/decode disaggregation one engine computes a prompt, another one generates the output,
//! and keys and values move between their pools.
//!
//! The engine moves no bytes over a network. A request with a [`Transfer`] holds slots while its
//! caller reads or writes their contents through the [`EngineHandle`](crate::EngineHandle):
//!
//! ```text
//! prefill engine                         decode engine
//!   Event::Started                         Event::Receiving { from, tokens }
//!   Event::Computed { tokens }             write_kv(from.., bytes)  (several)
//!   read_kv(positions)      ── bytes ──▶
//!   Event::Token            ── output ─▶   received(output)
//!   the caller stops it                    Event::Token, and so on
//! ```
//!
//! **Architecture Invariant.** The engine never waits for a transfer. A request that transfers
//! holds its slots and takes no part in forward passes; its caller ends the transfer within a
//! bound of its own.

use std::ops::Range;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::request_id::RequestId;
use crate::sampling::logprobs::TokenLogprobs;

/// A request whose KV is read or written; see
/// [`Generation::transfer_id`](crate::Generation::transfer_id).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferId(pub(crate) RequestId);

/// Which part of a request this engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// It computes the prompt and samples one token, and holds the slots until its caller drops
    /// or stops the generation.
    Send,
    /// It allocates slots and waits for [`received`](crate::EngineHandle::received), or for
    /// [`receive_failed`](crate::EngineHandle::receive_failed), after which it computes the
    /// prompt itself.
    Receive,
}

/// The output of the engine that computed the prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemoteOutput {
    /// Prompt tokens that the other engine reused from its cache.
    pub cached_tokens: usize,
    /// One entry per prompt token if the request asked for them, else empty.
    pub prompt_logprobs: Vec<Option<TokenLogprobs>>,
    /// One entry for each token that the grammar forced after the prompt, if the request asked
    /// for log-probabilities, else empty.
    pub forced: Vec<TokenLogprobs>,
    /// The first sampled token, stop tokens included; `None` if the output ended before it.
    pub sampled: Option<RemoteToken>,
}

/// A token that another engine sampled.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteToken {
    pub id: u32,
    /// Present if the request asked for log-probabilities.
    pub logprob: Option<TokenLogprobs>,
}

/// Why keys and values were not read or written. The request itself is not affected.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum TransferError {
    #[error("the request has ended, or has given its KV slots back")]
    Gone,
    #[error("positions {}..{} are not within {}..{}", given.start, given.end, allowed.start, allowed.end)]
    OutOfRange {
        given: Range<usize>,
        allowed: Range<usize>,
    },
    #[error("the prefix is not cached")]
    NotCached,
    #[error("no KV slots are free")]
    NoFreeSlots,
    #[error("a token is not in the vocabulary")]
    Vocabulary,
    #[error("the output of the prefill does not fit the request: {0}")]
    Output(&'static str),
    #[error("{0}")]
    Device(String),
}

/// A read or a write of the device's KV pool, to be carried out before the next forward pass.
#[derive(Debug)]
pub(crate) enum KvTransfer {
    Read {
        slots: Vec<u32>,
        reply: oneshot::Sender<Result<Vec<u8>, TransferError>>,
    },
    Write {
        slots: Vec<u32>,
        bytes: Vec<u8>,
        reply: oneshot::Sender<Result<(), TransferError>>,
    },
}

impl KvTransfer {
    /// Replies with an error in place of doing anything.
    pub fn refuse(self, reason: &str) {
        let error = TransferError::Device(reason.to_owned());
        // The caller may have given up meanwhile.
        match self {
            Self::Read { reply, .. } => drop(reply.send(Err(error))),
            Self::Write { reply, .. } => drop(reply.send(Err(error))),
        }
    }
}

/// A command that concerns the slots of one request.
#[derive(Debug)]
pub(crate) enum TransferCommand {
    Read {
        id: RequestId,
        positions: Range<usize>,
        reply: oneshot::Sender<Result<Vec<u8>, TransferError>>,
    },
    Write {
        id: RequestId,
        from: usize,
        tokens: usize,
        bytes: Vec<u8>,
        reply: oneshot::Sender<Result<(), TransferError>>,
    },
    Received {
        id: RequestId,
        written: usize,
        output: RemoteOutput,
        reply: oneshot::Sender<Result<(), TransferError>>,
    },
    ReceiveFailed {
        id: RequestId,
        written: usize,
    },
}

/// A command that concerns the slots of the prefix cache.
#[derive(Debug)]
pub(crate) enum PrefixCommand {
    Read {
        namespace: Arc<str>,
        tokens: Vec<u32>,
        from: usize,
        reply: oneshot::Sender<Result<Vec<u8>, TransferError>>,
    },
    Restore {
        namespace: Arc<str>,
        tokens: Vec<u32>,
        from: usize,
        bytes: Vec<u8>,
        reply: oneshot::Sender<Result<(), TransferError>>,
    },
}
