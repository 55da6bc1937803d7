//! The messages from callers to the engine thread.

use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use crate::command::{Command, Look};
use crate::request::{Event, Request};
use crate::request_id::RequestId;

/// An accepted request on its way to the engine thread.
#[derive(Debug)]
pub(crate) struct NewRequest {
    pub id: RequestId,
    pub request: Request,
    pub events: UnboundedSender<Event>,
    /// When it was accepted.
    pub queued: Instant,
}

/// Why a consumer needs no more of its request's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Withdrawal {
    /// The consumer went away.
    Cancelled,
    /// The consumer has all that it needs.
    Satisfied,
}

/// Whether the engine accepts requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    /// No new request is accepted; the accepted ones may continue until the deadline.
    Closing {
        deadline: Option<Instant>,
    },
    /// The engine thread has ended.
    Stopped,
}

/// What the engine thread waits for when it collects its mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// For nothing: it has work.
    No,
    /// For any mail: it has nothing to do.
    ForMail,
    /// For the completion of a step, or for new requests and withdrawals, which it can take in
    /// while the device computes. `in_flight` steps have been submitted and have not
    /// completed: one, or two with overlap scheduling.
    ForStep { in_flight: usize },
}

/// Everything that arrived since the engine thread last collected its mail.
#[derive(Debug)]
pub(crate) struct Mail {
    /// The device has completed the oldest step in flight.
    pub step_completed: bool,
    /// New requests in the order of their arrival; a bounded number of them.
    pub requests: Vec<NewRequest>,
    pub withdrawn: Vec<(RequestId, Withdrawal)>,
    /// Commands in the order in which they were given. They are held back while a step is in
    /// flight, and until the requests that arrived before them have been taken.
    pub commands: Vec<Command>,
    /// Looks, which may be answered at any time.
    pub looks: Vec<Look>,
    /// Whether commands are held back.
    pub commands_wait: bool,
    pub phase: Phase,
    /// True if a caller keeps the engine thread alive.
    pub is_held: bool,
}
