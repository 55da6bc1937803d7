//! Ends that come from outside: consumers that go away, aborts, the end of the engine.

use std::collections::HashMap;

use super::Scheduler;
use crate::active::{ActiveRequest, Outcome, Running};
use crate::command::AbortTarget;
use crate::inbox::{RequestId, Withdrawal};
use crate::request::FinishReason;

impl Scheduler {
    /// Ends requests whose consumers want no more, those of them that are still here.
    pub fn withdraw(&mut self, withdrawn: &[(RequestId, Withdrawal)]) {
        let mut from_running = HashMap::new();
        for &(id, why) in withdrawn {
            let outcome = match why {
                Withdrawal::Cancelled => Outcome::Cancelled,
                Withdrawal::Satisfied => Outcome::Satisfied,
            };
            match self.waiting.remove(id) {
                Some(request) => self.bid_farewell(request, outcome),
                None => drop(from_running.insert(id, outcome)),
            }
        }
        if !from_running.is_empty() {
            for Running { request, .. } in &mut self.running {
                let withdrawn = from_running.remove(&request.id);
                request.outcome = request.outcome.take().or(withdrawn);
            }
            // Who is in a batch that the device is at leaves when one is done.
            if self.in_flight == 0 {
                self.part();
            }
        }
    }

    /// Ends all requests, telling their consumers.
    pub fn cancel_all(&mut self) {
        self.end_where(|_| Some(Outcome::Finished(FinishReason::Cancelled)));
    }

    /// Ends those of the requests before `before` that `target` names, telling
    /// their consumers; returns how many.
    pub fn abort(&mut self, target: &AbortTarget, before: RequestId) -> usize {
        let ended = self.farewells.len();
        let aborted = Outcome::Finished(FinishReason::Aborted);
        for id in self.waiting.meant_by(target) {
            if id < before
                && let Some(request) = self.waiting.remove(id)
            {
                self.bid_farewell(request, aborted.clone());
            }
        }
        for Running { request, .. } in &mut self.running {
            if request.id < before && target.matches(request.name.as_deref()) {
                request.outcome = Some(aborted.clone());
            }
        }
        self.retire_done();
        self.farewells.len() - ended
    }

    pub fn abort_all(&mut self) {
        self.end_where(|_| Some(Outcome::Finished(FinishReason::Aborted)));
    }

    fn end_where(&mut self, outcome: impl Fn(&ActiveRequest) -> Option<Outcome>) {
        let waiting = self.waiting.iter();
        let ending: Vec<_> = waiting
            .filter_map(|request| Some((request.id, outcome(request)?)))
            .collect();
        for (id, outcome) in ending {
            if let Some(request) = self.waiting.remove(id) {
                self.bid_farewell(request, outcome);
            }
        }
        for Running { request, .. } in &mut self.running {
            request.outcome = outcome(request);
        }
        self.retire_done();
    }
}
