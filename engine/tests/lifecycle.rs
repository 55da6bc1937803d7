//! How requests and the engine begin and end.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{FAILS, Fixture, PANICS, VOCAB, answer, expected, greedy, limits, prompt, request};
use hearth_engine::{
    BuildError, Engine, EngineConfig, Event, FinishReason, Request, SamplingParams,
    ShutdownOutcome, SpawnError, SubmitError,
};
use hearth_forward::{
    Executor, ExecutorLimits, ForwardBatch, ForwardError, ForwardOutput, SampleRequests,
};

fn config() -> EngineConfig {
    EngineConfig::default()
}

#[test]
fn a_dropped_generation_returns_its_slots_within_one_step() {
    let (fixture, permits) = Fixture::gated(config(), 256);
    let doomed = fixture.submit(&prompt(1, 30), 100);
    let survivor = fixture.submit(&prompt(2, 30), 40);
    for _ in 0..3 {
        permits.send(()).unwrap();
    }
    fixture.wait_until("three steps", |f| f.engine.stats().steps == 3);
    fixture.wait_until("both run", |f| f.engine.stats().running == 2);
    drop(doomed);
    // At most the forward pass that was scheduled already.
    permits.send(()).unwrap();
    fixture.wait_until("one step more", |f| f.engine.stats().steps == 4);
    fixture.wait_until("its slots are back", |f| f.engine.stats().running == 1);
    let stats = fixture.engine.stats();
    assert_eq!((stats.steps, stats.cancelled), (4, 1));
    assert!(
        stats.kv.is_conserved() && stats.kv.evictable >= 30,
        "{:?}",
        stats.kv
    );
    drop(permits);
    assert_eq!(answer(survivor).tokens, expected(&prompt(2, 30), 40));
    fixture.assert_idle_and_conserved();
}

#[test]
fn a_generation_dropped_while_waiting_never_runs() {
    let one_at_a_time = EngineConfig {
        max_running: 1,
        ..config()
    };
    let (fixture, permits) = Fixture::gated(one_at_a_time, 256);
    let first = fixture.submit(&prompt(1, 4), 2);
    fixture.wait_until("it runs", |f| f.engine.stats().running == 1);
    drop(fixture.submit(&prompt(2, 4), 2));
    drop(permits);
    assert_eq!(answer(first).tokens, expected(&prompt(1, 4), 2));
    fixture.assert_idle_and_conserved();
    let stats = fixture.engine.stats();
    assert_eq!(
        (stats.prompt_tokens, stats.cancelled, stats.finished),
        (4, 1, 1)
    );
}

#[test]
fn a_generation_that_is_stopped_counts_as_finished() {
    let fixture = Fixture::new(config(), 256);
    let mut generation = fixture.submit(&prompt(1, 4), 200);
    while !matches!(generation.next_blocking(), Some(Event::Token(_))) {}
    generation.stop();
    fixture.assert_idle_and_conserved();
    let stats = fixture.engine.stats();
    assert_eq!((stats.finished, stats.cancelled), (1, 0));
}

#[test]
fn requests_that_belong_together_are_queued_together_or_not_at_all() {
    let bounds = EngineConfig {
        max_running: 1,
        max_queue: 3,
        ..config()
    };
    let fixture = Fixture::new(bounds, 256);
    let requests = |bad: usize, count: usize| {
        let prompts = (0..count).map(|n| prompt(n as u64, if n == bad { 0 } else { 4 }));
        prompts.map(|prompt| request(&prompt, 3)).collect()
    };
    for (requests, error) in [
        (requests(9, 5), SubmitError::QueueFull { limit: 3 }),
        (requests(2, 3), SubmitError::EmptyPrompt),
    ] {
        let refused = fixture.engine.submit_all(requests);
        assert_eq!(refused.err(), Some(error));
    }
    let accepted = fixture.engine.submit_all(requests(9, 3)).unwrap();
    for (seed, generation) in (0..).zip(accepted) {
        assert_eq!(answer(generation).tokens, expected(&prompt(seed, 4), 3));
    }
    fixture.assert_idle_and_conserved();
    assert_eq!(fixture.engine.stats().received, 3);
}

