//! A loaded model, whatever the device.

use hearth_forward::{Executor, ForwardError, ForwardOutput};

use crate::report::Report;

/// A forward pass that was handed to the device. Calling it waits for the device and returns
/// the output.
pub type Submission = Box<dyn FnOnce() -> Result<ForwardOutput, ForwardError>>;

/// A loaded model: an [`Executor`] that also says what it is and whether its device still works.
///
/// It is not `Send`, because a device's queue belongs to the thread that opened it.
pub trait Decoder: Executor<Submission = Submission> {
    fn report(&self) -> &Report;

    /// Bytes that a GPU's memory pool has reserved on the device, weights and KV pool included;
    /// `None` on the CPU.
    fn reserved_bytes(&self) -> Option<u64>;

    /// True if the device still computes, which a small sum with a known result tells. To be
    /// asked after a failed forward pass, because a driver that was reset stays lost until the
    /// device is opened again.
    fn is_alive(&mut self) -> bool;
}
