//! The secret that both servers know. It never travels: each side proves it by the HMAC of a
//! number that the other side chose.

use std::fmt;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::error::WireError;

/// Bytes of a challenge.
pub(crate) const NONCE: usize = 32;

#[derive(Clone)]
pub struct SharedSecret(hmac::Key);

impl SharedSecret {
    pub fn new(secret: &str) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()))
    }

    /// The proof of `side` for a connection with the two challenges `nonces`. The side is part
    /// of it, so that a proof cannot be sent back to the server that made it.
    pub(crate) fn proof(&self, side: Side, nonces: &[&[u8]; 2]) -> Vec<u8> {
        hmac::sign(&self.0, &message(side, nonces))
            .as_ref()
            .to_vec()
    }

    pub(crate) fn verifies(&self, side: Side, nonces: &[&[u8]; 2], proof: &[u8]) -> bool {
        hmac::verify(&self.0, &message(side, nonces), proof).is_ok()
    }
}

impl fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedSecret(..)")
    }
}

/// The server that makes a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Prefill,
    Decode,
}

fn message(side: Side, nonces: &[&[u8]; 2]) -> Vec<u8> {
    let side: &[u8] = match side {
        Side::Prefill => b"hearth kv prefill",
        Side::Decode => b"hearth kv decode",
    };
    [side, nonces[0], nonces[1]].concat()
}

/// # Errors
/// The system has no random numbers.
pub(crate) fn nonce() -> Result<[u8; NONCE], WireError> {
    let mut nonce = [0; NONCE];
    let filled = SystemRandom::new().fill(&mut nonce);
    filled.map_err(|_| WireError::malformed("the system gives no random numbers"))?;
    Ok(nonce)
}
