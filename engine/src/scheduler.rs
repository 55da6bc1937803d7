//! Who runs next, with which slots.

use std::cmp::Reverse;
use std::collections::HashMap;

use hearth_radix::{Peeked, common_prefix};
use tokio::sync::mpsc::UnboundedSender;

use crate::active::{ActiveRequest, Outcome, Running};
use crate::admission::NewTokenRatio;
use crate::batch::StepBatch;
use crate::command::AbortTarget;
use crate::config::EngineConfig;
use crate::executor::{ExecutorLimits, Logits};
use crate::inbox::{RequestId, Submission, Withdrawal};
use crate::kv::{Kv, RequestKv};
use crate::queue::{SchedulePolicy, WaitingQueue};
use crate::request::{Event, FinishReason};
use crate::stats::{EngineStats, KvStats};

/// Logits that a step may compute for log-probabilities of prompts, in values
/// (64 MiB).
const PROMPT_LOGITS: usize = 16 << 20;

/// Waiting requests looked at in one step: bounds what a step costs, and with it
/// how many requests can start in one.
const LOOKED_AT: usize = 128;

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
    /// Steps scheduled, for `config.retract_every`.
    scheduled: u64,
    /// Counters only; `kv`, `waiting` and `running` are filled in by `stats`.
    counters: EngineStats,
    /// Last events, kept back until the statistics they change are published.
    farewells: Vec<(UnboundedSender<Event>, Event)>,
}

impl Scheduler {
    pub fn new(config: EngineConfig, limits: ExecutorLimits) -> Self {
        Self {
            kv: Kv::new(limits.kv_slots, &config),
            waiting: WaitingQueue::new(config.schedule, config.page_size),
            config,
            limits,
            running: Vec::new(),
            ratio: NewTokenRatio::new(),
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
            self.waiting.push(ActiveRequest::new(submission));
        }
    }

    /// Fills `batch` with the next step: every decoding request's row, then chunks
    /// of several prompts as far as the token budget goes.
    pub fn schedule(&mut self, batch: &mut StepBatch) {
        batch.clear();
        self.scheduled += 1;
        if let Some(every) = self.config.retract_every
            && self.scheduled.is_multiple_of(every)
        {
            self.retract(1);
        }
        if self.make_room_to_decode() {
            self.admit();
        }
        let mut prompt_rows = (PROMPT_LOGITS / self.limits.vocab_size).max(1);
        let mut prefills = Vec::new();
        for (index, running) in self.running.iter().enumerate() {
            match running.pending() {
                1 => grant(batch, index, running, 1, &mut prompt_rows),
                _ => prefills.push(index),
            }
        }
        self.share_among_prefills(&mut prefills, batch, &mut prompt_rows);
    }

    /// Divides what the decoding requests left of the token budget: at least half
    /// of it to the prompt that started first, so that it gets done; the rest to the
    /// others, those with least left to compute first, so that none of them waits
    /// for a long one.
    fn share_among_prefills(
        &self,
        prefills: &mut [usize],
        batch: &mut StepBatch,
        prompt_rows: &mut usize,
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
            grant(batch, index, &self.running[index], tokens, prompt_rows);
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
        let Running { request, mut kv } = self.running.remove(index);
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
        if request.start(kv.computed) {
            self.counters.started += 1;
            self.counters.prompt_tokens += request.prompt_len as u64;
            // What a grammar forces after the prompt may be cached, too.
            let cached = kv.computed.min(request.prompt_len);
            self.counters.cached_tokens += cached as u64;
        }
        self.running.push(Running { request, kv });
    }

