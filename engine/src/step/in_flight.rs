//! The steps that have been submitted to the device and have not completed.

use std::collections::VecDeque;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use hearth_forward::{ForwardOutput, SampleRequest};

use crate::batch::StepBatch;
use crate::device::{Completion, Device, StepWork};
use crate::scheduler::DeviceIs;

/// The steps in flight: none, one, or with overlap scheduling one and the step after it.
pub(super) struct InFlight {
    /// Oldest first. They are dropped before the device, which waits for its thread, which may
    /// wait for sample requests.
    steps: VecDeque<SubmittedStep>,
    device: Device,
    /// Whether the device was asked to notify when the oldest step is complete.
    notify_requested: bool,
    /// The batches that are not in flight, of two.
    spare: Vec<StepBatch>,
    /// When the latest completed step was complete.
    completed: Instant,
}

struct SubmittedStep {
    /// The batch; its `copies` and `forward` are with the device.
    batch: StepBatch,
    /// When the engine began to schedule the step.
    started: Instant,
    /// When the device got the step.
    submitted: Instant,
    /// Where the sample requests go; `None` once they have been sent.
    sample_requests: Option<Sender<Vec<SampleRequest>>>,
}

/// A step that the device has completed.
pub(super) struct CompletedStep {
    pub batch: StepBatch,
    pub copied: Result<(), String>,
    pub output: Result<ForwardOutput, String>,
    /// Whether the device is lost. All other steps in flight complete then, too.
    pub lost: bool,
    /// The device was lost while it carried out this step.
    pub lost_here: bool,
    /// When the step began, which is no earlier than the completion of the step before it.
    pub started: Instant,
    /// When the device could begin the step: when it had been submitted and the step before it
    /// was complete.
    pub submitted: Instant,
    pub completed: Instant,
}

impl InFlight {
    pub fn new(device: Device) -> Self {
        let batch = |table| StepBatch::new(device.samples_on_device, table);
        Self {
            steps: VecDeque::new(),
            notify_requested: false,
            // Without overlap scheduling, only the last of them is used.
            spare: vec![batch(1), batch(0)],
            completed: Instant::now(),
            device,
        }
    }

    pub fn len(&self) -> usize {
        self.steps.len()
    }

    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    pub fn device(&self) -> DeviceIs {
        match self.is_empty() {
            true => DeviceIs::Idle,
            false => DeviceIs::Busy,
        }
    }

    pub fn samples_on_device(&self) -> bool {
        self.device.samples_on_device
    }

    /// A batch to fill; `None` if two steps are in flight.
    pub fn take_spare(&mut self) -> Option<StepBatch> {
        self.spare.pop()
    }

    pub fn put_spare(&mut self, batch: StepBatch) {
        self.spare.push(batch);
    }

    /// Submits a step, whose sample requests follow in [`Self::send_sample_requests`].
    pub fn submit(&mut self, mut batch: StepBatch, started: Instant) {
        let (sender, sample_requests) = channel();
        let submitted = Instant::now();
        self.device.submit(StepWork {
            transfers: std::mem::take(&mut batch.transfers),
            copies: std::mem::take(&mut batch.copies),
            adapter_loads: batch.adapter_loads.clone(),
            forward: std::mem::take(&mut batch.forward),
            sample_requests,
        });
        self.steps.push_back(SubmittedStep {
            batch,
            started,
            submitted,
            sample_requests: Some(sender),
        });
    }

    /// The batch of the latest step, if its sample requests have not been sent.
    pub fn batch_without_sample_requests(&mut self) -> Option<&mut StepBatch> {
        let latest = self.steps.back_mut()?;
        let is_sent = latest.sample_requests.is_none();
        (!is_sent).then_some(&mut latest.batch)
    }

    /// Sends the sample requests of the latest step.
    pub fn send_sample_requests(&mut self, requests: Vec<SampleRequest>) {
        let latest = self.steps.back_mut();
        if let Some(sender) = latest.and_then(|latest| latest.sample_requests.take()) {
            // A device that failed before it asked for them needs none.
            let _ = sender.send(requests);
        }
    }

    /// Whether another step may be submitted before the one in flight is complete.
    pub fn can_overlap(&self) -> bool {
        self.device.samples_on_device && !self.notify_requested
    }

    /// The batch of the oldest step.
    ///
    /// # Panics
    /// If no step is in flight.
    pub fn oldest_batch(&self) -> &StepBatch {
        &self.steps[0].batch
    }

    /// Has the device notify the inbox when the oldest step is complete.
    pub fn notify(&mut self) {
        if !self.notify_requested {
            self.device.notify();
            self.notify_requested = true;
        }
    }

    /// Receives the oldest step from the device, which has completed it.
    pub fn complete(&mut self) -> CompletedStep {
        self.notify_requested = false;
        let Completion {
            copied,
            output,
            lost,
            lost_here,
            work,
            at,
        } = self.device.receive();
        let step = self.steps.pop_front();
        let step = step.expect("a step that completes was submitted");
        let mut batch = step.batch;
        (batch.copies, batch.forward) = (work.copies, work.forward);
        let before = std::mem::replace(&mut self.completed, at);
        CompletedStep {
            batch,
            copied,
            output,
            lost,
            lost_here,
            started: step.started.max(before),
            submitted: step.submitted.max(before),
            completed: at,
        }
    }
}
