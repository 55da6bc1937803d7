//! Decides which requests run next, and with which slots.

mod adapters;
mod admission;
mod completion;
mod finish;
mod grammars;
mod host_copies;
mod new_token_ratio;
mod overlap;
mod picture;
mod preemption;
mod prefixes;
mod speculation;
mod submission;
mod transfer;

use hearth_forward::ExecutorLimits;
use tokio::sync::mpsc::UnboundedSender;

use crate::active::ActiveRequest;
use crate::adapters::{AdapterSlots, SlotCounts};
use crate::batch::{HostLoad, StepBatch};
use crate::cache_reports::CacheReports;
use crate::config::EngineConfig;
use crate::constraint::{ForcedTextPredictor, WaitBudget};
use crate::events::Occupancy;
use crate::inbox::NewRequest;
use crate::kv::{Kv, KvSizes};
use crate::queue::WaitingQueue;
use crate::reports::StepCounts;
use crate::request::Event;
use crate::running::Running;
use crate::speculation::DraftModel;
use crate::stats::{EngineStats, KvStats};
use crate::submission_time::{LEAST_CHUNK, SubmissionTime};
use crate::transfer::KvTransfer;
use new_token_ratio::NewTokenRatio;
use prefixes::Restore;
use speculation::SpeculationState;

/// The most logits that a step computes for log-probabilities of tokens that are not sampled,
/// in values (64 MiB).
const SCORED_LOGITS: usize = 16 << 20;

/// How many tokens a step may copy to the host, and as many from the host, for each token that
/// it may compute. Computing takes longer, so the copies of a step take no longer than a step.
const COPIES_PER_TOKEN: usize = 4;

/// Whether a step is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceIs {
    /// No step is in flight, and requests may leave `running`.
    Idle,
    /// A step is in flight. Its batch names requests by their places in `running`, so requests
    /// may be added at the end, but they leave only when a step completes.
    Busy,
}

/// The requests of the engine, waiting and running, and their slots.
///
/// A step has three parts. While the device is idle, [`complete`](Self::complete) samples from
/// the output of the step before, and [`schedule`](Self::schedule) makes the next batch. While
/// the device is busy, [`prepare_next`](Self::prepare_next) does the rest: it
/// [flushes](Self::flush_step) the step before and starts requests for the one after. Where the
/// step after does not depend on the output of the current one, it is scheduled and submitted
/// while the device is busy, too ([`overlap`](Self::overlap)).
///
/// The scheduler cannot get stuck. A request that runs alone always fits, because it is refused
/// if it is longer than the pool, and because all other slots are free or can be evicted. Of the
/// running requests with the highest priority, the one that has run longest is never preempted,
/// so it finishes.
#[derive(Debug)]
pub(crate) struct Scheduler {
    config: EngineConfig,
    limits: ExecutorLimits,
    /// Requests that hold no slots; they start in the order of the policy.
    waiting: WaitingQueue,
    /// Requests that hold slots, in the order of their start.
    running: Vec<Running>,
    /// Requests that have ended, until [`flush_step`](Self::flush_step) frees their slots.
    ended: Vec<Running>,
    kv: Kv,
    adapters: AdapterSlots,
    new_token_ratio: NewTokenRatio,
    forced_text: ForcedTextPredictor,
    speculation: SpeculationState,
    submission_time: SubmissionTime,
    /// The request whose decode row comes first where not all rows fit into a step.
    first_row: u64,
    /// Whether a request may be able to start that could not when admission was last tried.
    may_start: bool,
    /// Steps scheduled, for `config.retract_every`.
    scheduled: u64,
    /// Reads and writes of KV slots that the next step begins with.
    transfers: Vec<KvTransfer>,
    /// Prefixes from outside that are being written to their slots.
    restores: Vec<Restore>,
    /// The counters of the statistics; [`stats`](Self::stats) fills in the other fields.
    counters: EngineStats,
    /// Final events of requests, held back until the statistics that they change have been
    /// published.
    final_events: Vec<(UnboundedSender<Event>, Event)>,
}

impl Scheduler {
    pub fn new(
        config: EngineConfig,
        limits: ExecutorLimits,
        sizes: KvSizes,
        adapter_slots: SlotCounts,
    ) -> Self {
        let mut scheduler = Self {
            kv: Kv::new(sizes, &config),
            adapters: AdapterSlots::new(adapter_slots),
            waiting: WaitingQueue::new(config.schedule, config.page_size),
            speculation: SpeculationState::new(config.speculation),
            submission_time: SubmissionTime::new(config.max_submission),
            first_row: 0,
            config,
            limits,
            running: Vec::new(),
            ended: Vec::new(),
            new_token_ratio: NewTokenRatio::new(),
            forced_text: ForcedTextPredictor::new(limits.vocab_size),
            may_start: false,
            scheduled: 0,
            transfers: Vec::new(),
            restores: Vec::new(),
            counters: EngineStats::default(),
            final_events: Vec::new(),
        };
        scheduler.allow_copies();
        scheduler
    }

