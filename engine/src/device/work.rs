//! The messages between the engine thread and the device thread.

use std::sync::mpsc::Receiver;
use std::time::Instant;

use crate::adapters::AdapterLoad;
use crate::transfer::KvTransfer;
use hearth_forward::{ForwardBatch, ForwardOutput, KvCopy, SampleRequest};

/// The work of one step: reads of slots, copies, writes of slots, loads of adapters, and the forward
/// pass, in this order.
pub(crate) struct StepWork {
    /// The reads and writes, which are replied to from the device thread.
    pub transfers: Vec<KvTransfer>,
    pub copies: Vec<KvCopy>,
    pub adapter_loads: Vec<AdapterLoad>,
    /// A batch without tokens is not run.
    pub forward: ForwardBatch,
    /// The sample requests for all `sample_rows` of `forward`, in one message. It may be sent
    /// after the forward pass has been submitted.
    pub sample_requests: Receiver<Vec<SampleRequest>>,
}

/// What the engine thread tells the device thread.
pub(super) enum Message {
    Submit(Box<StepWork>),
    /// Wait for the oldest step that is not complete, and send its completion.
    Notify,
}

/// The result of a [`StepWork`].
pub(crate) struct Completion {
    pub copied: Result<(), String>,
    pub output: Result<ForwardOutput, String>,
    /// The device is lost, and with it the contents of all slots. Every step in flight
    /// completes then.
    pub lost: bool,
    /// The device was lost while it carried out this step.
    pub lost_here: bool,
    /// The work itself, whose buffers are reused.
    pub work: StepWork,
    pub at: Instant,
}
