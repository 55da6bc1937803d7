//! How far the transfer of a request is.

use crate::transfer::Transfer;

/// How far the transfer of a request's keys and values is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The prompt is being computed here.
    Sending,
    /// The prompt and one token have been computed; the slots are held to be read.
    Sent,
    /// Nothing is computed until the other engine's output is here.
    Receiving,
    /// Another engine has no part in it, or no more.
    Local,
}

impl From<Option<Transfer>> for Phase {
    fn from(transfer: Option<Transfer>) -> Self {
        match transfer {
            Some(Transfer::Send) => Self::Sending,
            Some(Transfer::Receive) => Self::Receiving,
            None => Self::Local,
        }
    }
}
