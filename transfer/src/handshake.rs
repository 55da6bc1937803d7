//! The beginning of a connection: versions, the proof of the secret, and identities. Identities
//! come last, so that a stranger learns nothing about the model.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::error::WireError;
use crate::identity::{Identity, compare};
use crate::message::{Hello, Message, Trust, VERSION};
use crate::secret::{SharedSecret, Side, nonce};

/// The first bytes of a connection in either direction, so that something else that listens on
/// the port is recognised as such.
const MAGIC: [u8; 8] = *b"HEARTHKV";

/// One side of a handshake.
pub(crate) struct Handshake<'a> {
    pub side: Side,
    pub identity: &'a Identity,
    pub secret: Option<&'a SharedSecret>,
    pub patience: Duration,
}

impl Handshake<'_> {
    /// Greets the peer on `stream`. Either side finds out by itself why the two do not fit, so
    /// neither depends on a message from a peer that has closed the connection.
    ///
    /// # Errors
    /// The peer is no KV port, has another version or identity, or does not know the secret.
    pub async fn run(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> Result<(), WireError> {
        stream.write_all(&MAGIC).await?;
        let ours = nonce()?;
        let hello = Hello {
            version: VERSION,
            nonce: ours.to_vec(),
            with_secret: self.secret.is_some(),
        };
        Message::Hello(hello).send(stream, self.patience).await?;
        let mut magic = [0; MAGIC.len()];
        let read = tokio::time::timeout(self.patience, stream.read_exact(&mut magic)).await;
        read.map_err(|_| WireError::Silent(self.patience))??;
        if magic != MAGIC {
            return Err(WireError::NoHearth);
        }
        let theirs = match self.receive(stream, Trust::Stranger).await? {
            Message::Hello(hello) => hello,
            other => return Err(other.unexpected()),
        };
        if theirs.version != VERSION {
            return Err(WireError::Version {
                ours: VERSION,
                theirs: theirs.version,
            });
        }
        match (self.secret, theirs.with_secret) {
            (None, true) => return Err(WireError::SecretWanted),
            (Some(_), false) => return Err(WireError::SecretMissing),
            _ => {}
        }
        if let Some(secret) = self.secret {
            // Both sides put the nonce of the prefill server first.
            let (other_side, nonces) = match self.side {
                Side::Prefill => (Side::Decode, [ours.as_slice(), &theirs.nonce]),
                Side::Decode => (Side::Prefill, [theirs.nonce.as_slice(), &ours]),
            };
            let proof = secret.proof(self.side, &nonces);
            Message::Proof(proof).send(stream, self.patience).await?;
            let is_proven = match self.receive(stream, Trust::Stranger).await? {
                Message::Proof(proof) => secret.verifies(other_side, &nonces, &proof),
                _ => false,
            };
            if !is_proven {
                return Err(WireError::Secret);
            }
        }
        let identity = Message::Identity(self.identity.clone());
        identity.send(stream, self.patience).await?;
        let theirs = match self.receive(stream, Trust::Stranger).await? {
            Message::Identity(identity) => identity,
            other => return Err(other.unexpected()),
        };
        match self.side {
            Side::Prefill => compare(self.identity, &theirs)?,
            Side::Decode => compare(&theirs, self.identity)?,
        }
        Ok(())
    }

    async fn receive(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        trust: Trust,
    ) -> Result<Message, WireError> {
        Message::receive(stream, trust, self.patience).await
    }
}
