//! A device that is lost while it serves, and comes back or does not.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::*;
use hearth_engine::{Engine, EngineConfig, EngineHandle, ShutdownOutcome};
use hearth_forward::{
    Executor, ExecutorLimits, ForwardBatch, ForwardError, ForwardOutput, KvCopy, SampleRequests,
};

/// The values that a test sets and observes.
#[derive(Clone, Default)]
struct Switch {
    /// Whether the device is lost at the next submission or copy.
    lost_at_submit: Arc<AtomicBool>,
    /// Whether the device is lost at the next completion.
    lost_at_complete: Arc<AtomicBool>,
    /// Whether the next submission or copy fails, and the device is not lost.
    fails_at_submit: Arc<AtomicBool>,
    /// Whether the next completion fails, and the device is not lost.
    fails_at_complete: Arc<AtomicBool>,
    /// How many more forward passes succeed before any of the above.
    fuse: Arc<AtomicUsize>,
    /// Whether the device can be opened again.
    is_back: Arc<AtomicBool>,
    /// Attempts to open the device again.
    attempts: Arc<AtomicUsize>,
}

/// A device whose slots are empty after it was opened again: reading an older slot panics.
struct Fragile {
    model: FakeModel,
    switch: Switch,
    lost: bool,
}

impl Fragile {
    /// Fails as the switches say, by which the device is `lost` or one call `fails`.
    fn check(&mut self, lost: &AtomicBool, fails: &AtomicBool) -> Result<(), ForwardError> {
        if self.switch.fuse.load(Ordering::SeqCst) > 0 {
            return Ok(());
        }
        self.lost |= lost.swap(false, Ordering::SeqCst);
        match self.lost {
            true => Err(ForwardError::other("the driver was reset")),
            false if fails.swap(false, Ordering::SeqCst) => Err(ForwardError::other("a hiccup")),
            false => Ok(()),
        }
    }

    fn check_submit(&mut self) -> Result<(), ForwardError> {
        let switch = self.switch.clone();
        self.check(&switch.lost_at_submit, &switch.fails_at_submit)
    }

    fn check_complete(&mut self) -> Result<(), ForwardError> {
        let switch = self.switch.clone();
        self.check(&switch.lost_at_complete, &switch.fails_at_complete)
    }
}

impl Executor for Fragile {
    type Submission = <FakeModel as Executor>::Submission;

    fn limits(&self) -> ExecutorLimits {
        self.model.limits()
    }

    fn host_slots(&self) -> usize {
        self.model.host_slots()
    }

    fn submit(
        &mut self,
        batch: &ForwardBatch,
        sample_requests: &mut SampleRequests<'_>,
    ) -> Result<Self::Submission, ForwardError> {
        self.check_submit()?;
        let fuse = &self.switch.fuse;
        fuse.store(
            fuse.load(Ordering::SeqCst).saturating_sub(1),
            Ordering::SeqCst,
        );
        self.model.submit(batch, sample_requests)
    }

    fn complete(&mut self, submission: Self::Submission) -> Result<ForwardOutput, ForwardError> {
        assert!(!self.lost, "nothing completes on a lost device");
        self.check_complete()?;
        self.model.complete(submission)
    }

    fn samples_on_device(&self) -> bool {
        self.model.samples_on_device()
    }

    fn copy_kv(&mut self, copy: &KvCopy) -> Result<(), ForwardError> {
        self.check_submit()?;
        self.model.copy_kv(copy)
    }

    fn is_lost(&self) -> bool {
        self.lost
    }

    fn reopen(&mut self) -> Result<(), ForwardError> {
        self.switch.attempts.fetch_add(1, Ordering::SeqCst);
        if !self.switch.is_back.load(Ordering::SeqCst) {
            return Err(ForwardError::other("no such device"));
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
        switch.lost_at_submit.store(true, Ordering::SeqCst);
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
fn running_requests_fail_and_waiting_requests_are_answered_too() {
    let config = EngineConfig {
        max_running: 2,
        ..EngineConfig::default()
    };
    let (engine, switch) = start(config, 0);
    switch.lost_at_submit.store(true, Ordering::SeqCst);
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
fn a_device_that_is_lost_during_a_copy_loses_both_pools() {
    let (engine, switch) = start(EngineConfig::default(), 256);
    switch.is_back.store(true, Ordering::SeqCst);
    let mut failures = 0;
    for seed in 0..40 {
        // This is too much for the device's pool: evicted prefixes are copied to the host.
        switch.lost_at_submit.store(seed % 8 == 7, Ordering::SeqCst);
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
fn an_engine_whose_device_never_comes_back_can_be_shut_down() {
    let (engine, switch) = start(EngineConfig::default(), 0);
    switch.lost_at_submit.store(true, Ordering::SeqCst);
    assert!(run(&engine, &prompt(1, 20)).end.is_err());
    until("an attempt", || switch.attempts.load(Ordering::SeqCst) > 0);
    assert_eq!(engine.shutdown(Duration::ZERO), ShutdownOutcome::Stopped);
}

/// Throws the switch `what` when two requests have run for a while, so that steps overlap. Returns
/// how the requests end.
fn amid_steps(switch: &Switch, engine: &EngineHandle, what: &AtomicBool) -> Vec<Answer> {
    switch.fuse.store(12, Ordering::SeqCst);
    what.store(true, Ordering::SeqCst);
    let submit = |seed| engine.submit(request(&prompt(seed, 20), 100)).unwrap();
    let running: Vec<_> = (0..2).map(submit).collect();
    running.into_iter().map(answer).collect()
}

#[test]
fn a_device_that_is_lost_with_two_steps_in_flight_loses_both() {
    let (engine, switch) = start(EngineConfig::default(), 0);
    switch.is_back.store(true, Ordering::SeqCst);
    for what in [
        &switch.lost_at_submit,
        &switch.lost_at_complete,
        &switch.lost_at_submit,
    ] {
        for (seed, answer) in (0..).zip(amid_steps(&switch, &engine, what)) {
            assert!(
                answer.end.is_err(),
                "no request continues without the device"
            );
            assert!(answer.tokens.len() > 2);
            let right = expected(&prompt(seed, 20), answer.tokens.len());
            assert_eq!(answer.tokens, right);
        }
        // Requests that arrive now are not affected by steps that still have to complete.
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
fn a_step_that_fails_while_another_is_in_flight_fails_its_requests_only() {
    let (engine, switch) = start(EngineConfig::default(), 0);
    for what in [&switch.fails_at_submit, &switch.fails_at_complete] {
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
