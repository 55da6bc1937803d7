//! Overlap scheduling: the step after one that is still in flight.

use hearth_forward::SampleRequest;

use super::Scheduler;
use crate::active::NextSample;
use crate::batch::{Grant, SampleKind, StepBatch};
use crate::running::Running;

impl Scheduler {
    /// Fills `batch` with the step after `before`, the only step in flight, and returns the
    /// sample requests of its rows. `None` if that step depends on the output of `before`, or
    /// if it would delay a request that could do something else in it: overlap is for steps in
    /// which all running requests decode and no request can start.
    ///
    /// A request that ends with `before` has one row too many in `batch`. The request leaves
    /// when `before` completes, and the row is [dropped](Self::drop_ended_rows) when `batch`
    /// completes. Its slots may go to another request before that, but that request's first
    /// step is the one after `batch`, which the device begins when `batch` is done: so it
    /// overwrites what the extra row wrote. The cache holds nothing of the extra row, because
    /// only tokens of completed steps are cached.
    pub fn overlap(
        &mut self,
        before: &StepBatch,
        batch: &mut StepBatch,
    ) -> Option<Vec<SampleRequest>> {
        let rows = self.overlap_rows(before)?;
        self.scheduled += 1;
        self.new_token_ratio.relax();
        batch.clear();
        let mut sample_requests = Vec::with_capacity(rows.len());
        for row in rows {
            batch.push_carried(row.request, &mut self.running[row.request], row.before);
            sample_requests.push(row.sample);
        }
        self.allow_copies();
        Some(sample_requests)
    }

    /// The rows of the step after `before`; `None` if that step cannot overlap `before`.
    fn overlap_rows(&mut self, before: &StepBatch) -> Option<Vec<OverlapRow>> {
        let retracts = |every| (self.scheduled + 1).is_multiple_of(every);
        let has_other_work = self.may_start
            || self.waiting.has_parked()
            || self.kv.has_copies()
            || !self.all_rows_have_time()
            || self.config.retract_every.is_some_and(retracts);
        if has_other_work || before.sample_kinds.len() != before.grants.len() {
            return None;
        }
        let mut rows = Vec::with_capacity(before.grants.len());
        let (mut still_running, mut some_end) = (0, false);
        let sampled = before.grants.iter().zip(&before.sample_kinds);
        for (row, (grant, kind)) in sampled.enumerate() {
            if grant.tokens != 1 || *kind != SampleKind::Token {
                return None;
            }
            // A request without a place ended when the step before `before` completed.
            let Some(request) = place_of(&self.running, grant) else {
                continue;
            };
            still_running += 1;
            let Running {
                request: active,
                kv,
                ..
            } = &self.running[request];
            match active.next_sample() {
                NextSample::Unknown => return None,
                NextSample::Nothing => some_end = true,
                // No slot could be reserved for the token.
                NextSample::Request(_) if kv.room() <= active.tokens.len() => return None,
                NextSample::Request(sample) => rows.push(OverlapRow {
                    request,
                    before: row,
                    sample,
                }),
            }
        }
        let others_start = some_end && !self.waiting.is_empty();
        let parked = self.running.iter().filter(|r| r.request.is_parked());
        let all_decode = still_running + parked.count() == self.running.len();
        (all_decode && !rows.is_empty() && !others_start).then_some(rows)
    }

    /// Removes from the completed `batch` the requests that ended when the step before it
    /// completed, and removes their tokens from `sampled`.
    pub fn drop_ended_rows(&self, batch: &mut StepBatch, sampled: Option<&mut Vec<Option<u32>>>) {
        if batch.forward.carried_rows.is_empty() {
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
        keep(&mut batch.sample_kinds, &stays);
        if let Some(sampled) = sampled {
            keep(sampled, &stays);
        }
    }
}

/// The row of a request in an overlapping step.
struct OverlapRow {
    /// Index into the running requests.
    request: usize,
    /// Index into the `sample_rows` of the step before.
    before: usize,
    sample: SampleRequest,
}

/// The current index of the request of `grant`, if it still runs. Requests before it may have
/// left since the batch was made, and new ones are only added at the end.
fn place_of(running: &[Running], grant: &Grant) -> Option<usize> {
    let until = running.len().min(grant.request + 1);
    let is_same = |running: &Running| running.request.id.number() == grant.id;
    running[..until].iter().rposition(is_same)
}
