//! How a request leaves the engine.

use crate::request::FinishReason;

#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Finished(FinishReason),
    /// The consumer has all that it needs and reads no more events.
    Satisfied,
    /// The consumer went away and reads no more events.
    Cancelled,
    /// The text says why.
    Failed(String),
    /// The request's own grammar cannot be followed; the text says why.
    Refused(String),
}
