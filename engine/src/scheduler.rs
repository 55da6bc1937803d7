//! Who runs next, with which slots.

use std::collections::{HashMap, VecDeque};

use tokio::sync::mpsc::UnboundedSender;

use crate::active::{ActiveRequest, Outcome, Running};
use crate::admission::NewTokenRatio;
use crate::batch::StepBatch;
use crate::command::AbortTarget;
use crate::config::EngineConfig;
use crate::executor::{ExecutorLimits, Logits};
use crate::inbox::{RequestId, Submission, Withdrawal};
use crate::kv::Kv;
use crate::request::{Event, FinishReason};
use crate::stats::{EngineStats, KvStats};

/// Logits that a step may compute for log-probabilities of prompts, in values
/// (64 MiB).
const PROMPT_LOGITS: usize = 16 << 20;

/// First come, first served: `waiting` and `running` are in order of arrival,
/// and whoever runs arrived before whoever waits.
///
/// It cannot get stuck. A request that runs alone always fits, since submission
/// bounds it by the pool and everything else is free or evictable then; and the
/// request that runs longest is never preempted, so that it ends.
#[derive(Debug)]
pub(crate) struct Scheduler {
    config: EngineConfig,
    limits: ExecutorLimits,
    waiting: VecDeque<ActiveRequest>,
    running: Vec<Running>,
    kv: Kv,
    ratio: NewTokenRatio,
    /// Counters only; `kv`, `waiting` and `running` are filled in by `stats`.
    counters: EngineStats,
    /// Last events, kept back until the statistics they change are published.
    farewells: Vec<(UnboundedSender<Event>, Event)>,
}

