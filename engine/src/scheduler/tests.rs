use hearth_radix::EvictionPolicy;

use super::*;
use crate::batch::Asked;
use crate::executor::Logits;
use crate::inbox::{Inbox, RequestId, Wait, Withdrawal};
use crate::params::SamplingParams;
use crate::queue::SchedulePolicy;
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
    /// For the step after it.
    behind: StepBatch,
    /// Steps that were launched ahead.
    followed: usize,
    random: u64,
    ids: Vec<RequestId>,
    /// Whether nobody comes or goes while the device is at a batch.
    quiet: bool,
}

impl Bench {
    fn new(config: EngineConfig, seed: u64) -> Self {
        Self::with_executor(config, seed, false)
    }

    fn with_executor(config: EngineConfig, seed: u64, chooses: bool) -> Self {
        Self {
            inbox: Inbox::new(usize::MAX),
            scheduler: Scheduler::new(config, LIMITS, 0),
            batch: StepBatch::new(chooses, 0),
            behind: StepBatch::new(chooses, 1),
            followed: 0,
            random: seed,
            ids: Vec::new(),
            quiet: false,
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
            eos_token_ids: if self.below(4) == 0 {
                vec![3]
            } else {
                Vec::new()
            },
            ..SamplingParams::default()
        };
        let fcfs = self.scheduler.config.schedule == SchedulePolicy::Fcfs;
        // Where room is short, who came first may have to give way to a higher one.
        let priority = if fcfs { 0 } else { self.below(3) as i32 };
        let request = Request {
            prompt: (0..len).map(|_| self.below(2) as u32).collect(),
            params,
            namespace: (self.below(4) == 0).then(|| "other".to_owned()),
            priority,
            ..Request::default()
        };
        let (sender, _) = tokio::sync::mpsc::unbounded_channel();
        let id = self.inbox.submit(vec![(request, sender)]).unwrap();
        self.ids.push(id);
        self.scheduler
            .enqueue(self.inbox.collect(Wait::Not).submitted);
    }

    fn withdraw(&mut self) {
        let index = self.below(self.ids.len() as u64 + 1) as usize;
        if let Some(&id) = self.ids.get(index) {
            let twice = [(id, Withdrawal::Cancelled), (id, Withdrawal::Satisfied)];
            self.scheduler.withdraw(&twice);
        }
    }

    /// A step, and steps that are launched ahead of its end and of one another.
    fn step(&mut self, fails: bool) {
        self.scheduler.schedule(&mut self.batch);
        self.check();
        let choices = self
            .scheduler
            .choices(&mut self.batch, &mut Grace::none(), true);
        assert!(choices.is_some());
        let mut under_way = true;
        while under_way {
            self.meanwhile();
            let goes_on = self.below(3) > 0;
            let choices = goes_on.then(|| self.scheduler.follow(&self.batch, &mut self.behind));
            under_way = choices.flatten().is_some_and(|choices| {
                assert_eq!(choices.len(), self.behind.forward.carried.len());
                true
            });
            self.check();
            self.land(fails);
            self.check();
            if under_way {
                std::mem::swap(&mut self.batch, &mut self.behind);
                self.followed += 1;
            }
        }
    }

    /// While the device is at it, requests come and go.
    fn meanwhile(&mut self) {
        for _ in 0..self.below(3) {
            self.scheduler.look_ahead();
            self.check();
            match self.below(6) {
                0 if !self.quiet => self.submit(),
                1 if !self.quiet => self.withdraw(),
                _ => {}
            }
        }
    }

    fn land(&mut self, fails: bool) {
        let rows = self.batch.forward.logit_rows.len();
        let values = (0..rows * LIMITS.vocab_size).map(|_| self.below(100) as f32 / 20.0);
        let mut logits = logits(values.collect(), LIMITS);
        let asked = self.batch.asked.iter();
        let tokens = asked.filter(|asked| **asked == Asked::Token).count();
        // Seldom there is none to choose from.
        logits.chosen = (0..tokens)
            .map(|_| (self.below(50) > 0).then(|| self.below(4) as u32))
            .collect();
        self.scheduler.landed(Duration::ZERO);
        let chosen = Some(&mut logits.chosen);
        self.scheduler.leave_out(&mut self.batch, chosen);
        match fails {
            true => self.scheduler.fail(&self.batch, "as it was told to"),
            false => self.scheduler.advance(&self.batch, &mut logits),
        }
    }

    fn check(&mut self) {
        let Scheduler {
            running,
            leaving,
            waiting,
            kv,
            ..
        } = &mut self.scheduler;
        let holding = running.iter().chain(&*leaving);
        kv.check(holding.map(|running| &running.kv));
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

fn logits(values: Vec<f32>, limits: ExecutorLimits) -> Logits {
    Logits {
        values,
        vocab: limits.vocab_size,
        ..Logits::default()
    }
}

#[test]
fn no_slot_is_ever_lost_or_shared_by_mistake_and_nobody_overtakes() {
    let (mut preemptions, mut followed) = (0, 0);
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
            let gets_on = bench.batch.tokens() > 0 || bench.scheduler.is_idle();
            assert!(gets_on, "whoever waits gets on");
        }
        let stats = bench.scheduler.stats(0);
        assert_eq!((stats.kv.held, stats.kv.protected), (0, 0));
        let ended = stats.finished + stats.cancelled + stats.failed;
        assert_eq!(ended, bench.ids.len() as u64);
        preemptions += stats.preemptions;
        followed += bench.followed;
    }
    assert!(followed > 200, "steps are launched ahead: {followed}");
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
            .enqueue(bench.inbox.collect(Wait::Not).submitted);
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

/// With it, a step has room for eight rows of log-probabilities.
const WIDE: ExecutorLimits = ExecutorLimits {
    kv_slots: 1000,
    max_model_len: 500,
    vocab_size: SCORED_LOGITS / 8,
};

/// Prompts of `len` tokens that want all of their log-probabilities.
fn scored(config: EngineConfig, prompts: usize, len: usize) -> Scheduler {
    let mut scheduler = Scheduler::new(config, WIDE, 0);
    let inbox = Inbox::new(usize::MAX);
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
    scheduler.enqueue(inbox.collect(Wait::Not).submitted);
    scheduler
}

#[test]
fn prompt_logprobs_of_all_requests_together_keep_to_their_bound() {
    let mut scheduler = scored(EngineConfig::default(), 3, 6);
    let mut batch = StepBatch::default();
    scheduler.schedule(&mut batch);
    let tokens: Vec<_> = batch.grants.iter().map(|grant| grant.tokens).collect();
    // Five rows of the first prompt, whose last token's is not for a log-probability.
    assert_eq!(tokens, [6, 3]);
}

#[test]
fn a_chunk_that_begins_before_the_wanted_rows_keeps_to_their_bound_too() {
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
        let mut logits = logits(vec![0.0; rows * WIDE.vocab_size], WIDE);
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
