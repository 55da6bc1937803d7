//! A request on a decode server: takes the keys and values of its prompt and its first token from a
//! prefill server.

use std::sync::Arc;

use hearth_engine::{EngineHandle, EngineStopped, Event, Generation, TransferError};
use hearth_otel::KvTransfer;
use hearth_transfer::pull::Received;
use hearth_transfer::{PullRequest, WireError};

use super::measured::Measured;
use super::{DecodeSide, Fallback, output};
use crate::fields::disaggregation::Room;

/// A request whose prompt is computed by a prefill server.
pub(super) struct Receiving {
    engine: EngineHandle,
    /// `None` once the request has failed.
    generation: Option<Generation>,
    side: Arc<DecodeSide>,
    room: Room,
    digest: u64,
    /// Present once the slots are reserved.
    measured: Option<Measured>,
}

/// Why a request was not received.
#[derive(Debug, thiserror::Error)]
enum ReceiveError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("this server cannot take the keys and values: {0}")]
    Engine(#[from] TransferError),
    #[error("the output of the prefill server is not understood: {0}")]
    Output(#[from] serde_json::Error),
    #[error(transparent)]
    Stopped(#[from] EngineStopped),
}

impl Receiving {
    pub fn new(
        engine: EngineHandle,
        generation: Generation,
        side: Arc<DecodeSide>,
        room: Room,
        digest: u64,
    ) -> Self {
        Self {
            engine,
            generation: Some(generation),
            side,
            room,
            digest,
            measured: None,
        }
    }

    /// The measurements of the transfer, once, after it has ended.
    pub fn transferred(&mut self) -> Option<KvTransfer> {
        self.measured.as_mut()?.report()
    }

    pub async fn next(&mut self) -> Option<Event> {
        loop {
            let (from, tokens) = match self.generation.as_mut()?.next().await? {
                Event::Receiving { from, tokens } => (from, tokens),
                event => return Some(event),
            };
            let mut written = from;
            let mut measured = Measured::new(false, self.engine.kv_token_bytes());
            let received = self.receive(from, tokens, &mut written, &mut measured);
            let received = received.await;
            measured.ended(received.as_ref().err().map(ToString::to_string));
            self.measured = Some(measured);
            let Err(error) = received else {
                continue;
            };
            if let ReceiveError::Engine(TransferError::Gone) = error {
                // It was preempted or has ended, and its events say what follows.
                continue;
            }
            let id = self.generation.as_ref()?.transfer_id();
            self.engine.receive_failed(id, written);
            let Room { host, room, .. } = &self.room;
            tracing::warn!(
                host,
                room,
                written,
                tokens,
                "a prompt was not received: {error}"
            );
            if self.side.fallback == Fallback::Fail {
                self.generation = None;
                let text = format!("the prefill server did not deliver the prompt: {error}");
                return Some(Event::Failed(text));
            }
        }
    }

    pub fn stop(self) {
        if let Some(generation) = self.generation {
            generation.stop();
        }
    }

    /// Receives the tokens from position `from` on, and counts those that were written.
    async fn receive(
        &self,
        from: usize,
        tokens: usize,
        written: &mut usize,
        measured: &mut Measured,
    ) -> Result<(), ReceiveError> {
        let Some(generation) = &self.generation else {
            return Ok(());
        };
        let id = generation.transfer_id();
        let request = PullRequest {
            room: self.room.room,
            from,
            tokens,
            digest: self.digest,
        };
        let port = self.room.port.unwrap_or(self.side.bootstrap_port);
        let client = &self.side.client;
        let mut pulling = client.pull(&self.room.host, port, request).await?;
        measured.met();
        let mut received = pulling.next().await?;
        loop {
            match received {
                Received::Pages(pages) => {
                    measured.began();
                    let write = self
                        .engine
                        .write_kv(id, pages.from, pages.tokens, pages.bytes);
                    // The next pages arrive while these are written.
                    let (done, next) = tokio::join!(write.wait(), pulling.next());
                    done??;
                    *written += pages.tokens;
                    measured.moved(pages.tokens);
                    received = next?;
                }
                Received::Output(output) => {
                    let output = output::decode(&output)?;
                    self.engine.received(id, *written, output).wait().await??;
                    // The prefill server frees its slots in any case.
                    let _ = pulling.done().await;
                    return Ok(());
                }
            }
        }
    }
}
