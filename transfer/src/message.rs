//! The messages of the KV protocol.

use std::time::Duration;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::error::WireError;
use crate::frame;
use crate::identity::Identity;

/// Version of the protocol. Peers of different versions refuse each other.
pub(crate) const VERSION: u32 = 2;

/// The most bytes of keys and values in one frame. Two of them are the most memory that a room
/// takes on either side.
pub const MAX_PAGES_BYTES: usize = 4 << 20;
/// The bound of any frame: outputs with many log-probabilities may be large, too.
const MAX_FRAME: usize = 64 << 20;
/// The bound of a frame before the peer has proved that it knows the secret.
const MAX_GREETING: usize = 4096;

/// The first message of either side.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub version: u32,
    /// The challenge that the other side has to answer.
    pub nonce: Vec<u8>,
    /// Whether this side has a secret and wants the other side to prove it.
    pub with_secret: bool,
}

/// A decode server asks for a request's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullRequest {
    pub room: u64,
    /// The decode server has the tokens before this position.
    pub from: usize,
    /// Tokens of the prompt, those included that a grammar forces after it.
    pub tokens: usize,
    /// A digest of the token ids: both servers must have made the same prompt of the request.
    pub digest: u64,
}

/// The keys and values of some tokens.
#[derive(Debug, PartialEq, Eq)]
pub struct Pages {
    /// Position of the first token.
    pub from: usize,
    pub tokens: usize,
    pub bytes: Vec<u8>,
}

/// The meaning of a frame. The numbers are the kinds on the wire.
#[derive(Debug)]
pub(crate) enum Message {
    /// 1
    Hello(Hello),
    /// 2: the answer to the other side's challenge.
    Proof(Vec<u8>),
    /// 3: sent after the proofs.
    Identity(Identity),
    /// 4: the sender ends the connection or the room, and says why.
    Fail(String),
    /// 5
    Pull(PullRequest),
    /// 6: the sender is alive and has nothing to send yet.
    Alive,
    /// 7
    Pages(Pages),
    /// 8: the output after the prompt, which ends the pages. Its form is the caller's.
    Output(Vec<u8>),
    /// 9: the decode server has everything.
    Done,
}

/// How far the handshake is, which decides how long a message may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    Stranger,
    Proven,
}

/// Bytes of the positions after the keys and values. They come last so that the receiver need not
/// move the others.
const PAGES_TAIL: usize = 16;

impl Message {
    pub async fn send(
        &self,
        stream: &mut (impl AsyncWrite + Unpin),
        patience: Duration,
    ) -> Result<(), WireError> {
        match self {
            Self::Hello(hello) => frame::write(stream, 1, &[&json(hello)?], patience).await,
            Self::Proof(proof) => frame::write(stream, 2, &[proof], patience).await,
            Self::Identity(identity) => {
                frame::write(stream, 3, &[&json(identity)?], patience).await
            }
            Self::Fail(reason) => frame::write(stream, 4, &[reason.as_bytes()], patience).await,
            Self::Pull(pull) => frame::write(stream, 5, &[&json(pull)?], patience).await,
            Self::Alive => frame::write(stream, 6, &[], patience).await,
            Self::Pages(Pages {
                from,
                tokens,
                bytes,
            }) => {
                let mut tail = [0; PAGES_TAIL];
                tail[..8].copy_from_slice(&(*from as u64).to_le_bytes());
                tail[8..].copy_from_slice(&(*tokens as u64).to_le_bytes());
                frame::write(stream, 7, &[bytes, &tail], patience).await
            }
            Self::Output(output) => frame::write(stream, 8, &[output], patience).await,
            Self::Done => frame::write(stream, 9, &[], patience).await,
        }
    }

    pub async fn receive(
        stream: &mut (impl AsyncRead + Unpin),
        trust: Trust,
        patience: Duration,
    ) -> Result<Self, WireError> {
        let bound = match trust {
            Trust::Stranger => MAX_GREETING,
            Trust::Proven => MAX_FRAME,
        };
        let frame::Frame { kind, mut payload } = frame::read(stream, bound, patience).await?;
        Ok(match kind {
            1 => Self::Hello(parse(&payload)?),
            2 => Self::Proof(payload),
            3 => Self::Identity(parse(&payload)?),
            4 => Self::Fail(String::from_utf8_lossy(&payload).into_owned()),
            5 => Self::Pull(parse(&payload)?),
            6 => Self::Alive,
            7 => {
                let (pages, tail) = payload
                    .split_last_chunk::<PAGES_TAIL>()
                    .ok_or_else(|| WireError::malformed("pages without positions"))?;
                let (from, tokens) = tail.split_at(8);
                let (from, tokens, length) = (position(from)?, position(tokens)?, pages.len());
                payload.truncate(length);
                Self::Pages(Pages {
                    from,
                    tokens,
                    bytes: payload,
                })
            }
            8 => Self::Output(payload),
            9 => Self::Done,
            kind => return Err(WireError::malformed(format!("a message of kind {kind}"))),
        })
    }

    /// The error for a message that has no place here.
    pub fn unexpected(self) -> WireError {
        match self {
            Self::Fail(reason) => WireError::Refused(reason),
            Self::Hello(_) => WireError::malformed("a hello out of order"),
            Self::Proof(_) => WireError::malformed("a proof out of order"),
            Self::Identity(_) => WireError::malformed("an identity out of order"),
            Self::Pull(_) => WireError::malformed("a pull out of order"),
            Self::Alive => WireError::malformed("a sign of life out of order"),
            Self::Pages(_) => WireError::malformed("pages out of order"),
            Self::Output(_) => WireError::malformed("an output out of order"),
            Self::Done => WireError::malformed("an end out of order"),
        }
    }
}

fn json(value: &impl Serialize) -> Result<Vec<u8>, WireError> {
    serde_json::to_vec(value).map_err(WireError::malformed)
}

fn parse<T: DeserializeOwned>(payload: &[u8]) -> Result<T, WireError> {
    serde_json::from_slice(payload).map_err(WireError::malformed)
}

fn position(bytes: &[u8]) -> Result<usize, WireError> {
    let bytes = <[u8; 8]>::try_from(bytes).map_err(WireError::malformed)?;
    usize::try_from(u64::from_le_bytes(bytes)).map_err(WireError::malformed)
}
