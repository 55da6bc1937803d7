//! Steps on their way from the engine's thread to the telemetry thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::mailbox::{Message, Sender};
use crate::records::StepRecord;

/// Steps that are sent together. Sending costs a lock, which is most of what one record costs the
/// engine's thread.
const STEPS: usize = 64;
/// The longest time between the ends of steps that are sent together.
const GATHER: Duration = Duration::from_millis(10);

/// Gathers steps, and sends them when there are many, when the first one is old, and when the engine
/// is about to be idle. Dropping it sends what is left.
pub struct Outbox {
    /// `None` without a model.
    sender: Option<Sender>,
    dropped: Arc<AtomicU64>,
    /// True if a step is sent at once, because the end of its request must not overtake it.
    at_once: bool,
    gathered: Vec<StepRecord>,
}

impl Outbox {
    /// `dropped` counts the steps that the telemetry thread had no room for.
    pub fn new(sender: Option<Sender>, dropped: Arc<AtomicU64>, at_once: bool) -> Self {
        Self {
            sender,
            dropped,
            at_once,
            gathered: Vec::new(),
        }
    }

    pub fn record(&mut self, step: StepRecord) {
        let idle = step.running + step.waiting == 0;
        let now = step.finished;
        if self.gathered.capacity() == 0 && !self.at_once {
            self.gathered.reserve_exact(STEPS);
        }
        self.gathered.push(step);
        let first = self.gathered.first().map_or(now, |first| first.finished);
        let old = now.saturating_duration_since(first) >= GATHER;
        if idle || old || self.at_once || self.gathered.len() >= STEPS {
            self.send();
        }
    }

    fn send(&mut self) {
        let steps = std::mem::take(&mut self.gathered);
        let count = steps.len() as u64;
        if let Some(sender) = &self.sender
            && count > 0
            && !sender.send(Message::Steps(steps))
        {
            self.dropped.fetch_add(count, Ordering::Relaxed);
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.send();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::mailbox::mailbox;

    fn step(finished: Instant, running: usize) -> StepRecord {
        StepRecord {
            started: finished,
            scheduled: finished,
            forwarded: finished,
            finished,
            tokens: 1,
            prefill_rows: 0,
            prefill_tokens: 0,
            decode_rows: 1,
            started_requests: 0,
            queried_tokens: 0,
            cached_tokens: 0,
            running,
            waiting: 0,
            kv_used: 0,
            kv_usage: 0.0,
            failed: false,
            requests: Vec::new(),
        }
    }

    #[test]
    fn steps_are_sent_together_and_none_is_kept_by_an_idle_engine() {
        let (sender, receiver) = mailbox();
        let arrived = || {
            let mut taken = Vec::new();
            receiver.receive(Instant::now(), &mut taken);
            let sizes = taken.into_iter().map(|message| match message {
                Message::Steps(steps) => steps.len(),
                other => panic!("{other:?}"),
            });
            sizes.collect::<Vec<_>>()
        };
        let mut outbox = Outbox::new(Some(sender.clone()), Arc::default(), false);
        let start = Instant::now();
        let at = |microseconds| start + Duration::from_micros(microseconds);
        for i in 0..STEPS as u64 + 3 {
            outbox.record(step(at(i), 1));
        }
        assert_eq!(arrived(), [STEPS], "three more are kept");
        outbox.record(step(at(20_000), 1));
        assert_eq!(arrived(), [4], "the first one was old");
        outbox.record(step(at(20_001), 0));
        assert_eq!(arrived(), [1], "no request is left");
        outbox.record(step(at(20_002), 1));
        drop(outbox);
        assert_eq!(arrived(), [1], "nothing is lost");
        let mut outbox = Outbox::new(Some(sender), Arc::default(), true);
        outbox.record(step(at(20_003), 1));
        assert_eq!(arrived(), [1]);
    }
}
