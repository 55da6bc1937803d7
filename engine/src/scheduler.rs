//! Who runs next, with which slots.

mod ending;
mod grammars;
mod host;

use std::cmp::Reverse;
use std::time::Instant;

use hearth_radix::{Peeked, common_prefix};
use tokio::sync::mpsc::UnboundedSender;

use crate::active::{ActiveRequest, Outcome, Running};
use crate::admission::NewTokenRatio;
use crate::batch::{Load, StepBatch};
use crate::config::EngineConfig;
use crate::constraint::{Grace, Habits};
use crate::executor::{ExecutorLimits, Logits};
use crate::inbox::{RequestId, Submission};
use crate::kv::{Kv, RequestKv};
use crate::queue::{SchedulePolicy, WaitingQueue};
use crate::request::{Event, FinishReason};
use crate::stats::{EngineStats, KvStats};

/// Logits that a step may compute for log-probabilities of tokens that are not sampled,
/// in values (64 MiB).
const SCORED_LOGITS: usize = 16 << 20;

/// Waiting requests looked at in one step: bounds what a step costs, and with it
/// how many requests can start in one.
const LOOKED_AT: usize = 128;

/// Tokens that a step may copy to the host, and from there, for each that it may compute,
/// which takes longer: so that the copies of a step take no longer than a step.
const COPIES: usize = 4;

/// A prefix that a running request is still computing is worth waiting for from
/// this many tokens on.
const WORTH_WAITING: usize = 32;