    /// Has `model` make drafts, if the configuration says so.
    pub fn set_draft_model(&mut self, model: Box<dyn DraftModel>) {
        self.speculation.set_model(model, self.config.prefill_chunk);
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.ended.is_empty()
    }

    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Puts new requests into the queue.
    pub fn enqueue(&mut self, requests: Vec<NewRequest>) {
        for request in requests {
            let request = ActiveRequest::new(request, &self.forced_text);
            self.waiting.push(request);
            self.counters.received += 1;
            self.may_start = true;
        }
    }

    /// Fills `batch` with the next step: a row for every request that decodes, then chunks of
    /// several prompts as far as the token budget allows. Requests whose grammars are late are
    /// left out. The device must be idle.
    pub fn schedule(&mut self, batch: &mut StepBatch) {
        batch.clear();
        self.poll_running_grammars(&mut WaitBudget::none(), &mut WaitBudget::none());
        self.remove_ended();
        self.poll_waiting_grammars(&mut WaitBudget::for_new_requests());
        self.scheduled += 1;
        if let Some(every) = self.config.retract_every
            && self.scheduled.is_multiple_of(every)
        {
            self.retract(1);
        }
        // The device waits, so requests that could not start before are not tried again.
        let may_start = self.may_start || self.waiting.has_parked() || self.running.is_empty();
        if self.make_room_to_decode() && may_start && self.has_place() {
            self.flush_step();
            self.admit(DeviceIs::Idle);
        }
        self.fill(batch);
        if !batch.grants.is_empty() {
            // A batch without rows is not submitted, and its loads would be lost.
            batch.adapter_loads = self.adapters.take_loads();
        }
        batch.copies = self.kv.take_copies();
        batch.transfers = std::mem::take(&mut self.transfers);
        self.allow_copies();
    }

    /// Does all work for the next step that can be done while the device is busy.
    pub fn prepare_next(&mut self) {
        self.flush_step();
        self.poll_waiting_grammars(&mut WaitBudget::none());
        self.admit(DeviceIs::Busy);
        self.reserve_next_slots();
    }

    fn fill(&mut self, batch: &mut StepBatch) {
        self.draft(batch);
        let mut scored_rows = (SCORED_LOGITS / self.limits.vocab_size).max(1);
        let mut prefills = Vec::new();
        let left_out = self.rows_without_time();
        for (index, running) in self.running.iter_mut().enumerate() {
            if running.request.is_parked() {
                continue;
            }
            if running.kv.needs_load() {
                let tokens = self.kv.load(&running.kv);
                let request = index;
                batch.loads.push(HostLoad { request, tokens });
                continue;
            }
            match running.pending() {
                // The next row depends on the grammar, which must not delay other requests.
                _ if running.request.is_late() => {}
                1 if left_out.contains(&index) => {}
                // A request that has just started may find no window slot; there is one in the next
                // step.
                1 if self.kv.grow_window_for(&mut running.kv, 1) == 0 => {}
                1 => grant(batch, index, running, 1, &mut scored_rows),
                _ => prefills.push(index),
            }
        }
        self.share_among_prefills(&mut prefills, batch, &mut scored_rows);
    }

