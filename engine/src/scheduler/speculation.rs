//! Drafts for the next step, the slots that they need, and what they cost.

use std::time::Duration;

use super::{SCORED_LOGITS, Scheduler};
use crate::batch::StepBatch;
use crate::kv::{Kv, RequestKv};
use crate::running::Running;
use crate::speculation::{CachedText, Speculation, StepCosts, plan};
use crate::stats::EngineStats;

/// A request with more tokens to compute than this is in prefill. Nothing is drafted in a step
/// with prefill: its tokens cost more than those of drafts, and the times of such steps say
/// nothing about drafts.
const LONGEST_DECODE: usize = 16;

/// The share of accepted drafts that is expected before any was drafted.
const FIRST_RATE: f32 = 0.5;

/// New requests expect a share of accepted drafts within these bounds, so that they try.
const LEAST_FIRST_RATE: f32 = 0.2;
const MOST_FIRST_RATE: f32 = 0.8;

/// The weight of one drafted token in the share of all requests.
const WEIGHT: f32 = 0.01;

/// The state that the drafts of all requests share.
#[derive(Debug)]
pub(super) struct SpeculationState {
    config: Option<Speculation>,
    costs: StepCosts,
    /// The share of drafted tokens that requests accepted lately.
    rate: f32,
}

impl SpeculationState {
    pub fn new(config: Option<Speculation>) -> Self {
        Self {
            config,
            costs: StepCosts::new(),
            rate: FIRST_RATE,
        }
    }

    /// Records that the first `accepted` of `drafted` tokens became output.
    pub fn record(&mut self, drafted: usize, accepted: usize, counters: &mut EngineStats) {
        if drafted == 0 {
            return;
        }
        for _ in 0..accepted {
            self.rate += WEIGHT * (1.0 - self.rate);
        }
        if accepted < drafted {
            self.rate -= WEIGHT * self.rate;
        }
        counters.drafts += 1;
        counters.drafted_tokens += drafted as u64;
        counters.accepted_tokens += accepted as u64;
        for count in counters.accepted_at.iter_mut().take(accepted) {
            *count += 1;
        }
    }
}

/// The prefix cache, for the request with these slots.
struct CacheOf<'a> {
    cache: &'a Kv,
    kv: &'a RequestKv,
}

impl CachedText for CacheOf<'_> {
    fn following(&self, namespace: &str, tokens: &[u32], most: usize, following: &mut Vec<u32>) {
        let Self { cache, kv } = self;
        cache.following(kv, namespace, tokens, most, following);
    }
}

impl Scheduler {
    /// Drafts the next tokens of the requests that decode, as far as their rows are expected to
    /// pay, and allocates slots for them. No request is preempted for it.
    pub(super) fn draft(&mut self) {
        let Some(config) = self.speculation.config else {
            return;
        };
        for Running { request, .. } in &mut self.running {
            request.cut_draft(0);
        }
        let Some(rows) = self.decode_rows() else {
            return;
        };
        let logit_rows = SCORED_LOGITS / self.limits.vocab_size;
        let room = self.config.max_batch_tokens.min(logit_rows);
        let mut room = room.saturating_sub(rows);
        let rate = self.speculation.rate;
        let rate = rate.clamp(LEAST_FIRST_RATE, MOST_FIRST_RATE);
        let (mut requests, mut offers) = (Vec::new(), Vec::new());
        for (index, running) in self.running.iter_mut().enumerate() {
            if running.request.is_parked() || running.pending() != 1 || running.request.is_late() {
                continue;
            }
            let Running { request, kv, .. } = running;
            let cache = CacheOf {
                cache: &self.kv,
                kv,
            };
            if let Some(offer) = request.offer_draft(&config, rate, &cache, config.num_tokens) {
                requests.push(index);
                offers.push(offer);
            }
        }
        let planned = match config.adaptive {
            true => plan(rows, &offers, &self.speculation.costs),
            false => offers.iter().map(|offer| offer.tokens).collect(),
        };
        for (index, planned) in requests.into_iter().zip(planned) {
            let Running { request, kv, .. } = &mut self.running[index];
            request.keep_draft(planned);
            request.cut_draft(room);
            let wanted = request.tokens.len() + request.draft().len();
            let missing = wanted.saturating_sub(kv.slots.len());
            if missing > 0 && self.kv.grow(kv, missing).is_err() {
                request.cut_draft(kv.slots.len() - request.tokens.len());
            }
            room -= request.draft().len();
        }
    }

    /// The rows of the next step without drafts; `None` if it is not made of decode rows alone.
    fn decode_rows(&self) -> Option<usize> {
        let mut rows = 0;
        for running in &self.running {
            if running.request.is_parked() || running.request.is_late() {
                continue;
            }
            if running.kv.needs_load() || running.pending() > LONGEST_DECODE {
                return None;
            }
            rows += running.pending();
        }
        Some(rows)
    }

    /// Frees the slots that requests hold for drafts.
    pub(super) fn free_draft_slots(&mut self) {
        for Running { request, kv, .. } in &mut self.running {
            self.kv.trim(kv, request.tokens.len());
        }
    }

    /// Notes how long the step of `batch` took, its sampling included.
    pub fn note_time(&mut self, batch: &StepBatch, took: Duration) {
        let decodes = |grant: &crate::batch::Grant| grant.tokens <= LONGEST_DECODE;
        if self.speculation.config.is_some()
            && batch.loads.is_empty()
            && batch.grants.iter().all(decodes)
        {
            let costs = &mut self.speculation.costs;
            costs.record(batch.tokens(), took.as_secs_f32());
        }
    }
}