#[test]
fn requests_that_fill_free_places_do_not_count_as_waiting() {
    let bounds = EngineConfig {
        max_running: 16,
        max_queue: 2,
        ..config()
    };
    let (fixture, permits) = Fixture::gated(bounds, 512);
    let arrive = |seeds: std::ops::Range<u64>| {
        let submit = |seed| fixture.engine.submit(request(&prompt(seed, 4), 3));
        seeds.map(submit).collect::<Result<Vec<_>, _>>()
    };
    let mut accepted = arrive(0..12).expect("twelve have room at once");
    accepted.extend(arrive(12..18).expect("sixteen run and two wait"));
    assert_eq!(
        arrive(18..19).unwrap_err(),
        SubmitError::QueueFull { limit: 2 }
    );
    drop(permits);
    for (seed, generation) in (0..).zip(accepted) {
        assert_eq!(answer(generation).tokens, expected(&prompt(seed, 4), 3));
    }
    fixture.assert_idle_and_conserved();
}

#[test]
fn one_request_more_than_the_queue_holds_is_refused() {
    let bounds = EngineConfig {
        max_running: 1,
        max_queue: 3,
        ..config()
    };
    let (fixture, permits) = Fixture::gated(bounds, 256);
    let mut accepted = vec![fixture.submit(&prompt(0, 4), 3)];
    fixture.wait_until("it runs", |f| f.engine.stats().running == 1);
    accepted.extend((1..4).map(|seed| fixture.submit(&prompt(seed, 4), 3)));
    let error = fixture
        .engine
        .submit(request(&prompt(9, 4), 3))
        .unwrap_err();
    assert_eq!(error, SubmitError::QueueFull { limit: 3 });
    assert_eq!(fixture.engine.stats().waiting, 3);
    drop(permits);
    for (seed, generation) in (0..).zip(accepted) {
        assert_eq!(answer(generation).tokens, expected(&prompt(seed, 4), 3));
    }
    assert_eq!(
        fixture.run(&prompt(9, 4), 3).tokens,
        expected(&prompt(9, 4), 3)
    );
}

#[test]
fn an_idle_engine_does_nothing_and_wakes_immediately() {
    let fixture = Fixture::new(config(), 256);
    fixture.run(&prompt(1, 4), 4);
    fixture.assert_idle_and_conserved();
    let steps = fixture.engine.stats().steps;
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(fixture.engine.stats().steps, steps);
    assert_eq!(fixture.run(&prompt(2, 4), 4).tokens.len(), 4);
}

#[test]
fn requests_that_the_model_cannot_take_are_refused_with_the_bound_and_the_value() {
    let fixture = Fixture::new(config(), 64);
    let submit = |request| fixture.engine.submit(request).unwrap_err();
    assert_eq!(submit(request(&[], 1)), SubmitError::EmptyPrompt);
    let too_long = submit(request(&prompt(1, 64), 1));
    assert_eq!(
        too_long,
        SubmitError::PromptTooLong {
            given: 64,
            limit: 63,
            context: 64
        }
    );
    assert!(too_long.to_string().contains("64") && too_long.to_string().contains("63"));
    let given = VOCAB as u32;
    let unknown = SubmitError::TokenOutOfRange {
        index: 1,
        given,
        vocab: VOCAB,
    };
    assert_eq!(submit(request(&[1, given], 1)), unknown);
    let params = SamplingParams {
        temperature: -1.0,
        ..greedy(1)
    };
    let error = submit(Request {
        params,
        ..request(&[1], 1)
    });
    assert!(matches!(error, SubmitError::Params(_)), "{error}");
    assert_eq!(fixture.engine.stats().steps, 0);
}

#[test]
fn max_tokens_is_cut_to_the_context_length() {
    let fixture = Fixture::new(config(), 64);
    for len in [1, 20, 63] {
        let answer = fixture.run(&prompt(7, len), usize::MAX);
        assert_eq!(answer.tokens, expected(&prompt(7, len), 64 - len));
        assert_eq!(answer.end.unwrap().0, FinishReason::Length);
    }
    fixture.assert_idle_and_conserved();
}

