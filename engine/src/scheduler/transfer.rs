//! Reading and writing the KV of requests whose prompt and output are computed by two engines.

use std::ops::Range;

use super::Scheduler;
use crate::request_id::RequestId;
use crate::running::Running;
use crate::transfer::{KvTransfer, RemoteOutput, TransferCommand, TransferError};

impl Scheduler {
    /// Carries out a command between two steps. Reads and writes are replied to by the device
    /// thread, before the next forward pass.
    pub fn transfer(&mut self, command: TransferCommand) {
        match command {
            TransferCommand::Read {
                id,
                positions,
                reply,
            } => match self.readable(id, positions) {
                Ok(slots) => {
                    self.counters.sent_tokens += slots.len() as u64;
                    self.transfers.push(KvTransfer::Read { slots, reply });
                }
                // The caller may have given up meanwhile; the same holds for the other replies.
                Err(error) => drop(reply.send(Err(error))),
            },
            TransferCommand::Write {
                id,
                from,
                tokens,
                bytes,
                reply,
            } => match self.writable(id, from..from.saturating_add(tokens)) {
                Ok(slots) => {
                    self.counters.received_tokens += slots.len() as u64;
                    self.transfers.push(KvTransfer::Write {
                        slots,
                        bytes,
                        reply,
                    });
                }
                Err(error) => drop(reply.send(Err(error))),
            },
            TransferCommand::Received {
                id,
                written,
                output,
                reply,
            } => drop(reply.send(self.receive(id, written, output))),
            TransferCommand::ReceiveFailed { id, written } => {
                if let Ok(running) = self.receiving(id) {
                    // Log-probabilities of later positions can only be computed here.
                    let reusable = running.request.reusable().min(written);
                    running.kv.computed = running.kv.computed.max(reusable);
                    running.request.continue_locally(running.kv.reused());
                    self.counters.failed_transfers += 1;
                }
            }
        }
    }

    /// Whether a request waits for its caller to end a transfer, and no read or write is scheduled.
    pub fn awaits_transfers(&self) -> bool {
        self.transfers.is_empty() && self.running.iter().any(|r| r.request.is_parked())
    }

    fn readable(&self, id: RequestId, positions: Range<usize>) -> Result<Vec<u32>, TransferError> {
        let mut running = self.running.iter();
        let running = running.find(|running| running.request.id == id);
        let Running { kv, .. } = running.ok_or(TransferError::Gone)?;
        let slots = within(&positions, 0..kv.computed)?;
        Ok(kv.slots[slots].to_vec())
    }

    fn writable(
        &mut self,
        id: RequestId,
        positions: Range<usize>,
    ) -> Result<Vec<u32>, TransferError> {
        let Running { request, kv, .. } = self.receiving(id)?;
        let slots = within(&positions, kv.computed..request.tokens.len())?;
        Ok(kv.slots[slots].to_vec())
    }

    fn receive(
        &mut self,
        id: RequestId,
        written: usize,
        output: RemoteOutput,
    ) -> Result<(), TransferError> {
        let vocab_size = self.limits.vocab_size;
        let generated = u64::from(output.sampled.is_some());
        let running = self.receiving(id)?;
        let Running {
            request,
            kv,
            to_cache,
            ..
        } = running;
        within(&(kv.computed..written), kv.computed..request.tokens.len())?;
        request.check_remote(written, &output, vocab_size)?;
        kv.computed = written;
        *to_cache = true;
        let forced = request.output_len();
        request.receive(output);
        self.counters.generated_tokens += generated;
        self.counters.forced_tokens += forced as u64;
        self.finish_ended();
        Ok(())
    }

    fn receiving(&mut self, id: RequestId) -> Result<&mut Running, TransferError> {
        let mut running = self.running.iter_mut();
        let found = running.find(|running| running.request.id == id);
        let found = found.filter(|running| running.request.is_receiving());
        found.ok_or(TransferError::Gone)
    }
}

/// `given`, if it lies within `allowed`.
fn within(given: &Range<usize>, allowed: Range<usize>) -> Result<Range<usize>, TransferError> {
    let ordered = given.start <= given.end;
    match ordered && allowed.start <= given.start && given.end <= allowed.end {
        true => Ok(given.clone()),
        false => Err(TransferError::OutOfRange {
            given: given.clone(),
            allowed,
        }),
    }
}