    /// Takes in what the forward of `batch` computed: caches finished chunks,
    /// samples, and lets go of the requests that are done.
    pub fn advance(&mut self, batch: &StepBatch, logits: &mut Logits) {
        self.counters.computed_tokens += batch.tokens() as u64;
        let mut rows = logits.values.chunks_exact_mut(logits.vocab);
        for grant in &batch.grants {
            let Running { request, kv } = &mut self.running[grant.request];
            kv.computed += grant.tokens;
            for row in rows.by_ref().take(grant.prompt_rows) {
                request.note_prompt_logprob(row);
            }
            if grant.tokens > 1 || request.output_len() == 0 {
                // A prompt is shared as soon as it is computed, not when its
                // request is done.
                checkpoint(&mut self.kv, &mut self.waiting, request, kv);
            }
            if request.is_prompt_done(kv.computed) {
                self.counters.forced_tokens += request.prompt_done() as u64;
            }
            if grant.samples {
                let row = rows.next().expect("the executor's rows were counted");
                // What is forced may have ended it.
                if request.outcome.is_none() {
                    self.counters.generated_tokens += u64::from(request.sample(row));
                }
            }
        }
        // After all rows, so that grammars of several requests are worked out together.
        for grant in &batch.grants {
            let forced = self.running[grant.request].request.settle();
            self.counters.forced_tokens += forced as u64;
        }
        self.retire_done();
    }

    /// Ends the requests of a forward that failed. Nothing of it is cached.
    pub fn fail(&mut self, batch: &StepBatch, error: &str) {
        for grant in &batch.grants {
            self.running[grant.request].request.outcome = Some(Outcome::Failed(error.to_owned()));
        }
        self.retire_done();
    }

    /// Ends requests whose consumers want no more.
    pub fn withdraw(&mut self, withdrawn: Vec<(RequestId, Withdrawal)>) {
        let mut from_running = HashMap::new();
        for (id, why) in withdrawn {
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
                request.outcome = from_running.remove(&request.id);
            }
            self.retire_done();
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
        debug_assert!(kv.is_conserved(), "{kv:?}");
        let (waiting, running) = (self.waiting.len(), self.running.len());
        EngineStats {
            kv,
            waiting,
            running,
            steps,
            ..self.counters
        }
    }
}