#[test]
fn a_stop_token_ends_the_output_and_is_not_part_of_it() {
    let fixture = Fixture::new(config(), 256);
    let full = expected(&prompt(4, 10), 20);
    let stop = full[7];
    let at = full.iter().position(|&token| token == stop).unwrap();
    for as_eos in [true, false] {
        let mut params = greedy(20);
        *(if as_eos {
            &mut params.eos_token_ids
        } else {
            &mut params.stop_token_ids
        }) = vec![stop];
        let request = Request {
            params,
            ..request(&prompt(4, 10), 20)
        };
        let answer = answer(fixture.engine.submit(request).unwrap());
        assert_eq!(answer.tokens, full[..at]);
        let (reason, usage) = answer.end.unwrap();
        assert_eq!(reason, FinishReason::Stop { token: Some(stop) });
        assert_eq!(usage.completion_tokens, at + 1);
    }
    let params = SamplingParams {
        eos_token_ids: vec![stop],
        ignore_eos: true,
        ..greedy(20)
    };
    let request = Request {
        params,
        ..request(&prompt(4, 10), 20)
    };
    assert_eq!(answer(fixture.engine.submit(request).unwrap()).tokens, full);
}

#[test]
fn a_request_for_zero_tokens_computes_and_caches_its_prompt() {
    let fixture = Fixture::new(config(), 256);
    let answer = fixture.run(&prompt(4, 10), 0);
    assert_eq!(answer.tokens, []);
    assert_eq!(answer.end.unwrap().0, FinishReason::Length);
    assert_eq!(fixture.run(&prompt(4, 10), 1).cached_tokens, 9);
}

#[test]
fn a_forward_pass_that_fails_or_panics_fails_its_own_requests_only() {
    for (poison, text) in [
        (FAILS, "the model failed: out of memory"),
        (PANICS, "the model panicked: the device is gone"),
    ] {
        let fixture = Fixture::new(config(), 256);
        let good = prompt(1, 20);
        assert_eq!(fixture.run(&good, 5).tokens, expected(&good, 5));
        let answer = fixture.run(&[&good[..], &[poison, 3]].concat(), 5);
        assert_eq!(answer.end.unwrap_err(), text);
        fixture.assert_idle_and_conserved();
        let again = fixture.run(&good, 5);
        assert_eq!(again.tokens, expected(&good, 5));
        assert_eq!(
            again.cached_tokens, 19,
            "prompts that were cached before are intact"
        );
        let stats = fixture.engine.stats();
        assert_eq!((stats.failed, stats.finished), (1, 2));
    }
}

#[test]
fn waiting_requests_survive_a_failed_forward_pass() {
    let one_at_a_time = EngineConfig {
        max_running: 1,
        ..config()
    };
    let (fixture, permits) = Fixture::gated(one_at_a_time, 256);
    let doomed = fixture.submit(&[PANICS], 5);
    let waiting = fixture.submit(&prompt(1, 5), 5);
    drop(permits);
    assert!(answer(doomed).end.is_err());
    assert_eq!(answer(waiting).tokens, expected(&prompt(1, 5), 5));
}

#[test]
fn a_shutdown_lets_requests_finish_within_the_grace_period() {
    let fixture = Fixture::new(config(), 256);
    let generation = fixture.submit(&prompt(1, 5), 50);
    let outcome = fixture.engine.shutdown(Duration::from_secs(20));
    assert_eq!(outcome, ShutdownOutcome::Stopped);
    assert_eq!(answer(generation).tokens, expected(&prompt(1, 5), 50));
    let error = fixture.engine.submit(request(&[1], 1)).unwrap_err();
    assert_eq!(error, SubmitError::ShuttingDown);
    assert_eq!(
        fixture.engine.shutdown(Duration::ZERO),
        ShutdownOutcome::Stopped
    );
}

