//! The step after one that the device is still at.

use std::time::Instant;

use super::Scheduler;
use crate::active::{Ahead, Running};
use crate::batch::{Asked, Grant, StepBatch};
use crate::executor::Choice;

impl Scheduler {
    /// Fills `batch` with the step after `before`, the only one that the device is at, and
    /// says how its tokens are chosen. `None` where that step depends on what comes of
    /// `before`, or would delay who could do something else in it: it is for when all that
    /// run decode, and nobody can start.
    ///
    /// A request that ends with `before` has a row too many here. It goes when `before` lands,
    /// and the row is [left out](Self::leave_out) when `batch` does. Whoever gets its slots is
    /// in no step before the one after `batch`, which the device begins when `batch` is done: so
    /// it overwrites what that row wrote, and the cache has nothing of it, as it takes only
    /// what has landed.
    pub fn follow(&mut self, before: &StepBatch, batch: &mut StepBatch) -> Option<Vec<Choice>> {
        let rows = self.followers(before)?;
        self.scheduled += 1;
        self.ratio.relax();
        batch.clear();
        let mut choices = Vec::with_capacity(rows.len());
        for (request, row, choice) in rows {
            batch.carry(request, &mut self.running[request], row);
            choices.push(choice);
        }
        self.allow_copies();
        self.in_flight += 1;
        self.batch_made = Instant::now();
        Some(choices)
    }

    /// Who goes on after `before`, at which of its rows, and how.
    fn followers(&mut self, before: &StepBatch) -> Option<Vec<(usize, usize, Choice)>> {
        let retracts = |every| (self.scheduled + 1).is_multiple_of(every);
        let others_first = self.may_start
            || self.waiting.has_followers()
            || self.kv.has_copies()
            || self.config.retract_every.is_some_and(retracts);
        if others_first || before.asked.len() != before.grants.len() {
            return None;
        }
        let mut rows = Vec::with_capacity(before.grants.len());
        let (mut seen, mut some_end) = (0, false);
        for (row, (grant, asked)) in before.grants.iter().zip(&before.asked).enumerate() {
            if grant.tokens != 1 || *asked != Asked::Token {
                return None;
            }
            // Who left when the step before this one landed.
            let Some(request) = place_of(&self.running, grant) else {
                continue;
            };
            seen += 1;
            let Running {
                request: active,
                kv,
                ..
            } = &self.running[request];
            match active.ahead() {
                Ahead::Unknown => return None,
                Ahead::Nothing => some_end = true,
                // There was no slot for it.
                Ahead::Choice(_) if kv.slots.len() <= active.tokens.len() => return None,
                Ahead::Choice(choice) => rows.push((request, row, choice)),
            }
        }
        let starts = some_end && !self.waiting.is_empty();
        let goes_on = seen == self.running.len() && !rows.is_empty() && !starts;
        goes_on.then_some(rows)
    }

    /// Takes those out of `batch`, which is done, who left when the step before it landed, and
    /// what was `chosen` for them.
    pub fn leave_out(&self, batch: &mut StepBatch, chosen: Option<&mut Vec<Option<u32>>>) {
        if batch.forward.carried.is_empty() {
            return;
        }
        let mut stays = Vec::with_capacity(batch.grants.len());
        for grant in &mut batch.grants {
            let place = place_of(&self.running, grant);
            grant.request = place.unwrap_or(usize::MAX);
            stays.push(place.is_some());
        }
        fn keep<T>(values: &mut Vec<T>, stays: &[bool]) {
            let mut stays = stays.iter();
            values.retain(|_| stays.next().is_some_and(|stays| *stays));
        }
        keep(&mut batch.grants, &stays);
        keep(&mut batch.asked, &stays);
        if let Some(chosen) = chosen {
            keep(chosen, &stays);
        }
    }
}

/// Where the request of `grant` is, if it still runs: others may have left before it, and none
/// comes but at the end.
fn place_of(running: &[Running], grant: &Grant) -> Option<usize> {
    let until = running.len().min(grant.request + 1);
    let is_its = |running: &Running| running.request.id.number() == grant.id;
    running[..until].iter().rposition(is_its)
}