impl Scheduler {
    pub fn new(config: EngineConfig, limits: ExecutorLimits) -> Self {
        Self {
            kv: Kv::new(limits.kv_slots, config.prefix_cache),
            config,
            limits,
            waiting: VecDeque::new(),
            running: Vec::new(),
            ratio: NewTokenRatio::new(),
            counters: EngineStats::default(),
            farewells: Vec::new(),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    pub fn enqueue(&mut self, submitted: Vec<Submission>) {
        self.waiting
            .extend(submitted.into_iter().map(ActiveRequest::new));
    }

    /// Fills `batch` with the next step: every decoding request's row, then
    /// prompt chunks in the order of arrival as far as the token budget goes.
    pub fn schedule(&mut self, batch: &mut StepBatch) {
        batch.clear();
        if self.make_room_to_decode() {
            self.admit();
        }
        let prefills = self
            .running
            .iter()
            .filter(|running| running.pending() > 1)
            .count();
        let fair_share = self.config.max_batch_tokens / prefills.max(1);
        let chunk = self.config.prefill_chunk.max(fair_share);
        let mut logprob_rows = (PROMPT_LOGITS / self.limits.vocab_size).max(1);
        let (decode, prefill) = (1..=1, 2..=usize::MAX);
        for turn in [decode, prefill] {
            for (index, running) in self.running.iter().enumerate() {
                if !turn.contains(&running.pending()) {
                    continue;
                }
                let budget = self.config.max_batch_tokens - batch.tokens();
                let mut tokens = running.pending().min(chunk).min(budget);
                // Not all of a chunk's rows need be wanted: after a preemption it may
                // begin before the first whose log-probability is still missing.
                let start = running.kv.computed;
                let mut wanted = running
                    .request
                    .wanted_prompt_logprobs(start, start + tokens);
                if wanted.len() > logprob_rows {
                    wanted.end = wanted.start + logprob_rows;
                    tokens = wanted.end - start;
                }
                logprob_rows -= wanted.len();
                if tokens > 0 {
                    batch.push(index, running, tokens);
                }
            }
        }
    }

    /// Gives every decoding request the slot for its next token, and preempts
    /// the youngest while there are too few. Returns whether none had to go.
    fn make_room_to_decode(&mut self) -> bool {
        if self.running.is_empty() {
            self.ratio.reset();
            return true;
        }
        let preempted = self.counters.preemptions;
        let short = |running: &&Running| running.kv.slots.len() < running.request.tokens.len();
        let mut wanted = self.running.iter().filter(short).count();
        while wanted > self.kv.usage().available() {
            let youngest = self.running.pop().expect("whoever wants a slot runs");
            wanted -= usize::from(short(&&youngest));
            self.preempt(youngest);
        }
        for running in &mut self.running {
            if short(&&*running) {
                self.kv.grow(&mut running.kv).expect("room was made");
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

    /// Back to the head of the queue. What it computed stays cached for as long
    /// as nobody needs the room, and its output so far stays with it.
    fn preempt(&mut self, running: Running) {
        let Running { request, mut kv } = running;
        self.kv
            .checkpoint(&request.namespace, &request.tokens, &mut kv);
        self.kv.release(kv);
        self.counters.preemptions += 1;
        self.waiting.push_front(request);
    }

    /// Starts waiting requests in order while there is room for them and for
    /// what the running ones are expected to generate.
    fn admit(&mut self) {
        let most_running = self.config.max_running.min(self.config.max_batch_tokens);
        let remaining = self
            .running
            .iter()
            .map(|running| running.request.remaining());
        let mut reserved: usize = remaining.map(|tokens| self.ratio.reserve(tokens)).sum();
        while self.running.len() < most_running
            && let Some(request) = self.waiting.front()
        {
            let reserve = self.ratio.reserve(request.remaining());
            // Alone it needs no reserve: it fits to its last token.
            let spare = if self.running.is_empty() {
                0
            } else {
                reserved + reserve
            };
            let ActiveRequest {
                namespace, tokens, ..
            } = request;
            let Some(kv) = self.kv.admit(namespace, tokens, request.reusable(), spare) else {
                return;
            };
            reserved += reserve;
            let mut request = self.waiting.pop_front().expect("it was at the front");
            if request.start(kv.computed) {
                self.counters.prompt_tokens += request.prompt_len as u64;
                self.counters.cached_tokens += kv.computed as u64;
            }
            self.running.push(Running { request, kv });
        }
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
                self.kv.checkpoint(&request.namespace, &request.tokens, kv);
            }
            if request.output_len() == 0 && kv.computed == request.prompt_len {
                request.prompt_done();
            }
            if grant.samples {
                let row = rows.next().expect("the executor's rows were counted");
                self.counters.generated_tokens += u64::from(request.sample(row));
            }
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
        if withdrawn.is_empty() {
            return;
        }
        let why: HashMap<_, _> = withdrawn.into_iter().collect();
        let outcome = |request: &ActiveRequest| match why.get(&request.id)? {
            Withdrawal::Cancelled => Some(Outcome::Cancelled),
            Withdrawal::Satisfied => Some(Outcome::Satisfied),
        };
        self.end_where(outcome);
    }

    /// Ends all requests, telling their consumers.
    pub fn cancel_all(&mut self) {
        self.end_where(|_| Some(Outcome::Finished(FinishReason::Cancelled)));
    }

    /// Ends those of the requests before `before` that `target` names, telling
    /// their consumers; returns how many.
    pub fn abort(&mut self, target: &AbortTarget, before: RequestId) -> usize {
        let ended = self.farewells.len();
        self.end_where(|request| {
            let meant = request.id < before && target.matches(request.name.as_deref());
            meant.then_some(Outcome::Finished(FinishReason::Aborted))
        });
        self.farewells.len() - ended
    }

    pub fn abort_all(&mut self) {
        self.end_where(|_| Some(Outcome::Finished(FinishReason::Aborted)));
    }

    /// Sends all running requests back to the queue.
    pub fn retract_all(&mut self) {
        while let Some(youngest) = self.running.pop() {
            self.preempt(youngest);
        }
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
        for mut request in std::mem::take(&mut self.waiting) {
            request.outcome = outcome(&request);
            match request.outcome {
                Some(_) => self.bid_farewell(request),
                None => self.waiting.push_back(request),
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
        for Running { request, mut kv } in done.collect::<Vec<_>>() {
            if !matches!(request.outcome, Some(Outcome::Failed(_))) {
                self.kv
                    .checkpoint(&request.namespace, &request.tokens, &mut kv);
            }
            self.kv.release(kv);
            self.bid_farewell(request);
        }
    }

    fn bid_farewell(&mut self, mut request: ActiveRequest) {
        let outcome = request
            .outcome
            .take()
            .expect("a request leaves with an outcome");
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

#[cfg(test)]
mod tests {
    use super::*;
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
                id: None,
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
            assert!(
                arrivals.is_sorted(),
                "first come, first served: {arrivals:?}"
            );
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
        let running = scheduler.running.pop().unwrap();
        scheduler.preempt(running);
        scheduler.config.max_batch_tokens = 40;
        assert_eq!(step(&mut scheduler), (13, 8));
        assert_eq!(step(&mut scheduler), (8, 8));
    }
}
