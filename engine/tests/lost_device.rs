//! A device that goes away in the middle, and comes back or does not.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::*;
use hearth_engine::{
    Choices, Engine, EngineConfig, EngineHandle, Executor, ExecutorError, ExecutorLimits,
    ForwardBatch, KvCopy, Logits, ShutdownOutcome,
};

/// What a test decides and sees.
#[derive(Clone, Default)]
struct Switch {
    /// Whether the device goes with the next forward, or copy.
    goes: Arc<AtomicBool>,
    /// Whether it goes when a forward is read.
    goes_when_read: Arc<AtomicBool>,
    /// Whether the next forward, or copy, fails, and no more; or the next that is read.
    fails: Arc<AtomicBool>,
    fails_when_read: Arc<AtomicBool>,
    /// Forwards before any of that.
    fuse: Arc<AtomicUsize>,
    /// Whether it can be opened again.
    is_back: Arc<AtomicBool>,
    attempts: Arc<AtomicUsize>,
}

/// A device whose slots are empty after it was opened again: reading one of before panics.
struct Fragile {
    model: FakeModel,
    switch: Switch,
    lost: bool,
}

impl Fragile {
    /// Does what is told by the switch for whenever a device `goes`, or only `fails`.
    fn obey(&mut self, goes: &AtomicBool, fails: &AtomicBool) -> Result<(), ExecutorError> {
        if self.switch.fuse.load(Ordering::SeqCst) > 0 {
            return Ok(());
        }
        self.lost |= goes.swap(false, Ordering::SeqCst);
        match self.lost {
            true => Err(ExecutorError::new("the driver was reset")),
            false if fails.swap(false, Ordering::SeqCst) => Err(ExecutorError::new("a hiccup")),
            false => Ok(()),
        }
    }

    fn fails(&mut self) -> Result<(), ExecutorError> {
        let Switch { goes, fails, .. } = self.switch.clone();
        self.obey(&goes, &fails)
    }

    fn fails_when_read(&mut self) -> Result<(), ExecutorError> {
        let Switch {
            goes_when_read,
            fails_when_read,
            ..
        } = self.switch.clone();
        self.obey(&goes_when_read, &fails_when_read)
    }
}

impl Executor for Fragile {
    type Flight = <FakeModel as Executor>::Flight;

    fn limits(&self) -> ExecutorLimits {
        self.model.limits()
    }

    fn host_slots(&self) -> usize {
        self.model.host_slots()
    }

    fn launch(
        &mut self,
        batch: &ForwardBatch,
        choices: &mut Choices<'_>,
    ) -> Result<Self::Flight, ExecutorError> {
        self.fails()?;
        let fuse = &self.switch.fuse;
        fuse.store(
            fuse.load(Ordering::SeqCst).saturating_sub(1),
            Ordering::SeqCst,
        );
        self.model.launch(batch, choices)
    }

    fn land(&mut self, flight: Self::Flight) -> Result<Logits, ExecutorError> {
        assert!(!self.lost, "what is lost is not read");
        self.fails_when_read()?;
        self.model.land(flight)
    }

    fn chooses(&self) -> bool {
        self.model.chooses()
    }

    fn copy(&mut self, copy: &KvCopy) -> Result<(), ExecutorError> {
        self.fails()?;
        self.model.copy(copy)
    }

    fn is_lost(&self) -> bool {
        self.lost
    }

    fn reopen(&mut self) -> Result<(), ExecutorError> {
        self.switch.attempts.fetch_add(1, Ordering::SeqCst);
        if !self.switch.is_back.load(Ordering::SeqCst) {
            return Err(ExecutorError::new("no such device"));
        }
        self.model.forget();
        self.lost = false;
        Ok(())
    }
}

fn start(config: EngineConfig, host_slots: usize) -> (EngineHandle, Switch) {
    let switch = Switch::default();
    let held = switch.clone();
    let engine = Engine::spawn(config, move || {
        Ok(Fragile {
            model: FakeModel::new(limits(256), host_slots),
            switch: held,
            lost: false,
        })
    });
    (engine.unwrap(), switch)
}

fn run(engine: &EngineHandle, prompt: &[u32]) -> Answer {
    answer(engine.submit(request(prompt, 5)).unwrap())
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(30), "never: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_device_that_comes_back_serves_again_and_has_nothing_cached() {
    for host_slots in [0, 256] {
        let config = EngineConfig::default();
        let (engine, switch) = start(config, host_slots);
        let prompts: Vec<_> = (0..6).map(|seed| prompt(seed, 20)).collect();
        assert_eq!(run(&engine, &prompts[0]).tokens, expected(&prompts[0], 5));
        switch.is_back.store(true, Ordering::SeqCst);
        switch.goes.store(true, Ordering::SeqCst);
        assert!(run(&engine, &prompts[0]).end.unwrap_err().contains("reset"));
        for prompt in &prompts {
            let answer = run(&engine, prompt);
            assert_eq!(answer.cached_tokens, 0);
            assert_eq!(answer.tokens, expected(prompt, 5));
        }
        assert_eq!(switch.attempts.load(Ordering::SeqCst), 1);
        until("idle", || engine.stats().is_idle());
        let stats = engine.stats();
        assert!(stats.kv.is_conserved() && stats.kv.held == 0, "{stats:?}");
        assert_eq!((stats.failed, stats.finished), (1, 7));
    }
}

