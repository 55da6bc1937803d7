use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hearth_forward::{AdaptedMatrix, Adapter, ForwardOutput, TableNumbers, WholeTable};
use hearth_radix::EvictionPolicy;

use super::*;
use crate::batch::SampleKind;
use crate::inbox::{Inbox, Wait, Withdrawal};
use crate::policy::SchedulePolicy;
use crate::request::Request;
use crate::request_id::RequestId;
use crate::sampling::params::SamplingParams;

const LIMITS: ExecutorLimits = ExecutorLimits {
    kv_slots: 64,
    max_model_len: 48,
    vocab_size: 4,
};

const SLOTS: SlotCounts = SlotCounts {
    all: 2,
    with_tables: 1,
};

/// A scheduler without a thread, whose invariants are checked after every call.
struct Bench {
    inbox: Inbox,
    scheduler: Scheduler,
    batch: StepBatch,
    /// The step after `batch`, if it overlaps.
    next_batch: StepBatch,
    /// Steps that were scheduled before the step before them completed.
    overlapped: usize,
    device: DeviceIs,
    random: u64,
    ids: Vec<RequestId>,
    /// Requests that have waited for a prefix, while which others pass them under every policy.
    passed: BTreeSet<RequestId>,
    /// Whether no request arrives or is withdrawn while the device is busy.
    quiet: bool,
    /// True if some requests have adapters.
    adapters: bool,
}

impl Bench {
    fn new(config: EngineConfig, seed: u64) -> Self {
        Self::with_executor(config, seed, false)
    }

    fn with_executor(config: EngineConfig, seed: u64, executor_samples: bool) -> Self {
        Self {
            inbox: Inbox::new(usize::MAX, 0),
            scheduler: Scheduler::new(config, LIMITS, KvSizes::of(LIMITS), SLOTS),
            batch: StepBatch::new(executor_samples, 0),
            next_batch: StepBatch::new(executor_samples, 1),
            overlapped: 0,
            device: DeviceIs::Idle,
            random: seed,
            ids: Vec::new(),
            passed: BTreeSet::new(),
            quiet: false,
            adapters: false,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1);
        (self.random >> 33) % bound
    }

    /// Submits a prompt of two different tokens in random order, so that many prompts share a
    /// prefix.
    fn submit(&mut self) {
        let len = 1 + self.below(30) as usize;
        let params = SamplingParams {
            // Every run of a test takes the same steps.
            seed: Some(self.random),
            max_tokens: self.below((LIMITS.max_model_len - len) as u64) as usize,
            prompt_logprobs: (self.below(8) == 0).then_some(1),
            eos_token_ids: if self.below(4) == 0 {
                vec![3]
            } else {
                Vec::new()
            },
            ..SamplingParams::default()
        };
        let fcfs = self.scheduler.config.schedule == SchedulePolicy::Fcfs;
        // Otherwise a request that arrived first could be preempted for one of higher priority.
        let priority = if fcfs { 0 } else { self.below(3) as i32 };
        let request = Request {
            prompt: (0..len).map(|_| self.below(2) as u32).collect(),
            params,
            namespace: (self.below(4) == 0).then(|| "other".to_owned()),
            priority,
            adapter: self.adapter(),
            ..Request::default()
        };
        let (sender, _) = tokio::sync::mpsc::unbounded_channel();
        let id = self.inbox.submit(vec![(request, sender)]).unwrap();
        self.ids.push(id);
        self.scheduler
            .enqueue(self.inbox.collect(Wait::No).requests);
    }

    /// One of four adapters, for which there are two slots, or none. Two of them need a slot with room for
    /// whole tables.
    fn adapter(&mut self) -> Option<Arc<Adapter>> {
        let adapter = |digest: u64| {
            let table = WholeTable {
                matrix: AdaptedMatrix::Embedding,
                numbers: TableNumbers::F32,
                bytes: Arc::default(),
            };
            Arc::new(Adapter {
                digest: digest.to_string(),
                changes: Vec::new(),
                tables: vec![table; digest as usize % 2],
            })
        };
        let index = self.below(12);
        (self.adapters && index < 4).then(|| adapter(index))
    }

    fn withdraw(&mut self) {
        let index = self.below(self.ids.len() as u64 + 1) as usize;
        if let Some(&id) = self.ids.get(index) {
            let twice = [(id, Withdrawal::Cancelled), (id, Withdrawal::Satisfied)];
            self.scheduler.withdraw(&twice, self.device);
        }
    }

