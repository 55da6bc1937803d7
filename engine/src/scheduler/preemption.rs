//! Slots for the next tokens, and which requests are preempted when there are too few.

use std::cmp::Reverse;

use super::Scheduler;
use crate::running::Running;

/// Tokens of the prompt that started first for which there are always window slots, so that it
/// completes.
const LEAST_OF_A_PROMPT: usize = 16;

impl Scheduler {
    /// Gives every decoding request the slots for its next tokens (several where a grammar
    /// forced some), and preempts requests while there are too few slots. Returns whether none
    /// was preempted.
    pub(super) fn make_room_to_decode(&mut self) -> bool {
        if self.running.is_empty() {
            self.new_token_ratio.reset();
            return true;
        }
        let preemptions = self.counters.preemptions;
        let missing = |running: &Running| {
            if running.request.is_parked() {
                return 0;
            }
            let slots = running.kv.slots.len();
            running.request.tokens.len().saturating_sub(slots)
        };
        let mut wanted: usize = self.running.iter().map(missing).sum();
        if wanted > self.kv.usage().available() {
            // The slots of ended requests may suffice.
            self.flush_step();
        }
        if wanted > self.kv.usage().available() {
            self.free_draft_slots();
        }
        self.make_room_in_windows();
        wanted = self.running.iter().map(missing).sum();
        while wanted > self.kv.usage().available() {
            let victim = self.victim().expect("a request that misses slots runs");
            wanted -= missing(&self.running[victim]);
            self.preempt(victim);
        }
        for running in &mut self.running {
            let missing = missing(running);
            if missing > 0 {
                self.kv
                    .grow(&mut running.kv, missing)
                    .expect("there is room for all missing slots");
            }
        }
        let least = self.least_windows();
        for (running, tokens) in self.running.iter_mut().zip(least) {
            self.kv
                .grow_window(&mut running.kv, tokens)
                .expect("there is room in all windows");
        }
        let none_preempted = preemptions == self.counters.preemptions;
        if none_preempted {
            self.new_token_ratio.relax()
        } else {
            self.new_token_ratio.reset()
        }
        none_preempted
    }

    /// Frees window slots of ended requests and of drafts, and preempts requests, while there are too
    /// few for the next tokens of all that decode and for a few of the first prompt.
    fn make_room_in_windows(&mut self) {
        let is_short = |scheduler: &mut Self| {
            let least = scheduler.least_windows();
            let requests = scheduler.running.iter().zip(least);
            let missing = requests.map(|(running, tokens)| running.kv.missing_window(tokens));
            missing.sum::<usize>() > scheduler.kv.window_usage().available()
        };
        if is_short(self) {
            self.flush_step();
        }
        if is_short(self) {
            self.free_draft_slots();
        }
        while is_short(self) {
            let victim = self.victim().expect("a request that misses slots runs");
            self.preempt(victim);
        }
    }

    /// For each running request, how many of its first positions must have window slots in the next
    /// step.
    fn least_windows(&self) -> Vec<usize> {
        if !self.kv.has_windows() {
            return Vec::new();
        }
        let mut of_a_prompt = LEAST_OF_A_PROMPT;
        let least = self.running.iter().map(|running| match running.pending() {
            _ if running.request.is_parked() || running.request.is_late() => 0,
            1 => running.request.tokens.len(),
            pending => running.kv.computed + pending.min(std::mem::take(&mut of_a_prompt)),
        });
        least.collect()
    }

    /// The request to preempt: of those with the lowest priority one that only holds slots, or
    /// else the one that started last, because it has the least to compute again.
    pub(super) fn victim(&self) -> Option<usize> {
        (0..self.running.len()).min_by_key(|&i| {
            let request = &self.running[i].request;
            (request.priority, !request.is_parked(), Reverse(i))
        })
    }

    /// Sends a running request back to the queue. Its computed tokens stay cached until the
    /// room is needed, and it keeps its output so far.
    pub(super) fn preempt(&mut self, index: usize) {
        let mut running = self.running.remove(index);
        self.cache(&mut running);
        self.adapters.release(running.adapter_slot);
        let Running {
            mut request, kv, ..
        } = running;
        let computed = kv.computed;
        self.kv.release(kv);
        self.speculation.end(request.id);
        self.counters.preemptions += 1;
        self.may_start = true;
        request.preempted(computed);
        match request.outcome.take() {
            None => self.waiting.put_back(request),
            Some(outcome) => self.finish(request, outcome),
        }
    }

    /// Sends running requests back to the queue, except the `keep` that have run longest.
    pub(super) fn retract(&mut self, keep: usize) {
        while self.running.len() > keep {
            self.preempt(self.running.len() - 1);
        }
    }

    /// Sends all running requests back to the queue.
    pub fn retract_all(&mut self) {
        self.retract(0);
    }

    /// Allocates the slots of the tokens that are sampled next, so that the device need not
    /// wait for the evictions that this takes. No request is preempted for it.
    pub(super) fn reserve_next_slots(&mut self) {
        for Running { request, kv, .. } in &mut self.running {
            let has_slot = kv.slots.len() > request.tokens.len();
            let decodes = request.outcome.is_none() && !request.is_parked();
            if decodes && request.remaining() > 1 && !has_slot {
                // If there is no slot, `make_room_to_decode` preempts for it after this step.
                let _ = self.kv.grow(kv, 1);
            }
            // During prefill, slots are allocated for one chunk after another.
            if decodes && request.remaining() > 1 && kv.missing_window(request.tokens.len()) == 0 {
                let _ = self.kv.grow_window(kv, request.tokens.len() + 1);
            }
        }
    }
}
