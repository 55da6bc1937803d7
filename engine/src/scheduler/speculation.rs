//! Drafts for the next step, the slots that they need, and what they cost.

use std::time::{Duration, Instant};

use super::{SCORED_LOGITS, Scheduler};
use crate::batch::StepBatch;
use crate::kv::{Kv, RequestKv};
use crate::request_id::RequestId;
use crate::running::Running;
use crate::speculation::{
    CachedText, DraftMethod, DraftModel, FirstRates, ModelDrafter, Offer, Speculation, StepCosts,
    StepTime, Wish, plan,
};
use crate::stats::{EngineStats, KvStats};

/// A request with more tokens to compute than this is in prefill.
const LONGEST_DECODE: usize = 16;

/// The share of accepted drafts that is expected before any was drafted.
const FIRST_RATE: f32 = 0.5;

/// New requests expect a share of accepted drafts within these bounds, so that they try.
const LEAST_FIRST_RATE: f32 = 0.2;
const MOST_FIRST_RATE: f32 = 0.8;

/// The weight of one drafted token in the share of all requests.
const WEIGHT: f32 = 0.01;

/// Drafts take at most one of this many tokens of a step from prompts.
const TAKEN_FROM_PROMPTS: usize = 8;

/// The weight of the latest step with prefill in the time of a row.
const PREFILL_WEIGHT: f32 = 0.25;

/// The share of the time of steps that the draft model may take for drafts that are not expected
/// to pay, but show whether they do; and the most seconds that are saved up for it.
const TRIAL_SHARE: f32 = 0.01;
const MOST_TRIAL_SECONDS: f32 = 2.0;

/// The state that the drafts of all requests share.
#[derive(Debug)]
pub(super) struct SpeculationState {
    config: Option<Speculation>,
    costs: StepCosts,
    /// The time of a token in steps with prefill; `None` before the first.
    prefill_row: Option<f32>,
    /// The shares of drafted tokens that requests accepted lately.
    rates: FirstRates,
    model: Option<ModelDrafter>,
    /// How long the draft model may still take for drafts that are not expected to pay.
    trial_seconds: f32,
}

impl SpeculationState {
    pub fn new(config: Option<Speculation>) -> Self {
        Self {
            config,
            costs: StepCosts::new(),
            prefill_row: None,
            rates: FirstRates {
                of_found: FIRST_RATE,
                of_model: FIRST_RATE,
            },
            model: None,
            trial_seconds: 0.0,
        }
    }

    /// Has `model` make drafts. It computes at most `chunk` tokens in a step for requests that
    /// have many.
    pub fn set_model(&mut self, model: Box<dyn DraftModel>, chunk: usize) {
        let method = self.config.map(|config| config.method);
        if method == Some(DraftMethod::DraftModel) {
            self.model = Some(ModelDrafter::new(model, chunk));
        }
    }

    /// Records that the first `accepted` of `drafted` tokens became output.
    pub fn record(
        &mut self,
        drafted: usize,
        accepted: usize,
        by_model: bool,
        counters: &mut EngineStats,
    ) {
        if drafted == 0 {
            return;
        }
        let rate = match by_model {
            true => &mut self.rates.of_model,
            false => &mut self.rates.of_found,
        };
        for _ in 0..accepted {
            *rate += WEIGHT * (1.0 - *rate);
        }
        if accepted < drafted {
            *rate -= WEIGHT * *rate;
        }
        counters.drafts += 1;
        counters.drafted_tokens += drafted as u64;
        counters.accepted_tokens += accepted as u64;
        for count in counters.accepted_at.iter_mut().take(accepted) {
            *count += 1;
        }
    }

    /// The shares that a new request is expected to accept.
    fn first_rates(&self) -> FirstRates {
        let bounded = |rate: f32| rate.clamp(LEAST_FIRST_RATE, MOST_FIRST_RATE);
        FirstRates {
            of_found: bounded(self.rates.of_found),
            of_model: bounded(self.rates.of_model),
        }
    }

