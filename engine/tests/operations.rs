//! The commands of an operator: abort, flush, pause, resume.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::mpsc::Sender;
use std::time::Duration;

use common::{Fixture, answer, expected, prompt, request};
use hearth_engine::{
    AbortTarget, CacheInUse, EngineConfig, EngineStopped, FinishReason, Generation, PauseMode,
    Request, ShutdownOutcome,
};

fn config() -> EngineConfig {
    EngineConfig::default()
}

fn named(fixture: &Fixture, id: &str, seed: u64) -> Generation {
    let request = Request {
        id: Some(id.to_owned()),
        ..request(&prompt(seed, 10), 40)
    };
    fixture.engine.submit(request).unwrap()
}

fn reason(generation: Generation) -> FinishReason {
    answer(generation).end.unwrap().0
}

/// Lets one forward pass after another complete until `done` returns.
fn keep_stepping<T: Send>(permits: &Sender<()>, done: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let done = scope.spawn(done);
        while !done.is_finished() {
            let _ = permits.send(());
            std::thread::yield_now();
        }
        done.join().unwrap()
    })
}

#[test]
fn an_abort_ends_the_running_and_waiting_requests_that_it_names_and_no_others() {
    let two_at_a_time = EngineConfig {
        max_running: 2,
        ..config()
    };
    let (fixture, permits) = Fixture::gated(two_at_a_time, 512);
    let pause = fixture.engine.pause(PauseMode::InPlace);
    let survivor = named(&fixture, "b-1", 1);
    let running = named(&fixture, "a-1", 2);
    pause.wait_blocking().unwrap();
    fixture.engine.resume().wait_blocking().unwrap();
    fixture.wait_until("they run", |f| f.engine.stats().running == 2);
    let waiting = named(&fixture, "a-2", 3);
    let nameless = fixture.submit(&prompt(4, 10), 40);
    let abort = fixture.engine.abort(AbortTarget::Prefix("a-".to_owned()));
    // The abort does not concern a request that arrives after it.
    let later = named(&fixture, "a-3", 5);
    permits.send(()).unwrap();
    assert_eq!(abort.wait_blocking().unwrap(), 2);
    assert_eq!(reason(running), FinishReason::Aborted);
    assert_eq!(answer(waiting).tokens, []);
    let unknown = fixture.engine.abort(AbortTarget::Id("b".to_owned()));
    drop(permits);
    assert_eq!(unknown.wait_blocking().unwrap(), 0, "an id is not a prefix");
    for (seed, generation) in [(1, survivor), (4, nameless), (5, later)] {
        assert_eq!(answer(generation).tokens, expected(&prompt(seed, 10), 40));
    }
    fixture.assert_idle_and_conserved();
    let stats = fixture.engine.stats();
    assert_eq!((stats.cancelled, stats.finished), (2, 3));
}

#[test]
fn aborting_all_requests_twice_ends_them_once_and_the_engine_still_serves() {
    let (fixture, permits) = Fixture::gated(config(), 512);
    let all: Vec<_> = (0..20)
        .map(|seed| fixture.submit(&prompt(seed, 10), 40))
        .collect();
    fixture.wait_until("some run", |f| f.engine.stats().running > 0);
    let once = fixture.engine.abort(AbortTarget::All);
    let twice = fixture.engine.abort(AbortTarget::All);
    drop(permits);
    let ended = once.wait_blocking().unwrap() + twice.wait_blocking().unwrap();
    assert_eq!(ended, 20);
    for generation in all {
        assert_eq!(reason(generation), FinishReason::Aborted);
    }
    fixture.assert_idle_and_conserved();
    assert_eq!(
        fixture.run(&prompt(1, 10), 5).tokens,
        expected(&prompt(1, 10), 5)
    );
}

