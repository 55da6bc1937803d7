//! The engine's work while the device is busy.
#![allow(clippy::unwrap_used)]

mod common;

use common::{FAILS, Fixture, answer, expected, prompt, request};
use hearth_engine::{AbortTarget, EngineConfig, SchedulePolicy};

#[test]
fn a_request_that_arrives_during_a_step_has_its_slots_when_the_step_completes() {
    let (fixture, permits) = Fixture::gated(EngineConfig::default(), 256);
    let first = fixture.submit(&prompt(1, 30), 10);
    fixture.wait_until("it runs", |f| f.engine.stats().running == 1);
    let second = fixture.submit(&prompt(2, 30), 10);
    fixture.wait_until("both run", |f| f.engine.stats().running == 2);
    let stats = fixture.engine.stats();
    assert_eq!(
        (stats.steps, stats.started),
        (0, 2),
        "the first step is held"
    );
    permits.send(()).unwrap();
    permits.send(()).unwrap();
    fixture.wait_until("two steps", |f| f.engine.stats().steps == 2);
    drop(permits);
    assert_eq!(answer(first).tokens, expected(&prompt(1, 30), 10));
    assert_eq!(answer(second).tokens, expected(&prompt(2, 30), 10));
    let sizes: Vec<_> = fixture.steps().iter().map(|step| step.tokens).collect();
    assert_eq!(sizes[..2], [30, 31], "a prompt, then a token and a prompt");
    fixture.assert_idle_and_conserved();
}

#[test]
fn a_request_that_is_dropped_during_a_step_keeps_its_slots_until_the_step_completes() {
    let (fixture, permits) = Fixture::gated(EngineConfig::default(), 256);
    let doomed = fixture.submit(&prompt(1, 30), 10);
    fixture.wait_until("it runs", |f| f.engine.stats().running == 1);
    drop(doomed);
    // When this request has started, the engine knows that the other one was dropped.
    let other = fixture.submit(&prompt(2, 30), 10);
    fixture.wait_until("both run", |f| f.engine.stats().started == 2);
    let stats = fixture.engine.stats();
    assert_eq!((stats.running, stats.cancelled, stats.steps), (2, 0, 0));
    assert!(stats.kv.held >= 60 && stats.kv.is_conserved(), "{stats:?}");
    drop(permits);
    assert_eq!(answer(other).tokens, expected(&prompt(2, 30), 10));
    fixture.assert_idle_and_conserved();
    let stats = fixture.engine.stats();
    assert_eq!((stats.cancelled, stats.finished), (1, 1));
    // The tokens that were computed for it are cached all the same.
    assert_eq!(fixture.run(&prompt(1, 30), 1).cached_tokens, 29);
}

#[test]
fn a_request_that_starts_during_a_step_that_fails_is_not_affected() {
    let (fixture, permits) = Fixture::gated(EngineConfig::default(), 256);
    let fails = fixture.submit(&[1, 2, FAILS], 10);
    fixture.wait_until("it runs", |f| f.engine.stats().running == 1);
    let other = fixture.submit(&prompt(2, 30), 10);
    fixture.wait_until("both run", |f| f.engine.stats().running == 2);
    drop(permits);
    answer(fails).end.unwrap_err();
    assert_eq!(answer(other).tokens, expected(&prompt(2, 30), 10));
    fixture.assert_idle_and_conserved();
}

#[test]
fn no_request_is_preempted_in_the_middle_of_a_step() {
    let config = EngineConfig {
        schedule: SchedulePolicy::Priority,
        max_running: 1,
        ..EngineConfig::default()
    };
    let (fixture, permits) = Fixture::gated(config, 256);
    let low = fixture.submit(&prompt(1, 30), 10);
    fixture.wait_until("it runs", |f| f.engine.stats().running == 1);
    let high = hearth_engine::Request {
        priority: 1,
        id: Some("high".to_owned()),
        ..request(&prompt(2, 30), 10)
    };
    let high = fixture.engine.submit(high).unwrap();
    fixture.wait_until("it waits", |f| f.engine.stats().waiting == 1);
    assert_eq!(fixture.engine.stats().preemptions, 0);
    permits.send(()).unwrap();
    fixture.wait_until("it preempts the other", |f| {
        f.engine.stats().preemptions == 1
    });
    // A command is executed between steps.
    let aborted = fixture.engine.abort(AbortTarget::Id("high".to_owned()));
    drop(permits);
    assert!(aborted.wait_blocking().unwrap() <= 1);
    answer(high).end.unwrap();
    assert_eq!(answer(low).tokens, expected(&prompt(1, 30), 10));
    fixture.assert_idle_and_conserved();
}
