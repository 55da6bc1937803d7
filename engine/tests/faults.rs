//! An executor that fails, panics, hangs, returns NaN and loses the device at random, under clients that
//! come and go and an operator who interferes. Every request is answered once and rightly, and no slot
//! is lost after any step.
//!
//! `HEARTH_FAULT_STEPS` is the number of steps, and `HEARTH_FAULT_SEED` another beginning.
#![allow(clippy::unwrap_used)]

mod common;

use std::panic;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::*;
use hearth_engine::{
    AbortTarget, Engine, EngineConfig, EngineHandle, Event, EvictionPolicy, FinishReason,
    HostWritePolicy, PauseMode, Pooling, Request, SchedulePolicy, Speculation, StepObserver,
    SubmitError,
};
use hearth_forward::{
    Executor, ExecutorLimits, ForwardBatch, ForwardError, ForwardOutput, KvCopy, SampleRequests,
};

const STEPS: u64 = 20_000;
/// Each engine, with another configuration, runs for so many steps.
const STEPS_OF_AN_ENGINE: u64 = 2_000;
const CLIENTS: usize = 24;
const INJECTED: &str = "an injected panic";

#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1);
        (self.0 >> 33) % bound
    }

    /// True once in `n` times.
    fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

/// How often each fault happened.
#[derive(Debug, Default)]
struct Faults {
    failed: AtomicU64,
    panicked: AtomicU64,
    hung: AtomicU64,
    spoiled: AtomicU64,
    copies: AtomicU64,
    transfers: AtomicU64,
    lost: AtomicU64,
    stayed_lost: AtomicU64,
}

fn count(fault: &AtomicU64) {
    fault.fetch_add(1, Ordering::Relaxed);
}

struct Faulty {
    model: FakeModel,
    random: Random,
    faults: Arc<Faults>,
    lost: bool,
}

