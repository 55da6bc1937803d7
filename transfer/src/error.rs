//! Why a transfer failed.

use std::io;
use std::time::Duration;

use crate::identity::Mismatch;

/// Why a transfer failed. The text may reach the client of the request.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error("the connection to the other server failed: {0}")]
    Io(#[from] io::Error),
    #[error("the other server sent nothing for {} s", .0.as_secs_f32())]
    Silent(Duration),
    #[error("a message of {given} bytes is longer than the {bound} bytes allowed")]
    TooLong { given: usize, bound: usize },
    #[error("the checksum of a message is {given:08x}, not {computed:08x}")]
    Checksum { given: u32, computed: u32 },
    #[error("a message is not understood: {0}")]
    Malformed(String),
    #[error("the other server is no KV port of Hearth")]
    NoHearth,
    #[error("the other server speaks version {theirs} of the KV protocol, this one version {ours}")]
    Version { ours: u32, theirs: u32 },
    #[error(transparent)]
    Identity(#[from] Mismatch),
    #[error("the other server has another secret (--disaggregation-secret)")]
    Secret,
    #[error("the other server was started without a secret (--disaggregation-secret)")]
    SecretMissing,
    #[error("the other server asks for a secret (--disaggregation-secret)")]
    SecretWanted,
    #[error("no request with room {0} is waiting for a second peer")]
    RoomTaken(u64),
    #[error("the other server gave up: {0}")]
    Refused(String),
    #[error("the bootstrap server at {address}: {reason}")]
    Bootstrap { address: String, reason: String },
}

impl WireError {
    pub(crate) fn malformed(what: impl std::fmt::Display) -> Self {
        Self::Malformed(what.to_string())
    }
}
