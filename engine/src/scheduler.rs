//! Who runs next, with which slots.

mod ahead;
mod ending;
mod grammars;
mod host;
mod landing;
mod room;
mod starting;

use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;

use crate::active::{ActiveRequest, Running};
use crate::admission::NewTokenRatio;
use crate::batch::{Load, StepBatch};
use crate::config::EngineConfig;
use crate::constraint::{Grace, Habits};
use crate::executor::ExecutorLimits;
use crate::inbox::Submission;
use crate::kv::Kv;
use crate::queue::WaitingQueue;
use crate::request::Event;
use crate::stats::{EngineStats, KvStats};

/// Logits that a step may compute for log-probabilities of tokens that are not sampled,
/// in values (64 MiB).
const SCORED_LOGITS: usize = 16 << 20;

/// Tokens that a step may copy to the host, and from there, for each that it may compute,
/// which takes longer: so that the copies of a step take no longer than a step.
const COPIES: usize = 4;

/// Requests start in the order of the policy; `running` is in the order of start.
///
/// A step has three parts. While the device waits, [`advance`](Self::advance) samples from
/// what it computed and [`schedule`](Self::schedule) makes its next batch. While it computes,
/// [`look_ahead`](Self::look_ahead) does the rest: it settles the step before, and prepares
/// the one after. Meanwhile requests join `running` at its end, but none leaves it: the
/// batch that is computed names them by their places. Where nothing depends on what it gives,
/// the device has the [step after it](Self::follow) before it is done.
///
/// It cannot get stuck. A request that runs alone always fits, since submission
/// bounds it by the pool and everything else is free or evictable then; and of
/// those with the highest priority the one that runs longest is never preempted,
/// so that it ends.
#[derive(Debug)]
pub(crate) struct Scheduler {
    config: EngineConfig,
    limits: ExecutorLimits,
    waiting: WaitingQueue,
    running: Vec<Running>,
    /// Those that are done, until there is time to take their slots.
    leaving: Vec<Running>,
    kv: Kv,
    ratio: NewTokenRatio,
    habits: Habits,
    /// When the latest step was scheduled.
    batch_made: Instant,
    /// How long the device was at the one that landed last.
    step_took: Duration,
    /// Batches that the device is at: none, one, or one and that after it.
    in_flight: usize,
    /// Whether a request may be able to start that could not when it was last looked at.
    may_start: bool,
    /// Steps scheduled, for `config.retract_every`.
    scheduled: u64,
    /// Counters only; `kv`, `waiting` and `running` are filled in by `stats`.
    counters: EngineStats,
    /// Last events, kept back until the statistics they change are published.
    farewells: Vec<(UnboundedSender<Event>, Event)>,
}

impl Scheduler {
    /// `host_slots` are those of the second pool.
    pub fn new(config: EngineConfig, limits: ExecutorLimits, host_slots: usize) -> Self {
        let mut scheduler = Self {
            kv: Kv::new(limits.kv_slots, host_slots, &config),
            waiting: WaitingQueue::new(config.schedule, config.page_size),
            config,
            limits,
            running: Vec::new(),
            leaving: Vec::new(),
            ratio: NewTokenRatio::new(),
            habits: Habits::new(limits.vocab_size),
            batch_made: Instant::now(),
            step_took: Duration::ZERO,
            in_flight: 0,
            may_start: false,
            scheduled: 0,
            counters: EngineStats::default(),
            farewells: Vec::new(),
        };
        scheduler.allow_copies();
        scheduler
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.leaving.is_empty()
    }

    pub fn enqueue(&mut self, submitted: Vec<Submission>) {
        for submission in submitted {
            let request = ActiveRequest::new(submission, &self.habits);
            self.waiting.push(request);
            self.counters.received += 1;
            self.may_start = true;
        }
    }

    /// Fills `batch` with the next step: every decoding request's row, then chunks
    /// of several prompts as far as the token budget goes. Requests whose grammars are
    /// late are not in it.
    pub fn schedule(&mut self, batch: &mut StepBatch) {
        batch.clear();
        self.hear_grammars(&mut Grace::none(), &mut Grace::none());
        self.part();
        self.begin_grammars(&mut Grace::to_begin());
        self.scheduled += 1;
        if let Some(every) = self.config.retract_every
            && self.scheduled.is_multiple_of(every)
        {
            self.retract(1);
        }
        // The device waits: what could not start before is not looked at again.
        let may_start = self.may_start || self.waiting.has_followers() || self.running.is_empty();
        if self.make_room_to_decode() && may_start && self.has_place() {
            self.settle();
            self.admit();
        }
        self.fill(batch);
        batch.copies = self.kv.take_copies();
        self.allow_copies();
        self.in_flight = usize::from(!batch.asks_for_nothing());
        self.batch_made = Instant::now();
    }