#[test]
fn all_that_run_fail_and_those_that_wait_are_answered_too() {
    let config = EngineConfig {
        max_running: 2,
        ..EngineConfig::default()
    };
    let (engine, switch) = start(config, 0);
    switch.goes.store(true, Ordering::SeqCst);
    let submitted = (0..5).map(|seed| engine.submit(request(&prompt(seed, 20), 5)).unwrap());
    for generation in submitted.collect::<Vec<_>>() {
        assert!(answer(generation).end.is_err());
    }
    until("a second attempt", || {
        switch.attempts.load(Ordering::SeqCst) > 1
    });
    switch.is_back.store(true, Ordering::SeqCst);
    let prompt = prompt(9, 20);
    until("it is back", || {
        let answer = run(&engine, &prompt);
        answer.end.is_ok() && answer.tokens == expected(&prompt, 5)
    });
}

#[test]
fn a_device_that_goes_during_a_copy_takes_both_pools_with_it() {
    let (engine, switch) = start(EngineConfig::default(), 256);
    switch.is_back.store(true, Ordering::SeqCst);
    let mut failures = 0;
    for seed in 0..40 {
        // Too much for the device's pool: what is evicted is copied to the host.
        switch.goes.store(seed % 8 == 7, Ordering::SeqCst);
        let prompt = prompt(seed % 5 + 10 * (seed % 2), 90);
        let answer = run(&engine, &prompt);
        match answer.end {
            Ok(_) => assert_eq!(answer.tokens, expected(&prompt, 5)),
            Err(_) => failures += 1,
        }
    }
    assert_eq!(failures, 5);
    until("idle", || engine.stats().is_idle());
    let stats = engine.stats();
    assert!(stats.demoted_tokens > 0, "{stats:?}");
    assert!(stats.kv.is_conserved() && stats.host.is_conserved());
}

#[test]
fn an_engine_whose_device_never_comes_back_ends_when_it_is_told_to() {
    let (engine, switch) = start(EngineConfig::default(), 0);
    switch.goes.store(true, Ordering::SeqCst);
    assert!(run(&engine, &prompt(1, 20)).end.is_err());
    until("it is tried", || switch.attempts.load(Ordering::SeqCst) > 0);
    assert_eq!(engine.shutdown(Duration::ZERO), ShutdownOutcome::Stopped);
}

/// Has `what` happen when two requests have run for a while, so that steps are launched ahead;
/// returns how they end.
fn amid_steps(switch: &Switch, engine: &EngineHandle, what: &AtomicBool) -> Vec<Answer> {
    switch.fuse.store(12, Ordering::SeqCst);
    what.store(true, Ordering::SeqCst);
    let submit = |seed| engine.submit(request(&prompt(seed, 20), 100)).unwrap();
    let running: Vec<_> = (0..2).map(submit).collect();
    running.into_iter().map(answer).collect()
}

#[test]
fn a_device_that_goes_with_two_steps_under_way_takes_both_with_it() {
    let (engine, switch) = start(EngineConfig::default(), 0);
    switch.is_back.store(true, Ordering::SeqCst);
    for what in [&switch.goes, &switch.goes_when_read, &switch.goes] {
        for (seed, answer) in (0..).zip(amid_steps(&switch, &engine, what)) {
            assert!(answer.end.is_err(), "nobody goes on without the device");
            assert!(answer.tokens.len() > 2);
            let right = expected(&prompt(seed, 20), answer.tokens.len());
            assert_eq!(answer.tokens, right);
        }
        // Nobody who comes now is concerned, whatever of it is still to land.
        for seed in 0..2 {
            let answer = run(&engine, &prompt(seed, 20));
            assert_eq!(answer.tokens, expected(&prompt(seed, 20), 5));
        }
        until("idle", || engine.stats().is_idle());
        let stats = engine.stats();
        assert!(stats.kv.is_conserved() && stats.kv.held == 0, "{stats:?}");
    }
    assert_eq!((engine.stats().failed, engine.stats().finished), (6, 6));
    assert_eq!(switch.attempts.load(Ordering::SeqCst), 3);
}

#[test]
fn a_step_that_fails_beside_another_fails_its_requests_and_not_the_engine() {
    let (engine, switch) = start(EngineConfig::default(), 0);
    for what in [&switch.fails, &switch.fails_when_read] {
        for (seed, answer) in (0..).zip(amid_steps(&switch, &engine, what)) {
            assert!(answer.end.unwrap_err().contains("hiccup"));
            let right = expected(&prompt(seed, 20), answer.tokens.len());
            assert_eq!(answer.tokens, right);
        }
        for seed in 0..2 {
            let answer = run(&engine, &prompt(seed, 20));
            assert_eq!(answer.tokens, expected(&prompt(seed, 20), 5));
        }
        until("idle", || engine.stats().is_idle());
        let stats = engine.stats();
        assert!(stats.kv.is_conserved() && stats.kv.held == 0, "{stats:?}");
    }
    assert_eq!((engine.stats().failed, engine.stats().finished), (4, 4));
    assert_eq!(switch.attempts.load(Ordering::SeqCst), 0);
}