/// Adds `tokens` of `running` to the batch, or as many as have not more rows of
/// prompt log-probabilities than `prompt_rows`, which are taken from it.
fn grant(
    batch: &mut StepBatch,
    index: usize,
    running: &Running,
    mut tokens: usize,
    prompt_rows: &mut usize,
) {
    // Not all of a chunk's rows need be wanted: after a preemption it may
    // begin before the first whose log-probability is still missing.
    let start = running.kv.computed;
    let mut wanted = running
        .request
        .wanted_prompt_logprobs(start, start + tokens);
    if wanted.len() > *prompt_rows {
        wanted.end = wanted.start + *prompt_rows;
        tokens = wanted.end - start;
    }
    *prompt_rows -= wanted.len();
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
mod tests {
    use super::*;
    use hearth_radix::EvictionPolicy;

    use crate::inbox::Inbox;
    use crate::params::SamplingParams;
    use crate::request::Request;

    const LIMITS: ExecutorLimits = ExecutorLimits {
        kv_slots: 64,
        max_model_len: 48,
        vocab_size: 4,
    };

    /// A scheduler without a thread, looked into after every move.
    struct Bench {
        inbox: Inbox,
        scheduler: Scheduler,
        batch: StepBatch,
        random: u64,
        ids: Vec<RequestId>,
    }

    impl Bench {
        fn new(config: EngineConfig, seed: u64) -> Self {
            Self {
                inbox: Inbox::new(usize::MAX),
                scheduler: Scheduler::new(config, LIMITS),
                batch: StepBatch::default(),
                random: seed,
                ids: Vec::new(),
            }
        }

        fn below(&mut self, bound: u64) -> u64 {
            self.random = self
                .random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1);
            (self.random >> 33) % bound
        }

        /// Prompts of two tokens in random order, so that many share a beginning.
        fn submit(&mut self) {
            let len = 1 + self.below(30) as usize;
            let params = SamplingParams {
                max_tokens: self.below((LIMITS.max_model_len - len) as u64) as usize,
                prompt_logprobs: (self.below(8) == 0).then_some(1),
                ..SamplingParams::default()
            };
            let request = Request {
                prompt: (0..len).map(|_| self.below(2) as u32).collect(),
                params,
                namespace: (self.below(4) == 0).then(|| "other".to_owned()),
                priority: self.below(3) as i32,
                ..Request::default()
            };
            let (sender, _) = tokio::sync::mpsc::unbounded_channel();
            self.ids.push(self.inbox.submit(request, sender).unwrap());
            self.scheduler.enqueue(self.inbox.collect(false).submitted);
        }

        fn withdraw(&mut self) {
            let index = self.below(self.ids.len() as u64 + 1) as usize;
            if let Some(&id) = self.ids.get(index) {
                let twice = vec![(id, Withdrawal::Cancelled), (id, Withdrawal::Satisfied)];
                self.scheduler.withdraw(twice);
            }
        }

        fn step(&mut self, fails: bool) {
            self.scheduler.schedule(&mut self.batch);
            self.check();
            if fails {
                return self.scheduler.fail(&self.batch, "as it was told to");
            }
            let rows = self.batch.forward.logit_rows.len();
            let values = (0..rows * LIMITS.vocab_size).map(|_| self.below(100) as f32 / 20.0);
            let mut logits = Logits {
                values: values.collect(),
                vocab: LIMITS.vocab_size,
            };
            self.scheduler.advance(&self.batch, &mut logits);
        }

        fn check(&mut self) {
            let Scheduler {
                running,
                waiting,
                kv,
                ..
            } = &mut self.scheduler;
            kv.check(running.iter().map(|running| &running.kv));
            let running = running.iter().map(|running| running.request.id);
            let arrivals: Vec<_> = running.chain(waiting.iter().map(|r| r.id)).collect();
            if self.scheduler.config.schedule == SchedulePolicy::Fcfs {
                assert!(
                    arrivals.is_sorted(),
                    "first come, first served: {arrivals:?}"
                );
            }
        }
    }

    #[test]
    fn no_slot_is_ever_lost_or_shared_by_mistake_and_nobody_overtakes() {
        let mut preemptions = 0;
        for seed in 0..60 {
            let config = EngineConfig {
                max_running: 1 + seed as usize % 12,
                max_batch_tokens: 1 + seed as usize * 7 % 50,
                prefill_chunk: 1 + seed as usize % 9,
                prefix_cache: seed % 4 != 0,
                page_size: 1 << (seed / 4 % 3),
                schedule: [
                    SchedulePolicy::Fcfs,
                    SchedulePolicy::Lpm,
                    SchedulePolicy::DfsWeight,
                    SchedulePolicy::Lof,
                    SchedulePolicy::Priority,
                    SchedulePolicy::Random,
                ][seed as usize % 6],
                eviction: [EvictionPolicy::Lru, EvictionPolicy::Priority][seed as usize % 2],
                ..EngineConfig::default()
            };
            let mut bench = Bench::new(config, seed);
            for _ in 0..300 {
                match bench.below(20) {
                    0..4 => bench.submit(),
                    4 => bench.withdraw(),
                    5 => bench.step(true),
                    _ => bench.step(false),
                }
                bench.check();
            }
            while !bench.scheduler.is_idle() {
                bench.step(false);
                assert!(!bench.batch.is_empty(), "whoever waits gets on");
            }
            let stats = bench.scheduler.stats(0);
            assert_eq!((stats.kv.held, stats.kv.protected), (0, 0));
            let ended = stats.finished + stats.cancelled + stats.failed;
            assert_eq!(ended, bench.ids.len() as u64);
            preemptions += stats.preemptions;
        }
        assert!(
            preemptions > 20,
            "the pool is too small for all: {preemptions}"
        );
    }

    /// How many others start before a request with nothing in the cache, while two
    /// that have all of theirs there come in every step.
    fn passed_by(policy: SchedulePolicy) -> u64 {
        let config = EngineConfig {
            max_running: 1,
            schedule: policy,
            ..EngineConfig::default()
        };
        let mut bench = Bench::new(config, 1);
        let submit = |bench: &mut Bench, prompt: Vec<u32>, max_tokens| {
            let request = Request {
                prompt,
                params: SamplingParams {
                    max_tokens,
                    ..SamplingParams::default()
                },
                ..Request::default()
            };
            let (sender, _) = tokio::sync::mpsc::unbounded_channel();
            let id = bench.inbox.submit(request, sender).unwrap();
            bench
                .scheduler
                .enqueue(bench.inbox.collect(false).submitted);
            id
        };
        submit(&mut bench, vec![1; 20], 5);
        bench.step(false);
        let cold = submit(&mut bench, vec![2; 20], 1);
        for started in 0..2000 {
            if bench.scheduler.running.iter().any(|r| r.request.id == cold) {
                return started;
            }
            for _ in 0..2 {
                submit(&mut bench, vec![1; 20], 5);
            }
            while bench.scheduler.running() > 0 {
                bench.step(false);
            }
            bench.scheduler.schedule(&mut bench.batch);
        }
        u64::MAX
    }

    #[test]
    fn a_request_without_a_match_starts_within_the_bound_whatever_keeps_coming() {
        // Two more come with each start: two before its generation begins, and 256 join.
        let bound = 1 + 2 + 256;
        for policy in [SchedulePolicy::Lpm, SchedulePolicy::Lof] {
            let passed = passed_by(policy);
            assert!((100..=bound).contains(&passed), "{policy:?}: {passed}");
        }
        assert!(passed_by(SchedulePolicy::Fcfs) <= 1);
        assert!(passed_by(SchedulePolicy::DfsWeight) <= 3);
        assert!(passed_by(SchedulePolicy::Random) <= bound);
    }

    #[test]
    fn prompt_logprobs_of_all_requests_together_keep_to_their_bound() {
        let limits = ExecutorLimits {
            kv_slots: 1000,
            max_model_len: 500,
            vocab_size: PROMPT_LOGITS / 8,
        };
        let mut scheduler = Scheduler::new(EngineConfig::default(), limits);
        let inbox = Inbox::new(usize::MAX);
        for _ in 0..3 {
            let params = SamplingParams {
                prompt_logprobs: Some(0),
                ..SamplingParams::default()
            };
            let request = Request {
                prompt: vec![1; 6],
                params,
                ..Request::default()
            };
            let (sender, _) = tokio::sync::mpsc::unbounded_channel();
            inbox.submit(request, sender).unwrap();
        }
        scheduler.enqueue(inbox.collect(false).submitted);
        let mut batch = StepBatch::default();
        scheduler.schedule(&mut batch);
        let tokens: Vec<_> = batch.grants.iter().map(|grant| grant.tokens).collect();
        // Five rows of the first prompt, whose last token's is not for a log-probability.
        assert_eq!(tokens, [6, 3]);
    }

    #[test]
    fn a_chunk_that_begins_before_the_wanted_rows_keeps_to_their_bound_too() {
        let limits = ExecutorLimits {
            kv_slots: 1000,
            max_model_len: 500,
            vocab_size: PROMPT_LOGITS / 8,
        };
        let config = EngineConfig {
            max_batch_tokens: 5,
            prefill_chunk: 5,
            prefix_cache: false,
            ..EngineConfig::default()
        };
        let mut scheduler = Scheduler::new(config, limits);
        let inbox = Inbox::new(usize::MAX);
        let params = SamplingParams {
            prompt_logprobs: Some(0),
            ..SamplingParams::default()
        };
        let request = Request {
            prompt: vec![1; 40],
            params,
            ..Request::default()
        };
        let (sender, _) = tokio::sync::mpsc::unbounded_channel();
        inbox.submit(request, sender).unwrap();
        scheduler.enqueue(inbox.collect(false).submitted);
        let mut batch = StepBatch::default();
        let mut step = |scheduler: &mut Scheduler| {
            scheduler.schedule(&mut batch);
            let rows = batch.forward.logit_rows.len();
            let mut logits = Logits {
                values: vec![0.0; rows * limits.vocab_size],
                vocab: limits.vocab_size,
            };
            scheduler.advance(&batch, &mut logits);
            (batch.grants[0].tokens, rows)
        };
        assert_eq!(step(&mut scheduler), (5, 5));
        // Nothing of it is cached: it computes the five again, which want no logits now.
        scheduler.preempt(0);
        scheduler.config.max_batch_tokens = 40;
        assert_eq!(step(&mut scheduler), (13, 8));
        assert_eq!(step(&mut scheduler), (8, 8));
    }
}