    /// When the latest step was scheduled.
    pub fn scheduled_at(&self) -> Instant {
        self.batch_made
    }

    /// A batch has landed, which took the device so long.
    pub fn landed(&mut self, took: Duration) {
        self.step_took = took;
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// What can be done of the next step while the device is at this one.
    pub fn look_ahead(&mut self) {
        self.settle();
        self.begin_grammars(&mut Grace::none());
        self.admit();
        self.reserve();
    }

    fn fill(&mut self, batch: &mut StepBatch) {
        let mut scored_rows = (SCORED_LOGITS / self.limits.vocab_size).max(1);
        let mut prefills = Vec::new();
        for (index, running) in self.running.iter_mut().enumerate() {
            if running.kv.loads() {
                let tokens = self.kv.load(&running.kv);
                let request = index;
                batch.loads.push(Load { request, tokens });
                continue;
            }
            match running.pending() {
                // What comes next depends on its grammar, which need not keep the others.
                _ if running.request.is_late() => {}
                1 => grant(batch, index, running, 1, &mut scored_rows),
                _ => prefills.push(index),
            }
        }
        self.share_among_prefills(&mut prefills, batch, &mut scored_rows);
    }

    /// Divides what the decoding requests left of the token budget: at least half
    /// of it to the prompt that started first, so that it gets done; the rest to the
    /// others, those with least left to compute first, so that none of them waits
    /// for a long one.
    fn share_among_prefills(
        &mut self,
        prefills: &mut [usize],
        batch: &mut StepBatch,
        scored_rows: &mut usize,
    ) {
        let fair_share = self.config.max_batch_tokens / prefills.len().max(1);
        let most = self.config.prefill_chunk.max(fair_share);
        let running = &mut self.running;
        let Some((&mut first, others)) = prefills.split_first_mut() else {
            return;
        };
        others.sort_by_key(|&index| running[index].pending());
        let chunk = |running: &[Running], index: usize| running[index].pending().min(most);
        let wanted: usize = others.iter().map(|&index| chunk(running, index)).sum();
        let budget = self.config.max_batch_tokens - batch.tokens();
        let kept_for_others = wanted.min(budget / 2);
        let order = std::iter::once((first, kept_for_others)).chain(others.iter().map(|&i| (i, 0)));
        for (index, kept) in order {
            let budget = self.config.max_batch_tokens - batch.tokens() - kept;
            let tokens = chunk(running, index).min(budget);
            grant(batch, index, &mut running[index], tokens, scored_rows);
        }
    }

    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Those that hold slots.
    fn holding(&self) -> impl Iterator<Item = &Running> {
        self.running.iter().chain(&self.leaving)
    }

    /// The next step may copy so much, and what is evicted until then counts.
    fn allow_copies(&mut self) {
        let tokens = self.config.max_batch_tokens.saturating_mul(COPIES);
        self.kv.allow_copies(tokens);
    }

    /// The last events of requests that ended; to be sent once `stats` is out.
    pub fn take_farewells(&mut self) -> Vec<(UnboundedSender<Event>, Event)> {
        std::mem::take(&mut self.farewells)
    }

    pub fn stats(&mut self, steps: u64) -> EngineStats {
        let usage = self.kv.usage();
        let kv = KvStats {
            total: usage.total,
            free: usage.free,
            evictable: usage.evictable,
            protected: usage.protected,
            held: self.holding().map(|running| running.kv.held()).sum(),
        };
        let usage = self.kv.host_usage();
        let host = KvStats {
            total: usage.total,
            free: usage.free,
            evictable: usage.evictable,
            protected: usage.protected,
            held: 0,
        };
        debug_assert!(kv.is_conserved() && host.is_conserved(), "{kv:?} {host:?}");
        let (waiting, running) = (self.waiting.len(), self.running.len());
        EngineStats {
            kv,
            host,
            waiting,
            running,
            steps,
            ..self.counters
        }
    }
}

/// Adds `tokens` of `running` to the batch, or as many as have not more rows for
/// log-probabilities than `scored_rows`, which are taken from it.
fn grant(
    batch: &mut StepBatch,
    index: usize,
    running: &mut Running,
    mut tokens: usize,
    scored_rows: &mut usize,
) {
    // Not all of a chunk's rows need be wanted: after a preemption it may
    // begin before the first whose log-probability is still missing.
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
