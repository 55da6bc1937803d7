//! Room for what is generated, and who gives way when there is too little.

use std::cmp::Reverse;

use super::Scheduler;
use crate::active::Running;

impl Scheduler {
    /// Gives every decoding request the slots for its next tokens (several where a
    /// grammar forced some), and preempts others while there are too few. Returns whether none had to go.
    pub(super) fn make_room_to_decode(&mut self) -> bool {
        if self.running.is_empty() {
            self.ratio.reset();
            return true;
        }
        let preempted = self.counters.preemptions;
        let short = |running: &Running| {
            let slots = running.kv.slots.len();
            running.request.tokens.len().saturating_sub(slots)
        };
        let mut wanted: usize = self.running.iter().map(short).sum();
        if wanted > self.kv.usage().available() {
            // Those who leave may have enough.
            self.settle();
        }
        while wanted > self.kv.usage().available() {
            let victim = self.victim().expect("whoever wants a slot runs");
            wanted -= short(&self.running[victim]);
            self.preempt(victim);
        }
        for running in &mut self.running {
            let missing = short(running);
            if missing > 0 {
                self.kv
                    .grow(&mut running.kv, missing)
                    .expect("room was made");
            }
        }
        let all_stayed = preempted == self.counters.preemptions;
        if all_stayed {
            self.ratio.relax()
        } else {
            self.ratio.reset()
        }
        all_stayed
    }

    /// Who gives way: the lowest priority, and of those who started last, as it has
    /// least to compute again.
    pub(super) fn victim(&self) -> Option<usize> {
        (0..self.running.len()).min_by_key(|&i| (self.running[i].request.priority, Reverse(i)))
    }

    /// Back to the queue. What it computed stays cached for as long as nobody needs
    /// the room, and its output so far stays with it.
    pub(super) fn preempt(&mut self, index: usize) {
        let mut running = self.running.remove(index);
        self.checkpoint(&mut running);
        let Running {
            mut request, kv, ..
        } = running;
        self.kv.release(kv);
        self.counters.preemptions += 1;
        request.preempted();
        self.waiting.put_back(request);
        self.may_start = true;
    }

    /// Sends running requests back to the queue, but the `keep` that run longest.
    pub(super) fn retract(&mut self, keep: usize) {
        while self.running.len() > keep {
            self.preempt(self.running.len() - 1);
        }
    }

    /// Sends all running requests back to the queue.
    pub fn retract_all(&mut self) {
        self.retract(0);
    }

    /// Gets the slots of the tokens that the device chooses next, so that it need not wait for what
    /// has to be evicted for them. Nobody has to give way for it.
    pub(super) fn reserve(&mut self) {
        for Running { request, kv, .. } in &mut self.running {
            let has_its_own = kv.slots.len() > request.tokens.len();
            if request.outcome.is_none() && request.remaining() > 1 && !has_its_own {
                // If there is none, it is seen to when the device is done.
                let _ = self.kv.grow(kv, 1);
            }
        }
    }
}