#[test]
fn a_shutdown_cancels_requests_that_exceed_the_grace_period() {
    let (fixture, permits) = Fixture::gated(config(), 512);
    let running = fixture.submit(&prompt(1, 5), 400);
    fixture.wait_until("it runs", |f| f.engine.stats().running == 1);
    let waiting = fixture.submit(&prompt(2, 5), 400);
    std::thread::scope(|scope| {
        let shutdown = scope.spawn(|| fixture.engine.shutdown(Duration::ZERO));
        fixture.wait_until("closed", |f| {
            // Other errors would be wrong: only these requests can fill the queue.
            let refused = f.engine.submit(request(&[1], 1));
            matches!(refused, Err(SubmitError::ShuttingDown))
        });
        permits.send(()).unwrap();
        assert_eq!(shutdown.join().unwrap(), ShutdownOutcome::Stopped);
    });
    for generation in [running, waiting] {
        assert_eq!(answer(generation).end.unwrap().0, FinishReason::Cancelled);
    }
    let kv = fixture.engine.stats().kv;
    assert!(kv.is_conserved() && kv.held == 0, "{kv:?}");
}

#[test]
fn requests_finish_after_the_last_handle_is_dropped() {
    let fixture = Fixture::new(config(), 256);
    let generation = fixture.submit(&prompt(1, 5), 50);
    drop(fixture);
    assert_eq!(answer(generation).tokens, expected(&prompt(1, 5), 50));
}

#[test]
fn an_executor_that_cannot_be_built_is_reported() {
    type Built = Result<common::FakeModel, BuildError>;
    let error = Engine::spawn(config(), || -> Built {
        Err(BuildError::new("no such file"))
    });
    assert_eq!(error.unwrap_err().to_string(), "no such file");
    let error = Engine::spawn(config(), || -> Built { panic!("no driver") });
    let error = error.unwrap_err();
    assert!(
        matches!(&error, SpawnError::BuildPanicked(text) if text == "no driver"),
        "{error}"
    );
    let bounds = EngineConfig {
        max_running: 0,
        ..config()
    };
    let error = Engine::spawn(bounds, || -> Built { unreachable!() });
    assert!(matches!(error, Err(SpawnError::Config(_))));
}

#[test]
fn the_context_is_the_smaller_of_the_model_length_and_the_pool() {
    for (kv_slots, max_model_len) in [(64, 32), (32, 64)] {
        let limits = ExecutorLimits {
            max_model_len,
            ..limits(kv_slots)
        };
        let fixture = Fixture::build(config(), limits, None);
        assert_eq!(fixture.engine.context_limit(), 32);
        assert_eq!(
            fixture.run(&prompt(1, 10), 1000).tokens,
            expected(&prompt(1, 10), 22)
        );
    }
}

#[test]
fn an_async_task_receives_events_too() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let fixture = Fixture::new(config(), 256);
    let mut generation = fixture.submit(&prompt(1, 5), 3);
    let events = runtime.block_on(async {
        let mut events = Vec::new();
        while let Some(event) = generation.next().await {
            events.push(event);
        }
        events
    });
    assert_eq!(events.len(), 5);
    assert!(matches!(
        events[0],
        Event::Started {
            prompt_tokens: 5,
            cached_tokens: 0,
            ..
        }
    ));
    assert!(matches!(
        events[4],
        Event::Finished(FinishReason::Length, _)
    ));
}

#[test]
fn a_handle_tells_whether_its_engine_runs() {
    let fixture = Fixture::new(EngineConfig::default(), 64);
    assert!(fixture.engine.is_running());
    fixture.engine.shutdown(Duration::ZERO);
    assert!(!fixture.engine.is_running());
}

#[test]
fn a_context_without_room_for_an_output_is_refused_with_a_reason() {
    let limits = limits(1);
    let spawned = Engine::spawn(EngineConfig::default(), move || Ok(NoModel(limits)));
    let message = spawned.unwrap_err().to_string();
    assert!(
        message.contains("at least 2 tokens") && message.contains("got 1"),
        "{message}"
    );
    assert!(!message.contains('{'), "{message}");
}

struct NoModel(ExecutorLimits);

impl Executor for NoModel {
    type Submission = ForwardOutput;

    fn limits(&self) -> ExecutorLimits {
        self.0
    }

    fn submit(
        &mut self,
        _: &ForwardBatch,
        _: &mut SampleRequests<'_>,
    ) -> Result<ForwardOutput, ForwardError> {
        Err(ForwardError::other("there is no model"))
    }

    fn complete(&mut self, output: ForwardOutput) -> Result<ForwardOutput, ForwardError> {
        Ok(output)
    }
}
