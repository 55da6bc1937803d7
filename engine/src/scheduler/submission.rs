//! The time of the next step, as measured: the rows that fit into it, and the loss of a device that a
//! step may have taken too long for.

use std::time::Duration;

use super::Scheduler;
use crate::batch::StepBatch;

/// The part of the time of a step that decode rows may take beside prompts.
const ROWS_BESIDE_PROMPTS: f32 = 0.5;

impl Scheduler {
    /// The indices of the requests whose decode rows do not fit into the time of the next step. They
    /// take turns, and at least one row fits.
    pub(super) fn rows_without_time(&mut self) -> Vec<usize> {
        let time = &self.submission_time;
        if !time.is_bounded() {
            return Vec::new();
        }
        let mut rows = Vec::new();
        let mut prompts = false;
        for (index, running) in self.running.iter().enumerate() {
            let request = &running.request;
            if request.is_parked() || request.is_late() || running.kv.needs_load() {
                continue;
            }
            match running.pending() {
                1 => {
                    let cost = time.cost(running.kv.computed, 1 + request.draft().len());
                    rows.push((request.id.number(), index, cost));
                }
                _ => prompts = true,
            }
        }
        let allowed = match prompts {
            true => time.for_tokens() * ROWS_BESIDE_PROMPTS,
            false => time.for_tokens(),
        };
        let mut taken: f32 = rows.iter().map(|(.., cost)| cost).sum();
        if taken <= allowed {
            return Vec::new();
        }
        rows.sort_unstable_by_key(|&(id, ..)| (id < self.first_row, id));
        let mut left_out = Vec::new();
        while let [_, .., last] = rows[..]
            && taken > allowed
        {
            let (id, index, cost) = last;
            left_out.push(index);
            self.first_row = id;
            taken -= cost;
            rows.pop();
        }
        left_out
    }

    /// True if one more decode row of each request fits into the time of a step.
    pub(super) fn all_rows_have_time(&self) -> bool {
        let time = &self.submission_time;
        let costs = self
            .running
            .iter()
            .map(|running| time.cost(running.kv.computed, 1));
        !time.is_bounded() || costs.sum::<f32>() <= time.for_tokens()
    }

    /// Notes that the device took the time `took` for the forward pass of `batch`.
    pub fn note_submission(&mut self, batch: &StepBatch, took: Duration) {
        self.submission_time.record(&batch.forward.sequences, took);
    }

    /// Notes that the device was lost `took` after it got `batch`.
    pub fn note_loss(&mut self, batch: &StepBatch, took: Duration) {
        let tokens = batch.tokens();
        let next = self.submission_time.note_loss(&batch.forward.sequences);
        let most_tokens = (next < usize::MAX).then_some(next);
        tracing::warn!(
            tokens,
            took_ms = took.as_millis() as u64,
            prompt_tokens_from_now_on = most_tokens,
            "the device was lost with a forward pass: the next ones are shorter"
        );
    }
}
