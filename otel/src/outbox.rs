//! Steps on their way from the engine's thread to the telemetry thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::mailbox::Sender;
use crate::records::StepRecord;

/// Passes the engine's steps on. It never waits.
pub struct StepOutbox {
    /// `None` without a model.
    sender: Option<Sender>,
    /// Counts the steps that the telemetry thread had no room for.
    dropped: Arc<AtomicU64>,
}

impl StepOutbox {
    pub(crate) fn new(sender: Option<Sender>, dropped: Arc<AtomicU64>) -> Self {
        Self { sender, dropped }
    }

    /// Passes `steps` on together. Each call takes a lock and may wake the telemetry thread.
    pub fn send(&self, steps: impl ExactSizeIterator<Item = StepRecord>) {
        let count = steps.len() as u64;
        if let Some(sender) = &self.sender
            && count > 0
            && !sender.send_steps(steps)
        {
            self.dropped.fetch_add(count, Ordering::Relaxed);
        }
    }
}
