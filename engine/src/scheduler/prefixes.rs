//! Reading cached prefixes, and putting prefixes into the cache that an earlier engine computed.

use std::sync::Arc;

use tokio::sync::oneshot::{self, error::TryRecvError};

use super::Scheduler;
use crate::kv::RequestKv;
use crate::transfer::{KvTransfer, PrefixCommand, TransferError};

/// A prefix whose keys and values are being written to slots that the cache does not have yet.
#[derive(Debug)]
pub(super) struct Restore {
    namespace: Arc<str>,
    tokens: Vec<u32>,
    pub(super) kv: RequestKv,
    written: oneshot::Receiver<Result<(), TransferError>>,
    reply: oneshot::Sender<Result<(), TransferError>>,
}

impl Scheduler {
    /// Carries out a command between two steps. The next step begins with the copy, before slots
    /// that are evicted for it can be written to.
    pub fn prefix(&mut self, command: PrefixCommand) {
        match command {
            PrefixCommand::Read {
                namespace,
                tokens,
                from,
                reply,
            } => {
                let slots = self.kv.slots_of(&namespace, &tokens);
                match slots.get(from..).filter(|_| slots.len() == tokens.len()) {
                    Some(slots) => {
                        self.counters.saved_tokens += slots.len() as u64;
                        self.transfers.push(KvTransfer::Read {
                            slots: slots.to_vec(),
                            reply,
                        });
                    }
                    // The caller may have given up meanwhile; the same holds for the other replies.
                    None => drop(reply.send(Err(TransferError::NotCached))),
                }
            }
            PrefixCommand::Restore {
                namespace,
                tokens,
                from,
                bytes,
                reply,
            } => match self.kv.place(&namespace, &tokens, from) {
                Ok(kv) => {
                    let (sender, written) = oneshot::channel();
                    self.transfers.push(KvTransfer::Write {
                        slots: kv.slots[from..].to_vec(),
                        bytes,
                        reply: sender,
                    });
                    self.restores.push(Restore {
                        namespace,
                        tokens,
                        kv,
                        written,
                        reply,
                    });
                }
                Err(error) => drop(reply.send(Err(error))),
            },
        }
    }

    /// Puts the prefixes into the cache whose keys and values have been written.
    pub(super) fn settle_restores(&mut self) {
        for mut restore in std::mem::take(&mut self.restores) {
            let written = match restore.written.try_recv() {
                Err(TryRecvError::Empty) => {
                    self.restores.push(restore);
                    continue;
                }
                Ok(written) => written,
                Err(TryRecvError::Closed) => Err(TransferError::Gone),
            };
            if written.is_ok() {
                let Restore {
                    namespace,
                    tokens,
                    kv,
                    ..
                } = &mut restore;
                self.counters.restored_tokens += kv.held() as u64;
                self.kv.keep(namespace, tokens, kv);
                self.waiting.cached(namespace, tokens, 0, tokens.len());
            }
            self.kv.release(restore.kv);
            let _ = restore.reply.send(written);
        }
    }

    /// Gives up all prefixes that are being written: the device is lost.
    pub(super) fn drop_restores(&mut self, error: &str) {
        for restore in std::mem::take(&mut self.restores) {
            self.kv.release(restore.kv);
            let error = TransferError::Device(error.to_owned());
            let _ = restore.reply.send(Err(error));
        }
    }
}