#[test]
fn a_flush_of_the_cache_is_refused_while_requests_run() {
    let (fixture, permits) = Fixture::gated(config(), 512);
    let running = fixture.submit(&prompt(1, 50), 4);
    fixture.wait_until("it runs", |f| f.engine.stats().running == 1);
    let refused = fixture.engine.flush_cache();
    permits.send(()).unwrap();
    assert_eq!(
        refused.wait_blocking().unwrap(),
        Err(CacheInUse { running: 1 })
    );
    drop(permits);
    answer(running);
    assert_eq!(fixture.engine.stats().kv.cached(), 53);
    assert_eq!(
        fixture.engine.flush_cache().wait_blocking().unwrap(),
        Ok(53)
    );
    let kv = fixture.engine.stats().kv;
    assert_eq!((kv.free, kv.cached()), (kv.total, 0));
    assert_eq!(fixture.run(&prompt(1, 50), 4).cached_tokens, 0);
}

#[test]
fn a_paused_engine_computes_nothing_and_continues_where_it_stopped() {
    for mode in [PauseMode::InPlace, PauseMode::Retract] {
        let (fixture, permits) = Fixture::gated(config(), 512);
        let early = fixture.submit(&prompt(1, 20), 30);
        for _ in 0..5 {
            permits.send(()).unwrap();
        }
        fixture.wait_until("five steps", |f| f.engine.stats().steps == 5);
        let pause = fixture.engine.pause(mode);
        drop(permits);
        pause.wait_blocking().unwrap();
        let stats = fixture.engine.stats();
        assert!(stats.paused);
        let held = usize::from(mode == PauseMode::InPlace);
        assert_eq!((stats.running, stats.waiting), (held, 1 - held));
        let late = fixture.submit(&prompt(2, 20), 30);
        fixture.wait_until("it waits", |f| f.engine.stats().waiting == 2 - held);
        let flushed = fixture.engine.flush_cache().wait_blocking().unwrap();
        assert_eq!(flushed.is_ok(), mode == PauseMode::Retract);
        assert_eq!(fixture.engine.stats().steps, stats.steps);
        fixture.engine.resume().wait_blocking().unwrap();
        assert_eq!(answer(early).tokens, expected(&prompt(1, 20), 30));
        assert_eq!(answer(late).tokens, expected(&prompt(2, 20), 30));
        fixture.assert_idle_and_conserved();
    }
}

#[test]
fn a_pause_can_abort_running_requests_and_a_resume_without_a_pause_does_nothing() {
    let (fixture, permits) = Fixture::gated(config(), 512);
    let doomed = fixture.submit(&prompt(1, 20), 30);
    fixture.wait_until("it runs", |f| f.engine.stats().running == 1);
    let pause = fixture.engine.pause(PauseMode::Abort);
    keep_stepping(&permits, || pause.wait_blocking().unwrap());
    assert_eq!(reason(doomed), FinishReason::Aborted);
    drop(permits);
    for _ in 0..2 {
        fixture.engine.resume().wait_blocking().unwrap();
    }
    assert_eq!(
        fixture.run(&prompt(1, 10), 5).tokens,
        expected(&prompt(1, 10), 5)
    );
}

#[test]
fn requests_that_wait_for_a_resume_can_be_aborted_and_dropped() {
    let fixture = Fixture::new(config(), 512);
    fixture
        .engine
        .pause(PauseMode::InPlace)
        .wait_blocking()
        .unwrap();
    let aborted = named(&fixture, "a", 1);
    drop(fixture.submit(&prompt(2, 10), 10));
    let abort = fixture.engine.abort(AbortTarget::Id("a".to_owned()));
    assert_eq!(abort.wait_blocking().unwrap(), 1);
    assert_eq!(reason(aborted), FinishReason::Aborted);
    fixture.assert_idle_and_conserved();
    assert!(fixture.engine.stats().paused);
}