    /// A step, and the steps that overlap it and one another.
    fn step(&mut self, fails: bool) {
        self.scheduler.schedule(&mut self.batch);
        if !self.batch.is_empty() {
            self.device = DeviceIs::Busy;
        }
        self.check();
        let requests =
            self.scheduler
                .sample_requests(&mut self.batch, &mut WaitBudget::none(), true);
        assert!(requests.is_some());
        let mut in_flight = true;
        while in_flight {
            self.work_beside_the_device();
            let may_overlap = self.below(3) > 0;
            let requests =
                may_overlap.then(|| self.scheduler.overlap(&self.batch, &mut self.next_batch));
            in_flight = requests.flatten().is_some_and(|requests| {
                let carried = &self.next_batch.forward.carried_rows;
                assert_eq!(requests.len(), carried.len());
                true
            });
            self.check();
            if !in_flight {
                self.device = DeviceIs::Idle;
            }
            self.complete(fails);
            self.check();
            if in_flight {
                std::mem::swap(&mut self.batch, &mut self.next_batch);
                self.overlapped += 1;
            }
        }
    }

    /// While the device is busy, requests arrive and are withdrawn.
    fn work_beside_the_device(&mut self) {
        for _ in 0..self.below(3) {
            self.scheduler.prepare_next();
            self.check();
            match self.below(6) {
                0 if !self.quiet => self.submit(),
                1 if !self.quiet => self.withdraw(),
                _ => {}
            }
        }
    }

    fn complete(&mut self, fails: bool) {
        let rows = self.batch.forward.logit_rows.len();
        let values = (0..rows * LIMITS.vocab_size).map(|_| self.below(100) as f32 / 20.0);
        let mut output = ForwardOutput {
            logits: values.collect(),
            ..ForwardOutput::default()
        };
        let kinds = self.batch.sample_kinds.iter();
        let tokens = kinds.filter(|kind| **kind == SampleKind::Token).count();
        // Sometimes no token can be sampled.
        output.sampled = (0..tokens)
            .map(|_| (self.below(50) > 0).then(|| self.below(4) as u32))
            .collect();
        let sampled = Some(&mut output.sampled);
        self.scheduler.drop_ended_rows(&mut self.batch, sampled);
        match fails {
            true => self.scheduler.fail(&self.batch, "as the test says"),
            false => self
                .scheduler
                .complete(&self.batch, &mut output, Duration::ZERO),
        }
    }

    fn check(&mut self) {
        let Scheduler {
            running,
            ended,
            waiting,
            kv,
            adapters,
            ..
        } = &mut self.scheduler;
        adapters.check(
            running
                .iter()
                .map(|r| (r.adapter_slot, r.request.adapter.as_deref())),
        );
        let holding = running.iter().chain(&*ended);
        kv.check(holding.map(|running| &running.kv));
        let running = running.iter().map(|running| running.request.id);
        self.passed.extend(waiting.parked());
        let arrivals = running.chain(waiting.iter().map(|r| r.id));
        let arrivals: Vec<_> = arrivals.filter(|id| !self.passed.contains(id)).collect();
        // Requests pass those that wait for a slot for their adapters.
        if self.scheduler.config.schedule == SchedulePolicy::Fcfs && !self.adapters {
            assert!(
                arrivals.is_sorted(),
                "first come, first served: {arrivals:?}"
            );
        }
    }
}

#[test]
fn no_slot_is_ever_lost_or_wrongly_shared_and_no_request_overtakes_another() {
    let (mut preemptions, mut overlapped) = (0, 0);
    for seed in 0..90 {
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
        let mut bench = Bench::with_executor(config, seed, seed >= 60);
        bench.adapters = seed % 5 >= 3;
        for _ in 0..300 {
            match bench.below(20) {
                0..4 => bench.submit(),
                4 => bench.withdraw(),
                5 => bench.step(true),
                _ => bench.step(false),
            }
            bench.check();
        }
        bench.quiet = true;
        while !bench.scheduler.is_idle() {
            bench.step(false);
            let continues = bench.batch.tokens() > 0 || bench.scheduler.is_idle();
            assert!(continues, "some request continues in every step");
        }
        let stats = bench.scheduler.stats(0);
        assert_eq!((stats.kv.held, stats.kv.protected), (0, 0));
        let ended = stats.finished + stats.cancelled + stats.failed;
        assert_eq!(ended, bench.ids.len() as u64);
        preemptions += stats.preemptions;
        overlapped += bench.overlapped;
    }
    assert!(overlapped > 200, "steps overlap: {overlapped}");
    assert!(
        preemptions > 20,
        "the pool is too small for all requests: {preemptions}"
    );
}

