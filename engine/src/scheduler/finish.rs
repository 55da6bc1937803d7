//! Requests that end: because they are done, because their consumers went away, by an abort,
//! or with the engine.

use std::collections::HashMap;

use super::{DeviceIs, Scheduler};
use crate::active::{ActiveRequest, Outcome};
use crate::command::AbortTarget;
use crate::inbox::Withdrawal;
use crate::request::FinishReason;
use crate::request_id::RequestId;
use crate::running::Running;

impl Scheduler {
    /// Ends requests whose consumers need no more events, if they have not ended already.
    pub fn withdraw(&mut self, withdrawn: &[(RequestId, Withdrawal)], device: DeviceIs) {
        let mut from_running = HashMap::new();
        for &(id, why) in withdrawn {
            let outcome = match why {
                Withdrawal::Cancelled => Outcome::Cancelled,
                Withdrawal::Satisfied => Outcome::Satisfied,
            };
            match self.waiting.remove(id) {
                Some(request) => self.finish(request, outcome),
                None => drop(from_running.insert(id, outcome)),
            }
        }
        if !from_running.is_empty() {
            for Running { request, .. } in &mut self.running {
                let withdrawn = from_running.remove(&request.id);
                request.outcome = request.outcome.take().or(withdrawn);
            }
            if device == DeviceIs::Idle {
                self.remove_ended();
            }
        }
    }

    /// Ends all requests with [`FinishReason::Cancelled`].
    pub fn cancel_all(&mut self) {
        self.finish_all(&Outcome::Finished(FinishReason::Cancelled));
    }

    /// Ends all requests with [`FinishReason::Aborted`].
    pub fn abort_all(&mut self) {
        self.finish_all(&Outcome::Finished(FinishReason::Aborted));
    }

    /// Ends the requests that `target` names, of those that arrived before the request
    /// `before`, with [`FinishReason::Aborted`]. Returns how many there were.
    pub fn abort(&mut self, target: &AbortTarget, before: RequestId) -> usize {
        let events_before = self.final_events.len();
        let aborted = Outcome::Finished(FinishReason::Aborted);
        for id in self.waiting.named_by(target) {
            if id < before
                && let Some(request) = self.waiting.remove(id)
            {
                self.finish(request, aborted.clone());
            }
        }
        for Running { request, .. } in &mut self.running {
            if request.id < before && target.matches(request.name.as_deref()) {
                request.outcome = Some(aborted.clone());
            }
        }
        self.finish_ended();
        self.final_events.len() - events_before
    }

    fn finish_all(&mut self, outcome: &Outcome) {
        let waiting: Vec<_> = self.waiting.iter().map(|request| request.id).collect();
        for id in waiting {
            if let Some(request) = self.waiting.remove(id) {
                self.finish(request, outcome.clone());
            }
        }
        for Running { request, .. } in &mut self.running {
            request.outcome = Some(outcome.clone());
        }
        self.finish_ended();
    }

    /// Moves the requests with an outcome from `running` to `ended`.
    pub(super) fn remove_ended(&mut self) {
        let has_outcome = |running: &mut Running| running.request.outcome.is_some();
        let before = self.ended.len();
        self.ended.extend(self.running.extract_if(.., has_outcome));
        for ended in &self.ended[before..] {
            self.adapters.release(ended.adapter_slot);
        }
        self.may_start |= self.ended.len() > before;
    }

    /// As [`remove_ended`](Self::remove_ended), and frees the slots of these requests at once.
    pub(super) fn finish_ended(&mut self) {
        self.remove_ended();
        self.flush_step();
    }

    /// Counts the end of a request, and keeps its final event until it may be sent.
    pub(super) fn finish(&mut self, request: ActiveRequest, outcome: Outcome) {
        *match outcome {
            Outcome::Finished(FinishReason::Cancelled | FinishReason::Aborted)
            | Outcome::Cancelled => &mut self.counters.cancelled,
            Outcome::Finished(_) | Outcome::Satisfied => &mut self.counters.finished,
            Outcome::Failed(_) | Outcome::Refused(_) => &mut self.counters.failed,
        } += 1;
        self.final_events.extend(request.finish(outcome));
    }
}