impl Faulty {
    fn may_fail(&mut self) -> Result<(), ForwardError> {
        let faults = Arc::clone(&self.faults);
        if self.random.once_in(400) {
            count(&faults.failed);
            return Err(ForwardError::other("an injected failure"));
        }
        if self.random.once_in(400) {
            count(&faults.panicked);
            panic!("{INJECTED}");
        }
        if self.random.once_in(2000) {
            count(&faults.lost);
            self.lost = true;
            match self.random.below(3) {
                // Drivers tell it in each of these ways, the last of which is silence.
                0 => return Err(ForwardError::other("the device is gone")),
                1 => panic!("{INJECTED}"),
                _ => {}
            }
        }
        if self.random.once_in(5000) {
            count(&faults.hung);
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn may_fail_to_transfer(&mut self) -> Result<(), ForwardError> {
        if self.random.once_in(10) {
            count(&self.faults.transfers);
            return Err(ForwardError::other("an injected failure of a transfer"));
        }
        if self.random.once_in(20) {
            count(&self.faults.transfers);
            panic!("{INJECTED}");
        }
        Ok(())
    }

    /// Makes one row of the output useless.
    fn spoil(&mut self, output: &mut ForwardOutput) {
        if !self.random.once_in(200) {
            return;
        }
        count(&self.faults.spoiled);
        for rows in [&mut output.logits, &mut output.sample_logits] {
            if !rows.is_empty() {
                let row = self.random.below((rows.len() / VOCAB) as u64) as usize;
                rows[row * VOCAB..(row + 1) * VOCAB].fill(f32::NAN);
            }
        }
        if !output.sampled.is_empty() {
            let row = self.random.below(output.sampled.len() as u64) as usize;
            output.sampled[row] = None;
        }
    }
}

impl Executor for Faulty {
    type Submission = <FakeModel as Executor>::Submission;

    fn limits(&self) -> ExecutorLimits {
        self.model.limits()
    }

    fn host_slots(&self) -> usize {
        self.model.host_slots()
    }

    fn samples_on_device(&self) -> bool {
        self.model.samples_on_device()
    }

    fn has_watchdog(&self) -> bool {
        true
    }

    fn submit(
        &mut self,
        batch: &ForwardBatch,
        sample_requests: &mut SampleRequests<'_>,
    ) -> Result<Self::Submission, ForwardError> {
        assert!(!self.lost, "nothing is submitted to a lost device");
        // They would take memory without end.
        self.model.steps.lock().unwrap().clear();
        self.model.calls.lock().unwrap().clear();
        self.model.copies.done.lock().unwrap().clear();
        self.may_fail()?;
        self.model.submit(batch, sample_requests)
    }

    fn complete(&mut self, submission: Self::Submission) -> Result<ForwardOutput, ForwardError> {
        assert!(!self.lost, "nothing completes on a lost device");
        self.may_fail()?;
        let mut output = self.model.complete(submission)?;
        self.spoil(&mut output);
        Ok(output)
    }

    fn copy_kv(&mut self, copy: &KvCopy) -> Result<(), ForwardError> {
        if self.random.once_in(200) {
            count(&self.faults.copies);
            return Err(ForwardError::other("an injected failure of a copy"));
        }
        self.model.copy_kv(copy)
    }

    fn kv_token_bytes(&self) -> usize {
        self.model.kv_token_bytes()
    }

    fn read_kv(&mut self, slots: &[u32]) -> Result<Vec<u8>, ForwardError> {
        self.may_fail_to_transfer()?;
        self.model.read_kv(slots)
    }

    fn write_kv(&mut self, slots: &[u32], bytes: &[u8]) -> Result<(), ForwardError> {
        self.may_fail_to_transfer()?;
        self.model.write_kv(slots, bytes)
    }

    fn is_lost(&self) -> bool {
        self.lost
    }

    fn reopen(&mut self) -> Result<(), ForwardError> {
        // Each attempt takes a quarter of a second.
        if self.random.once_in(100) {
            count(&self.faults.stayed_lost);
            return Err(ForwardError::other("not yet"));
        }
        self.model.forget();
        self.lost = false;
        Ok(())
    }
}

fn random_config(random: &mut Random) -> EngineConfig {
    let max_running = 1 + random.below(12) as usize;
    let speculation = random.once_in(3).then(|| Speculation {
        num_tokens: 1 + random.below(6) as usize,
        adaptive: random.once_in(2),
        lookup_min: 1,
        lookup_max: 2,
        ..Speculation::default()
    });
    EngineConfig {
        max_running,
        max_queue: 1024,
        max_batch_tokens: max_running + random.below(64) as usize,
        prefill_chunk: 1 + random.below(48) as usize,
        max_submission: random.one_of(&[
            None,
            Some(Duration::from_secs(1)),
            Some(Duration::from_micros(50)),
        ]),
        prefix_cache: true,
        page_size: random.one_of(&[1, 1, 4, 16]),
        eviction: random.one_of(&[
            EvictionPolicy::Lru,
            EvictionPolicy::Lfu,
            EvictionPolicy::Fifo,
            EvictionPolicy::Slru,
            EvictionPolicy::Priority,
        ]),
        host_writes: random.one_of(&[
            HostWritePolicy::WriteBack,
            HostWritePolicy::WriteThrough,
            HostWritePolicy::WriteThroughSelective,
        ]),
        schedule: random.one_of::<SchedulePolicy>(&POLICIES),
        cache_changes: random.once_in(2),
        speculation,
        retract_every: random.once_in(3).then(|| 2 + random.below(20)),
    }
}

fn random_request(random: &mut Random) -> Request {
    let mut tokens = prompt(random.below(4), random.below(40) as usize);
    let own = 1 + random.below(30);
    tokens.extend(prompt(100 + own, own as usize));
    let mut request = request(&tokens, random.below(24) as usize);
    request.priority = random.below(3) as i32;
    request.namespace = random.once_in(4).then(|| "tenant".to_owned());
    request.id = Some(format!("{}", random.below(100)));
    match random.below(12) {
        0 => request.params.prompt_logprobs = Some(1),
        1 => request.params.logprobs = Some(2),
        2 => {
            request.pooling = Some(random.one_of(&[Pooling::Last, Pooling::Mean]));
            request.params.max_tokens = 0;
        }
        _ => {}
    }
    request.prediction = expected(&tokens, request.params.max_tokens);
    request
}

/// Sends one request and reads its answer, or a part of it.
async fn exchange(engine: &EngineHandle, random: &mut Random) {
    let request = random_request(random);
    let (tokens, max_tokens) = (request.prompt.clone(), request.params.max_tokens);
    let whole = expected(
        &tokens,
        max_tokens.min(engine.context_limit() - tokens.len()),
    );
    let mut generation = match engine.submit(request) {
        Ok(generation) => generation,
        Err(SubmitError::QueueFull { .. }) => return tokio::task::yield_now().await,
        Err(error) => panic!("{error}"),
    };
    let leaves_after = random.once_in(4).then(|| random.below(12));
    let (mut given, mut events) = (Vec::new(), 0);
    let end = loop {
        if leaves_after == Some(events) {
            // Every other one says that it has all it wants.
            if random.once_in(2) {
                generation.stop();
            }
            return;
        }
        events += 1;
        let wait = Duration::from_secs(60);
        let event = tokio::time::timeout(wait, generation.next()).await;
        match event.expect("every request is answered").unwrap() {
            Event::Token(token) => given.push(token.id),
            Event::Finished(reason, usage) => {
                assert_eq!(usage.prompt_tokens, tokens.len());
                break Some(reason);
            }
            Event::Failed(text) | Event::Refused(text) => {
                assert!(!text.contains("engine stopped"), "{text}");
                break None;
            }
            _ => {}
        }
    };
    assert!(generation.next().await.is_none(), "it is answered once");
    assert_eq!(given, whole[..given.len()], "what was sent is right");
    match end {
        Some(FinishReason::Aborted | FinishReason::Cancelled) | None => {}
        Some(_) => assert_eq!(given, whole),
    }
}

/// Reads a cached prefix and puts it back, flushing the cache between the two if nothing runs.
async fn save_and_restore(engine: &EngineHandle, random: &mut Random) {
    let edges = engine.cached_prefixes().wait().await.unwrap();
    if edges.is_empty() {
        return;
    }
    let at = random.below(edges.len() as u64) as usize;
    let (namespace, tokens) = (Arc::clone(&edges[at].namespace), path(&edges, at));
    let from = tokens.len() - edges[at].tokens.len();
    let read = engine.read_prefix(Arc::clone(&namespace), tokens.clone(), from);
    // It may be evicted by now, or the read fails.
    let Ok(bytes) = read.wait().await.unwrap() else {
        return;
    };
    let _ = engine.flush_cache().wait().await.unwrap();
    let restored = engine.restore_prefix(namespace, tokens, from, bytes);
    let _ = restored.unwrap().wait().await.unwrap();
}

/// Aborts, flushes, pauses, and copies prefixes.
async fn operate(engine: &EngineHandle, random: &mut Random) {
    for _ in 0..random.below(40) {
        tokio::task::yield_now().await;
    }
    match random.below(8) {
        0 => drop(engine.abort(AbortTarget::Prefix(format!("{}", random.below(10))))),
        1 => drop(engine.abort(AbortTarget::Id(format!("{}", random.below(100))))),
        2 if random.once_in(10) => drop(engine.abort(AbortTarget::All)),
        3 => drop(engine.flush_cache()),
        4 => {
            let modes = [PauseMode::InPlace, PauseMode::Retract, PauseMode::InPlace];
            engine.pause(random.one_of(&modes)).wait().await.unwrap();
            tokio::task::yield_now().await;
            engine.resume().wait().await.unwrap();
        }
        5 => save_and_restore(engine, random).await,
        _ => {}
    }
}

/// Runs an engine for `steps` steps. Returns how many it took, and how many requests it had.
fn run(random: &mut Random, steps: u64, faults: &Arc<Faults>) -> (u64, u64) {
    let limits = ExecutorLimits {
        max_model_len: 96,
        ..limits(100 + random.below(200) as usize)
    };
    let host_slots = random.one_of(&[0, 0, 40, 200]);
    let samples_on_device = random.once_in(2);
    let (seed, held) = (random.below(u64::MAX >> 1), Arc::clone(faults));
    let config = random_config(random);
    let shown = format!("{config:?} {limits:?} {host_slots} {samples_on_device} {seed}");
    let engine = Engine::spawn(config, move || {
        Ok(Faulty {
            model: FakeModel {
                samples_on_device,
                ..FakeModel::new(limits, host_slots)
            },
            random: Random(seed),
            faults: held,
            lost: false,
        })
    })
    .unwrap();
    let lost_slots = Arc::new(Mutex::new(None));
    let found = Arc::clone(&lost_slots);
    let watch = engine.watch();
    engine.observe(StepObserver {
        // It is called in each step, and sees the statistics that the step before published.
        requests: true,
        observe: Box::new(move |_| {
            let stats = watch.stats();
            if !stats.kv.is_conserved() || !stats.host.is_conserved() {
                let mut found = found.lock().unwrap();
                found.get_or_insert([stats.kv, stats.host]);
            }
        }),
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let mut tasks = Vec::new();
        for _ in 0..CLIENTS {
            let mut random = Random(random.below(u64::MAX >> 1));
            let (engine, is_over) = (engine.clone(), Arc::clone(&is_over));
            tasks.push(tokio::task::spawn_local(async move {
                while !is_over.load(Ordering::Relaxed) {
                    exchange(&engine, &mut random).await;
                }
            }));
        }
        while engine.stats().steps < steps && !tasks.iter().any(|task| task.is_finished()) {
            operate(&engine, random).await;
        }
        is_over.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await
                .unwrap_or_else(|error| panic!("{error}: {shown}"));
        }
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    while !engine.stats().is_idle() {
        assert!(Instant::now() < deadline, "{:?}: {shown}", engine.stats());
        std::thread::yield_now();
    }
    assert_eq!(*lost_slots.lock().unwrap(), None, "{shown}");
    let stats = engine.stats();
    let ended = stats.finished + stats.cancelled + stats.failed;
    assert_eq!(stats.received, ended, "{stats:?}: {shown}");
    assert!(stats.kv.is_conserved(), "{stats:?}: {shown}");
    assert_eq!((stats.kv.held, stats.kv.protected), (0, 0), "{shown}");
    assert_eq!(stats.host.protected, 0, "{shown}");
    (stats.steps, stats.received)
}

#[test]
fn every_request_is_answered_once_and_no_slot_is_lost_whatever_the_device_does() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let wanted: u64 = number("HEARTH_FAULT_STEPS").unwrap_or(STEPS);
    let mut random = Random(number("HEARTH_FAULT_SEED").unwrap_or(1));
    // Any other panic is a bug, even if the engine survives it.
    let bug = Arc::new(Mutex::new(None));
    let (found, usual) = (Arc::clone(&bug), panic::take_hook());
    panic::set_hook(Box::new(move |info| {
        if info.payload_as_str() != Some(INJECTED) {
            found.lock().unwrap().get_or_insert(info.to_string());
            usual(info);
        }
    }));
    let faults = Arc::<Faults>::default();
    let (mut steps, mut requests, started) = (0, 0, Instant::now());
    while steps < wanted {
        let next = STEPS_OF_AN_ENGINE.min(wanted - steps);
        let (ran, received) = run(&mut random, next, &faults);
        steps += ran;
        requests += received;
        assert_eq!(*bug.lock().unwrap(), None, "after {steps} steps");
    }
    println!(
        "{steps} steps, {requests} requests, {faults:?}, {:?}",
        started.elapsed()
    );
    let each = [
        &faults.failed,
        &faults.panicked,
        &faults.spoiled,
        &faults.transfers,
        &faults.lost,
    ];
    assert!(each.iter().all(|fault| fault.load(Ordering::Relaxed) > 0));
}