/// Requests start in the order of the policy; `running` is in the order of start.
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
    kv: Kv,
    ratio: NewTokenRatio,
    habits: Habits,
    /// When the latest step was scheduled.
    batch_made: Instant,
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
        Self {
            kv: Kv::new(limits.kv_slots, host_slots, &config),
            waiting: WaitingQueue::new(config.schedule, config.page_size),
            config,
            limits,
            running: Vec::new(),
            ratio: NewTokenRatio::new(),
            habits: Habits::new(limits.vocab_size),
            batch_made: Instant::now(),
            scheduled: 0,
            counters: EngineStats::default(),
            farewells: Vec::new(),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    pub fn enqueue(&mut self, submitted: Vec<Submission>) {
        for submission in submitted {
            let request = ActiveRequest::new(submission, &self.habits);
            self.waiting.push(request);
        }
    }

    /// Fills `batch` with the next step: every decoding request's row, then chunks
    /// of several prompts as far as the token budget goes. Requests whose grammars are
    /// late are not in it.
    pub fn schedule(&mut self, batch: &mut StepBatch) {
        batch.clear();
        self.kv
            .allow_copies(self.config.max_batch_tokens.saturating_mul(COPIES));
        self.hear_grammars(&mut Grace::none(), &mut Grace::none());
        self.retire_done();
        self.begin_grammars(&mut Grace::to_begin());
        self.scheduled += 1;
        if let Some(every) = self.config.retract_every
            && self.scheduled.is_multiple_of(every)
        {
            self.retract(1);
        }
        if self.make_room_to_decode() {
            self.admit();
        }
        let mut scored_rows = (SCORED_LOGITS / self.limits.vocab_size).max(1);
        let mut prefills = Vec::new();
        for (index, running) in self.running.iter().enumerate() {
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
        batch.copies = self.kv.take_copies();
        self.batch_made = Instant::now();
    }

    /// Divides what the decoding requests left of the token budget: at least half
    /// of it to the prompt that started first, so that it gets done; the rest to the
    /// others, those with least left to compute first, so that none of them waits
    /// for a long one.
    fn share_among_prefills(
        &self,
        prefills: &mut [usize],
        batch: &mut StepBatch,
        scored_rows: &mut usize,
    ) {
        let fair_share = self.config.max_batch_tokens / prefills.len().max(1);
        let most = self.config.prefill_chunk.max(fair_share);
        let chunk = |index: usize| self.running[index].pending().min(most);
        let Some((&mut first, others)) = prefills.split_first_mut() else {
            return;
        };
        others.sort_by_key(|&index| self.running[index].pending());
        let wanted: usize = others.iter().map(|&index| chunk(index)).sum();
        let budget = self.config.max_batch_tokens - batch.tokens();
        let kept_for_others = wanted.min(budget / 2);
        let order = std::iter::once((first, kept_for_others)).chain(others.iter().map(|&i| (i, 0)));
        for (index, kept) in order {
            let budget = self.config.max_batch_tokens - batch.tokens() - kept;
            let tokens = chunk(index).min(budget);
            grant(batch, index, &self.running[index], tokens, scored_rows);
        }
    }

    /// Gives every decoding request the slots for its next tokens (several where a
    /// grammar forced some), and preempts others while there are too few. Returns whether none had to go.
    fn make_room_to_decode(&mut self) -> bool {
        if self.running.is_empty() {
            self.ratio.reset();
            return true;
        }
        let preempted = self.counters.preemptions;
        let short = |running: &Running| {
            let slots = running.kv.slots.len();
            running.request.tokens.len().saturating_sub(slots)
        };
        let mut wanted: usize = self.running.iter().map(short).sum();
        while wanted > self.kv.usage().available() {
            let victim = self.victim().expect("whoever wants a slot runs");
            wanted -= short(&self.running[victim]);
            self.preempt(victim);
        }
        for running in &mut self.running {
            let missing = short(running);
            if missing > 0 {
                self.kv
                    .grow(&mut running.kv, missing)
                    .expect("room was made");
            }
        }
        let all_stayed = preempted == self.counters.preemptions;
        if all_stayed {
            self.ratio.relax()
        } else {
            self.ratio.reset()
        }
        all_stayed
    }

    /// Who gives way: the lowest priority, and of those who started last, as it has
    /// least to compute again.
    fn victim(&self) -> Option<usize> {
        (0..self.running.len()).min_by_key(|&i| (self.running[i].request.priority, Reverse(i)))
    }

    /// Back to the queue. What it computed stays cached for as long as nobody needs
    /// the room, and its output so far stays with it.
    fn preempt(&mut self, index: usize) {
        let Running {
            mut request,
            mut kv,
        } = self.running.remove(index);
        checkpoint(&mut self.kv, &mut self.waiting, &request, &mut kv);
        self.kv.release(kv);
        self.counters.preemptions += 1;
        request.preempted();
        self.waiting.put_back(request);
    }

    /// Sends running requests back to the queue, but the `keep` that run longest.
    fn retract(&mut self, keep: usize) {
        while self.running.len() > keep {
            self.preempt(self.running.len() - 1);
        }
    }

    /// Starts waiting requests in order while there is room for them and for
    /// what the running ones are expected to generate.
    fn admit(&mut self) {
        let most_running = self.config.max_running.min(self.config.max_batch_tokens);
        self.bring_back_followers();
        let kv = &mut self.kv;
        self.waiting.review(|request| kv.peek(request).tokens);
        let mut looked_at = 0;
        // While nothing runs there is no step that more looking could delay.
        while looked_at < LOOKED_AT || self.running.is_empty() {
            looked_at += 1;
            let full = self.running.len() >= most_running;
            if full && self.config.schedule != SchedulePolicy::Priority {
                return;
            }
            let Some(request) = self.waiting.first() else {
                return;
            };
            let (id, priority, remaining) = (request.id, request.priority, request.remaining());
            if full {
                match self.victim_of(priority) {
                    Some(victim) => self.preempt(victim),
                    None => return,
                }
                continue;
            }
            let found = self.kv.peek(request);
            if let Some((leader, shared)) = leader(&self.running, request, found, &self.config) {
                self.waiting.park(id, leader, shared);
                continue;
            }
            let spare = self.spare_beside(remaining);
            if !self.waiting.confirm(id, found.tokens) {
                continue;
            }
            let request = self.waiting.first().expect("it was confirmed");
            match self.kv.admit(request, found, spare) {
                Some(kv) => self.start(id, kv),
                None => match self.victim_of(priority) {
                    Some(victim) => self.preempt(victim),
                    None => return,
                },
            }
        }
    }

    /// Slots to leave for what the running requests are expected to generate, and
    /// another one that may generate `remaining` tokens.
    fn spare_beside(&self, remaining: usize) -> usize {
        // Alone it needs no reserve: it fits to its last token.
        if self.running.is_empty() {
            return 0;
        }
        let running = self.running.iter().map(|r| r.request.remaining());
        let all = running.chain([remaining]);
        all.map(|tokens| self.ratio.reserve(tokens)).sum()
    }

    /// Who gives way to a waiting request of `priority`, under the policy that has
    /// some give way.
    fn victim_of(&self, priority: i32) -> Option<usize> {
        let victim = self.victim()?;
        let lower = self.running[victim].request.priority < priority;
        (self.config.schedule == SchedulePolicy::Priority && lower).then_some(victim)
    }

    /// Lets those start that waited for a prefix that is there now.
    fn bring_back_followers(&mut self) {
        let running = &self.running;
        self.waiting.unpark(|leader| {
            let leader = running.iter().find(|r| r.request.id == leader)?;
            (leader.pending() > 1).then_some(leader.kv.computed)
        });
    }

    fn start(&mut self, id: RequestId, kv: RequestKv) {
        let mut request = self.waiting.remove(id).expect("it waits");
        if request.start(kv.reused()) {
            self.counters.started += 1;
            self.counters.prompt_tokens += request.prompt_len as u64;
            // What a grammar forces after the prompt may be cached, too.
            let cached = kv.reused().min(request.prompt_len);
            self.counters.cached_tokens += cached as u64;
            self.counters.host_tokens += cached.saturating_sub(kv.computed) as u64;
        }
        self.running.push(Running { request, kv });
    }

    /// Takes in what the forward of `batch` computed: caches finished chunks,
    /// samples, and lets go of the requests that are done.
    pub fn advance(&mut self, batch: &StepBatch, logits: &mut Logits) {
        self.take_in_copies(batch);
        self.counters.computed_tokens += batch.tokens() as u64;
        let mut rows = logits.values.chunks_exact_mut(logits.vocab);
        let hidden_rows = batch.forward.hidden_rows.len().max(1);
        let mut hidden = logits
            .hidden
            .chunks_exact((logits.hidden.len() / hidden_rows).max(1));
        for grant in &batch.grants {
            let Running { request, kv } = &mut self.running[grant.request];
            kv.computed += grant.tokens;
            for row in rows.by_ref().take(grant.scored_rows) {
                request.note_logprob(row);
            }
            for state in hidden.by_ref().take(grant.hidden_rows) {
                request.pool(state);
            }
            if grant.tokens > 1 || request.output_len() == 0 {
                // A prompt is shared as soon as it is computed, not when its
                // request is done.
                checkpoint(&mut self.kv, &mut self.waiting, request, kv);
            }
            if request.is_prompt_done(kv.computed) {
                request.prompt_done();
            }
            self.counters.forced_tokens += request.send_forced() as u64;
            if grant.samples {
                let row = rows.next().expect("the executor's rows were counted");
                // What is forced may have ended it.
                if request.outcome.is_none() {
                    let heard = request.sample(row);
                    self.counters.generated_tokens += heard.sampled as u64;
                    self.counters.forced_tokens += heard.forced as u64;
                }
            }
        }
        // After all rows, so that grammars of several requests are worked out together.
        let mut to_jump = Grace::to_jump(self.batch_made.elapsed());
        self.hear_grammars(&mut Grace::to_follow(), &mut to_jump);
        self.retire_done();
    }

    /// Ends the requests of a forward that failed. Nothing of it is cached.
    pub fn fail(&mut self, batch: &StepBatch, error: &str) {
        self.take_in_copies(batch);
        for grant in &batch.grants {
            self.running[grant.request].request.outcome = Some(Outcome::Failed(error.to_owned()));
        }
        self.retire_done();
    }

    /// Sends all running requests back to the queue.
    pub fn retract_all(&mut self) {
        self.retract(0);
    }

    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Forgets every cached prefix that no running request reads; returns how
    /// many tokens they had.
    pub fn flush_cache(&mut self) -> usize {
        self.ratio.reset();
        self.kv.flush()
    }

    /// Takes the requests with an outcome out of `running`. What they computed
    /// is cached, unless computing it failed.
    fn retire_done(&mut self) {
        let done = self
            .running
            .extract_if(.., |running| running.request.outcome.is_some());
        for Running {
            mut request,
            mut kv,
        } in done.collect::<Vec<_>>()
        {
            let outcome = request.outcome.take().expect("it is done");
            if !matches!(outcome, Outcome::Failed(_)) {
                checkpoint(&mut self.kv, &mut self.waiting, &request, &mut kv);
            }
            self.kv.release(kv);
            self.bid_farewell(request, outcome);
        }
    }

    fn bid_farewell(&mut self, request: ActiveRequest, outcome: Outcome) {
        *match outcome {
            Outcome::Finished(FinishReason::Cancelled | FinishReason::Aborted)
            | Outcome::Cancelled => &mut self.counters.cancelled,
            Outcome::Finished(_) | Outcome::Satisfied => &mut self.counters.finished,
            Outcome::Failed(_) => &mut self.counters.failed,
        } += 1;
        self.farewells.extend(request.end(outcome));
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
            held: self.running.iter().map(|running| running.kv.held()).sum(),
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
    running: &Running,
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

/// Caches what `kv` has computed of `request`, and tells those who wait for it.
fn checkpoint(
    cache: &mut Kv,
    waiting: &mut WaitingQueue,
    request: &ActiveRequest,
    kv: &mut RequestKv,
) {
    let new = cache.checkpoint(request, kv);
    waiting.cached(&request.namespace, &request.tokens, new.start, new.end);
}

/// The running request that is about to compute more of the prompt of `request`
/// than the cache has, if that is worth waiting for, and how much of it; of several
/// the one that computes most of it.
fn leader(
    running: &[Running],
    request: &ActiveRequest,
    found: Peeked,
    config: &EngineConfig,
) -> Option<(RequestId, usize)> {
    if !config.prefix_cache {
        return None;
    }
    let reusable = &request.tokens[..request.reusable()];
    let prefills = running
        .iter()
        .filter(|leader| leader.pending() > 1 && leader.request.namespace == request.namespace);
    prefills
        .map(|leader| {
            let common = common_prefix(reusable, &leader.request.tokens);
            let shared = common / config.page_size * config.page_size;
            (leader, shared)
        })
        .filter(|(leader, shared)| {
            *shared > leader.kv.computed && *shared >= found.tokens + WORTH_WAITING
        })
        .map(|(leader, shared)| (leader.request.id, shared))
        .max_by_key(|&(_, shared)| shared)
}

#[cfg(test)]
mod tests;