#[test]
fn a_shutdown_ends_a_pause_and_a_stopped_engine_answers_no_command() {
    let fixture = Fixture::new(config(), 512);
    fixture
        .engine
        .pause(PauseMode::InPlace)
        .wait_blocking()
        .unwrap();
    let waiting = fixture.submit(&prompt(1, 10), 10);
    let outcome = fixture.engine.shutdown(Duration::from_secs(20));
    assert_eq!(outcome, ShutdownOutcome::Stopped);
    assert_eq!(answer(waiting).tokens, expected(&prompt(1, 10), 10));
    let late = fixture.engine.abort(AbortTarget::All).wait_blocking();
    assert_eq!(late, Err(EngineStopped));
}

#[test]
fn a_burst_of_a_hundred_thousand_aborts_ends_the_named_requests_and_leaks_nothing() {
    let crowded = EngineConfig {
        max_queue: 20_000,
        ..config()
    };
    let fixture = Fixture::new(crowded, 512);
    fixture
        .engine
        .pause(PauseMode::InPlace)
        .wait_blocking()
        .unwrap();
    let waiting: Vec<_> = (0..10_000)
        .map(|i| named(&fixture, &format!("r{}", i % 100), 1))
        .collect();
    // Half of the aborts name no request, and every abort is given twice.
    let aborts: Vec<_> = (0..100_000)
        .map(|i| {
            let number = i % 50;
            let name = if i % 2 == 0 { "r" } else { "x" };
            let id = AbortTarget::Id(format!("{name}{number}"));
            fixture.engine.abort(id)
        })
        .collect();
    let ended: usize = aborts
        .into_iter()
        .map(|abort| abort.wait_blocking().unwrap())
        .sum();
    assert_eq!(
        ended,
        25 * 100,
        "the requests with even numbers below 50, each once"
    );
    let begins_with_r9 = AbortTarget::Prefix("r9".to_owned());
    let ended = fixture.engine.abort(begins_with_r9).wait_blocking();
    assert_eq!(
        ended,
        Ok(11 * 100),
        "r9 and r90 to r99, none of them below 50 and even"
    );
    fixture.engine.resume().wait_blocking().unwrap();
    let mut finished = 0;
    for generation in waiting {
        match reason(generation) {
            FinishReason::Aborted => {}
            _ => finished += 1,
        }
    }
    assert_eq!(finished, 10_000 - 2_500 - 1_100);
    fixture.assert_idle_and_conserved();
}

#[test]
fn a_request_can_be_aborted_while_it_is_computed_and_after_its_preemption() {
    let config = EngineConfig {
        max_batch_tokens: 2,
        prefill_chunk: 2,
        ..config()
    };
    let (fixture, permits) = Fixture::gated(config, 512);
    let prefilling = named(&fixture, "prefill", 1);
    permits.send(()).unwrap();
    fixture.wait_until("a chunk is done", |f| f.engine.stats().steps == 1);
    let abort = fixture.engine.abort(AbortTarget::Id("prefill".to_owned()));
    permits.send(()).unwrap();
    assert_eq!(abort.wait_blocking().unwrap(), 1);
    assert_eq!(answer(prefilling).tokens, []);
    let retracted = named(&fixture, "retracted", 2);
    fixture.wait_until("it runs", |f| f.engine.stats().running == 1);
    let pause = fixture.engine.pause(PauseMode::Retract);
    drop(permits);
    pause.wait_blocking().unwrap();
    let abort = fixture.engine.abort(AbortTarget::Prefix(String::new()));
    assert_eq!(abort.wait_blocking().unwrap(), 1);
    assert_eq!(reason(retracted), FinishReason::Aborted);
    fixture.assert_idle_and_conserved();
}

#[test]
fn pages_larger_than_the_pool_cache_nothing_and_delay_no_request() {
    let config = EngineConfig {
        page_size: 64,
        ..config()
    };
    let fixture = Fixture::new(config, 40);
    for seed in [1, 1, 2] {
        let answer = fixture.run(&prompt(seed, 20), 20);
        assert_eq!(answer.tokens, expected(&prompt(seed, 20), 20));
        assert_eq!(answer.cached_tokens, 0);
    }
    fixture.assert_idle_and_conserved();
    assert_eq!(fixture.engine.stats().kv.free, 40);
}
