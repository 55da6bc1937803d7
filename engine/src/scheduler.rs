//! Who runs next, with which slots.

use std::collections::{HashMap, VecDeque};

use tokio::sync::mpsc::UnboundedSender;

use crate::active::{ActiveRequest, Outcome, Running};
use crate::admission::NewTokenRatio;
use crate::batch::StepBatch;
use crate::config::EngineConfig;
use crate::executor::{ExecutorLimits, Logits};
use crate::inbox::{RequestId, Submission, Withdrawal};
use crate::kv::Kv;
use crate::request::{Event, FinishReason};
use crate::stats::{EngineStats, KvStats};

/// Logits that one request may ask of a step for its prompt, in values (64 MiB).
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
        let (decode, prefill) = ((1, 1), (2, usize::MAX));
        for (least, most) in [decode, prefill] {
            for (index, running) in self.running.iter().enumerate() {
                let budget = self.config.max_batch_tokens - batch.tokens();
                let pending = running.pending();
                if budget > 0 && (least..=most).contains(&pending) {
                    let most = self.most_tokens(&running.request).min(chunk).min(budget);
                    batch.push(index, running, pending.min(most));
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

    /// A bound on one request's chunk: the logits of its prompt must fit in memory.
    fn most_tokens(&self, request: &ActiveRequest) -> usize {
        match request.params.prompt_logprobs {
            Some(_) => (PROMPT_LOGITS / self.limits.vocab_size).max(1),
            None => usize::MAX,
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
            Outcome::Finished(FinishReason::Cancelled) | Outcome::Cancelled => {
                &mut self.counters.cancelled
            }
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