    /// Divides the rest of the token budget among the prompts. At least half of it goes to the
    /// prompt that started first, so that it completes soon. The rest goes to the others in
    /// the order of how little they have left to compute, so that short prompts do not wait for
    /// long ones. The time that the step may take is divided in the same way.
    fn share_among_prefills(
        &mut self,
        prefills: &mut [usize],
        batch: &mut StepBatch,
        scored_rows: &mut usize,
    ) {
        let fair_share = self.config.max_batch_tokens / prefills.len().max(1);
        let most = self.config.prefill_chunk.max(fair_share);
        let running = &mut self.running;
        let time = &self.submission_time;
        let Some((&mut first, others)) = prefills.split_first_mut() else {
            return;
        };
        others.sort_by_key(|&index| running[index].pending());
        let chunk = |running: &[Running], index: usize| running[index].pending().min(most);
        let wanted: usize = others.iter().map(|&index| chunk(running, index)).sum();
        let budget = self.config.max_batch_tokens - batch.tokens();
        let kept_for_others = wanted.min(budget / 2);
        let start = |running: &[Running], index: usize| running[index].kv.computed;
        let cost = |&index: &usize| time.cost(start(running, index), chunk(running, index));
        let seconds_for_others: f32 = others.iter().map(cost).sum();
        let seconds_for_others = seconds_for_others.min(time.left(&batch.forward).seconds / 2.0);
        let first = std::iter::once((first, kept_for_others, seconds_for_others, LEAST_CHUNK));
        let order = first.chain(others.iter().map(|&index| (index, 0, 0.0, 0)));
        for (index, kept, kept_seconds, least) in order {
            let budget = self.config.max_batch_tokens - batch.tokens() - kept;
            let tokens = chunk(running, index).min(budget);
            let left = time.left(&batch.forward);
            let seconds = left.seconds - kept_seconds;
            let fitting = time.fitting(start(running, index), tokens.min(left.tokens), seconds);
            let tokens = fitting.max(least.min(tokens));
            let tokens = self.kv.grow_window_for(&mut running[index].kv, tokens);
            grant(batch, index, &mut running[index], tokens, scored_rows);
        }
    }

    /// Sets how many tokens the next step may copy. Evictions from now on count.
    fn allow_copies(&mut self) {
        let tokens = self
            .config
            .max_batch_tokens
            .saturating_mul(COPIES_PER_TOKEN);
        self.kv.allow_copies(tokens);
    }

    /// The final events of requests that ended, to be sent after [`stats`](Self::stats) has
    /// been published.
    pub fn take_final_events(&mut self) -> Vec<(UnboundedSender<Event>, Event)> {
        std::mem::take(&mut self.final_events)
    }

    /// Reports what has changed in the prefix cache.
    pub fn report_cache(&mut self, reports: &mut CacheReports) {
        reports.report(&mut self.kv);
    }

    /// The engine's part of a step's report. Unlike [`stats`](Self::stats) it looks at no
    /// request, because the device may be idle.
    pub fn step_counts(&mut self) -> StepCounts {
        let usage = self.kv.usage();
        StepCounts {
            started: self.counters.started,
            prompt_tokens: self.counters.prompt_tokens,
            cached_tokens: self.counters.cached_tokens,
            generated_tokens: self.counters.generated_tokens,
            occupancy: Occupancy {
                running: self.running.len(),
                waiting: self.waiting.len(),
                kv_used: usage.total - usage.free - usage.evictable,
                kv_total: usage.total,
            },
        }
    }

    pub fn stats(&mut self, steps: u64) -> EngineStats {
        let requests = self.running.iter().chain(&self.ended);
        let requests = requests.map(|running| &running.kv);
        let holding = requests.chain(self.restores.iter().map(|restore| &restore.kv));
        let (mut held, mut held_window) = (0, 0);
        for kv in holding {
            held += kv.held();
            held_window += kv.held_window();
        }
        let kv = KvStats::of(self.kv.usage(), held);
        let window = KvStats::of(self.kv.window_usage(), held_window);
        let host = KvStats::of(self.kv.host_usage(), 0);
        let all = [kv, window, host];
        debug_assert!(all.iter().all(KvStats::is_conserved), "{all:?}");
        self.speculation.count_model(&mut self.counters);
        let (waiting, running) = (self.waiting.len(), self.running.len());
        let parked = self.running.iter().filter(|r| r.request.is_parked());
        EngineStats {
            kv,
            window,
            host,
            waiting,
            deferred: self.waiting.deferred(),
            running,
            transferring: parked.count(),
            steps,
            ..self.counters
        }
    }
}

/// Adds `tokens` of `running` to the batch, or fewer if they have more rows for
/// log-probabilities than `scored_rows`, from which these rows are subtracted.
fn grant(
    batch: &mut StepBatch,
    index: usize,
    running: &mut Running,
    mut tokens: usize,
    scored_rows: &mut usize,
) {
    // The logits of a chunk's first rows may be unwanted: after a preemption, the chunk may
    // begin before the first token whose log-probability is still missing.
    let start = running.kv.computed;
    let mut wanted = running.request.wanted_logprobs(start, start + tokens);
    if wanted.len() > *scored_rows {
        wanted.end = wanted.start + *scored_rows;
        tokens = wanted.end - start;
    }
    *scored_rows -= wanted.len();
    if tokens > 0 {
        batch.push(index, running, tokens);
    }
}

#[cfg(test)]
mod tests;