    /// Takes the draft model's slots back from a request that has ended or was preempted.
    pub fn end(&mut self, id: RequestId) {
        if let Some(model) = &mut self.model {
            model.end(id.number());
        }
    }

    /// Forgets what the draft model has computed and no request uses.
    pub fn flush(&mut self) {
        if let Some(model) = &mut self.model {
            model.flush();
        }
    }

    /// Writes the counts of the draft model to `stats`.
    pub fn count_model(&mut self, stats: &mut EngineStats) {
        let Some(model) = &mut self.model else {
            return;
        };
        let (usage, held) = model.usage();
        stats.draft_kv = KvStats::of(usage, held);
        debug_assert!(stats.draft_kv.is_conserved(), "{:?}", stats.draft_kv);
        stats.draft_forwards = model.work.forwards;
        stats.draft_model_tokens = model.work.tokens;
        stats.draft_failures = model.work.failures;
        stats.draft_time = model.work.time;
    }

    /// True if the draft model has time for a draft after `missing` tokens that is not expected to
    /// pay.
    fn has_time_to_try(&self, missing: usize) -> bool {
        let Some(model) = &self.model else {
            return false;
        };
        self.trial_seconds >= model.costs().estimate(missing)
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

/// The rows of the next step without drafts.
struct NextRows {
    decode: usize,
    /// Tokens of prompts.
    prefill: usize,
}

impl Scheduler {
    /// Drafts the next tokens of the requests that decode, as far as their rows are expected to
    /// pay, and allocates slots for them. No request is preempted for it.
    pub(super) fn draft(&mut self, batch: &mut StepBatch) {
        let Some(config) = self.speculation.config else {
            return;
        };
        for Running { request, .. } in &mut self.running {
            request.cut_draft(0);
        }
        let Some(rows) = self.next_rows() else {
            return;
        };
        let logit_rows = SCORED_LOGITS / self.limits.vocab_size;
        let beside_decode = self.config.max_batch_tokens.saturating_sub(rows.decode);
        let beside_prompts = (beside_decode - rows.prefill).max(beside_decode / TAKEN_FROM_PROMPTS);
        let mut room = logit_rows.saturating_sub(rows.decode).min(beside_prompts);
        let (requests, offers) = self.offers(&config);
        let planned = match config.adaptive {
            true => self.plan(&rows, &offers),
            false => offers.iter().map(|offer| offer.tokens).collect(),
        };
        let mut wanted = Vec::new();
        for ((&index, offer), planned) in requests.iter().zip(&offers).zip(planned) {
            let request = &mut self.running[index].request;
            let Some(by_model) = offer.by_model else {
                let tokens = request.tokens_to_draft(planned);
                request.cut_draft(tokens.min(room));
                room -= request.draft().len();
                continue;
            };
            let tries = planned == 0 && self.speculation.has_time_to_try(by_model.missing);
            if planned == 0 && !tries {
                continue;
            }
            let tokens = request.tokens_to_draft(planned).min(room);
            room -= tokens;
            if tokens > 0 {
                wanted.push((index, tokens, tries));
            }
        }
        self.draft_by_model(&wanted, batch);
        for index in requests {
            let Running { request, kv, .. } = &mut self.running[index];
            let wanted = request.tokens.len() + request.draft().len();
            let missing = wanted.saturating_sub(kv.slots.len());
            if missing > 0 && self.kv.grow(kv, missing).is_err() {
                request.cut_draft(kv.slots.len() - request.tokens.len());
            }
            let wanted = request.tokens.len() + request.draft().len();
            if self.kv.grow_window(kv, wanted).is_err() {
                request.cut_draft(kv.room().saturating_sub(request.tokens.len()));
            }
        }
    }

    /// The offers of all requests that decode, with the requests' indices.
    fn offers(&mut self, config: &Speculation) -> (Vec<usize>, Vec<Offer>) {
        let rates = self.speculation.first_rates();
        let (mut requests, mut offers) = (Vec::new(), Vec::new());
        for (index, running) in self.running.iter_mut().enumerate() {
            let is_at_next = running.pending() == 1 && !running.kv.needs_load();
            let Running { request, kv, .. } = running;
            if !is_at_next || request.is_parked() || request.is_late() || !request.can_draft() {
                continue;
            }
            let cache = CacheOf {
                cache: &self.kv,
                kv,
            };
            let mut offer = request.offer_draft(config, rates, &cache, config.num_tokens);
            if offer.is_none()
                && let Some(model) = &mut self.speculation.model
            {
                let id = request.id.number();
                let missing = model.missing(id, &request.namespace, &request.tokens);
                offer =
                    missing.and_then(|missing| request.offer_of_model(missing, config.num_tokens));
            }
            if let Some(offer) = offer {
                requests.push(index);
                offers.push(offer);
            }
        }
        (requests, offers)
    }

    /// How many tokens of each offer are worth computing.
    fn plan(&self, rows: &NextRows, offers: &[Offer]) -> Vec<usize> {
        let state = &self.speculation;
        let step = match (rows.prefill, state.prefill_row) {
            (0, _) => StepTime::Decode(&state.costs),
            (prefill, Some(row)) => StepTime::WithPrefill { prefill, row },
            // The time of this step tells.
            (_, None) => return vec![0; offers.len()],
        };
        let model = state.model.as_ref().map(ModelDrafter::costs);
        plan(rows.decode, offers, step, model)
    }

    /// Has the draft model make drafts of the requests at the indices `wanted`, with the most
    /// tokens of each draft, and whether it is not expected to pay.
    fn draft_by_model(&mut self, wanted: &[(usize, usize, bool)], batch: &mut StepBatch) {
        let Some(model) = &mut self.speculation.model else {
            return;
        };
        if wanted.is_empty() {
            return;
        }
        let started = Instant::now();
        let mut wishes: Vec<Wish<'_>> = wanted
            .iter()
            .map(|&(index, most, _)| {
                let request = &self.running[index].request;
                Wish {
                    id: request.id.number(),
                    namespace: &request.namespace,
                    tokens: &request.tokens,
                    most,
                    draft: Vec::new(),
                }
            })
            .collect();
        model.draft(&mut wishes);
        let drafts: Vec<_> = wishes.into_iter().map(|wish| wish.draft).collect();
        for (&(index, ..), draft) in wanted.iter().zip(drafts) {
            self.running[index].request.take_draft(draft);
        }
        batch.drafting = started.elapsed();
        let tried = wanted.iter().filter(|(_, _, tries)| *tries).count();
        let share = tried as f32 / wanted.len() as f32;
        self.speculation.trial_seconds -= share * batch.drafting.as_secs_f32();
    }

    /// The rows of the next step without drafts; `None` if requests wait for copies from the host.
    fn next_rows(&self) -> Option<NextRows> {
        let mut rows = NextRows {
            decode: 0,
            prefill: 0,
        };
        for running in &self.running {
            if running.request.is_parked() || running.request.is_late() {
                continue;
            }
            if running.kv.needs_load() {
                return None;
            }
            match running.pending() {
                pending if pending > LONGEST_DECODE => rows.prefill += pending,
                pending => rows.decode += pending,
            }
        }
        let room = self.config.max_batch_tokens.saturating_sub(rows.decode);
        rows.prefill = rows.prefill.min(room);
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
        let state = &mut self.speculation;
        if state.config.is_none() || !batch.loads.is_empty() {
            return;
        }
        let seconds = took.saturating_sub(batch.drafting).as_secs_f32();
        let decodes = |grant: &crate::batch::Grant| grant.tokens <= LONGEST_DECODE;
        if batch.grants.iter().all(decodes) {
            state.costs.record(batch.tokens(), seconds);
        } else {
            let row = seconds / batch.tokens() as f32;
            let known = state.prefill_row.get_or_insert(row);
            *known += PREFILL_WEIGHT * (row - *known);
        }
        let saved = state.trial_seconds + TRIAL_SHARE * seconds;
        state.trial_seconds = saved.min(MOST_TRIAL_SECONDS);
    }
}