/// How many other requests start before one whose prompt is not cached, while in every step two
/// requests arrive whose prompts are cached.
fn overtaken(policy: SchedulePolicy) -> u64 {
    let config = EngineConfig {
        max_running: 1,
        schedule: policy,
        ..EngineConfig::default()
    };
    let mut bench = Bench::new(config, 1);
    bench.quiet = true;
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
        let id = bench.inbox.submit(vec![(request, sender)]).unwrap();
        bench
            .scheduler
            .enqueue(bench.inbox.collect(Wait::No).requests);
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
fn a_request_without_a_match_starts_within_the_bound_while_others_keep_arriving() {
    // Two requests arrive with each start: two before the round of the request begins, and 256
    // join it.
    let bound = 1 + 2 + 256;
    for policy in [SchedulePolicy::Lpm, SchedulePolicy::Lof] {
        let overtaken = overtaken(policy);
        assert!(
            (100..=bound).contains(&overtaken),
            "{policy:?}: {overtaken}"
        );
    }
    assert!(overtaken(SchedulePolicy::Fcfs) <= 1);
    assert!(overtaken(SchedulePolicy::DfsWeight) <= 3);
    assert!(overtaken(SchedulePolicy::Random) <= bound);
}

/// With this vocabulary, a step has room for eight rows of log-probabilities.
const WIDE: ExecutorLimits = ExecutorLimits {
    kv_slots: 1000,
    max_model_len: 500,
    vocab_size: SCORED_LOGITS / 8,
};

/// A scheduler with prompts of `len` tokens that ask for all of their log-probabilities.
fn scored(config: EngineConfig, prompts: usize, len: usize) -> Scheduler {
    let config = EngineConfig {
        max_submission: None,
        ..config
    };
    let sizes = KvSizes::of(WIDE);
    let mut scheduler = Scheduler::new(config, WIDE, sizes, SlotCounts::default());
    let inbox = Inbox::new(usize::MAX, 0);
    for _ in 0..prompts {
        let params = SamplingParams {
            prompt_logprobs: Some(0),
            ..SamplingParams::default()
        };
        let request = Request {
            prompt: vec![1; len],
            params,
            ..Request::default()
        };
        let (sender, _) = tokio::sync::mpsc::unbounded_channel();
        inbox.submit(vec![(request, sender)]).unwrap();
    }
    scheduler.enqueue(inbox.collect(Wait::No).requests);
    scheduler
}

#[test]
fn prompt_logprobs_of_all_requests_together_keep_to_their_bound() {
    let mut scheduler = scored(EngineConfig::default(), 3, 6);
    let mut batch = StepBatch::default();
    scheduler.schedule(&mut batch);
    let tokens: Vec<_> = batch.grants.iter().map(|grant| grant.tokens).collect();
    // Five rows of the first prompt: the row of its last token is for sampling.
    assert_eq!(tokens, [6, 3]);
}

#[test]
fn a_chunk_that_begins_before_the_wanted_rows_also_keeps_to_the_bound() {
    let config = EngineConfig {
        max_batch_tokens: 5,
        prefill_chunk: 5,
        prefix_cache: false,
        ..EngineConfig::default()
    };
    let mut scheduler = scored(config, 1, 40);
    let mut batch = StepBatch::default();
    let mut step = |scheduler: &mut Scheduler| {
        scheduler.schedule(&mut batch);
        let rows = batch.forward.logit_rows.len();
        let mut output = ForwardOutput {
            logits: vec![0.0; rows * WIDE.vocab_size],
            ..ForwardOutput::default()
        };
        scheduler.complete(&batch, &mut output, Duration::ZERO);
        (batch.grants[0].tokens, rows)
    };
    assert_eq!(step(&mut scheduler), (5, 5));
    // None of its tokens are cached: it computes the five again, whose logits are not wanted any
    // more.
    scheduler.preempt(0);
    scheduler.config.max_batch_tokens = 40;
    assert_eq!(step(&mut scheduler), (13, 8));
    assert_eq!(step(&mut scheduler), (8, 8));
}
