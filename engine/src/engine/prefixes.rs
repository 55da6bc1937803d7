//! Cached prefixes that are copied out of the engine, to be put back into one that starts later.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hearth_radix::CachedEdge;

use super::EngineHandle;
use crate::command::{Command, Look, Pending};
use crate::inbox::Inbox;
use crate::transfer::{PrefixCommand, TransferError};

/// Keeps the thread of a closed engine alive while nothing is left to compute, so that its cache
/// can still be read.
#[derive(Debug)]
pub struct EngineHold(Arc<Inbox>);

impl Drop for EngineHold {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl EngineHandle {
    /// All that the prefix cache of the device holds, parents before what follows them. It is copied
    /// at the next moment at which a step is in flight or nothing is to be computed.
    pub fn cached_prefixes(&self) -> Pending<Vec<CachedEdge>> {
        self.look(|reply| Look::Contents { reply })
    }

    /// The keys and values of `tokens` from the position `from` on, in the layout of
    /// [`Executor::read_kv`](hearth_forward::Executor::read_kv), if all of `tokens` are cached. They
    /// are read before the next forward pass, and do not count as used.
    pub fn read_prefix(
        &self,
        namespace: Arc<str>,
        tokens: Vec<u32>,
        from: usize,
    ) -> Pending<Result<Vec<u8>, TransferError>> {
        self.command(|_, reply| {
            Command::Prefix(PrefixCommand::Read {
                namespace,
                tokens,
                from,
                reply,
            })
        })
    }

    /// Puts `tokens` into the prefix cache, with the keys and values `bytes` of the positions from
    /// `from` on. The tokens before `from` must be cached, and nothing is evicted for the others.
    /// They can be found when the answer is there.
    ///
    /// # Errors
    /// `from` is beyond the tokens, a token is outside the vocabulary, or `bytes` has a wrong length.
    pub fn restore_prefix(
        &self,
        namespace: Arc<str>,
        tokens: Vec<u32>,
        from: usize,
        bytes: Vec<u8>,
    ) -> Result<Pending<Result<(), TransferError>>, TransferError> {
        let allowed = 0..tokens.len();
        let given = from..tokens.len();
        let vocabulary = self.limits().vocab_size;
        let is_known = |&token: &u32| (token as usize) < vocabulary;
        if from > tokens.len() || bytes.len() != given.len().saturating_mul(self.kv_token_bytes()) {
            return Err(TransferError::OutOfRange { given, allowed });
        }
        if !tokens.iter().all(is_known) {
            return Err(TransferError::Vocabulary);
        }
        Ok(self.command(|_, reply| {
            Command::Prefix(PrefixCommand::Restore {
                namespace,
                tokens,
                from,
                bytes,
                reply,
            })
        }))
    }

    /// Stops accepting requests. Those that run or wait may take `grace` to finish.
    /// [`shutdown`](Self::shutdown) follows.
    pub fn close(&self, grace: Duration) {
        self.shared.inbox.close(Instant::now().checked_add(grace));
    }

    /// Keeps the engine thread alive until the hold is dropped, even if the engine is closed and has
    /// nothing left to compute.
    pub fn hold(&self) -> EngineHold {
        self.shared.inbox.hold();
        EngineHold(Arc::clone(&self.shared.inbox))
    }
}
