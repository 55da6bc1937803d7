//! Why a forward pass or a copy failed.

use std::error::Error;
use std::fmt;

/// Why an executor did not do what it was asked to. The text reaches the clients whose
/// requests it failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForwardError {
    /// The batch contradicts the model: an index is too large. Nothing was written.
    OutOfRange {
        what: &'static str,
        value: usize,
        bound: usize,
    },
    /// The batch contradicts itself: a list has the wrong length. Nothing was written.
    Length {
        what: &'static str,
        given: usize,
        expected: usize,
    },
    /// The batch contradicts itself: a slot would be written twice. Nothing was written.
    RepeatedSlot { slot: u32 },
    /// The device or its driver failed.
    Device(String),
    /// Any other reason.
    Other(String),
}

impl ForwardError {
    /// An error that is neither the batch's nor the device's fault.
    pub fn other(cause: impl fmt::Display) -> Self {
        Self::Other(cause.to_string())
    }
}

impl fmt::Display for ForwardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange { what, value, bound } => {
                write!(f, "batch: {what} {value} is not below {bound}")
            }
            Self::Length {
                what,
                given,
                expected,
            } => write!(f, "batch: {what} has {given} entries, not {expected}"),
            Self::RepeatedSlot { slot } => write!(f, "batch: slot {slot} is written twice"),
            Self::Device(cause) => write!(f, "the device returned nothing: {cause}"),
            Self::Other(cause) => f.write_str(cause),
        }
    }
}

impl Error for ForwardError {}
