//! Overlap scheduling: steps that are submitted before the steps before them have completed.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{Call, Fixture, POLICIES, VOCAB, answer, expected, greedy, prompt, request};
use hearth_engine::{
    EngineConfig, FinishReason, PauseMode, Request, SamplingParams, ShutdownOutcome,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn calls(fixture: &Fixture) -> Vec<Call> {
    fixture.calls.lock().unwrap().clone()
}

#[test]
fn in_steady_decode_every_step_is_submitted_before_the_one_before_it_completes() {
    let fixture = Fixture::new(EngineConfig::default(), 400);
    let requests = (0..3).map(|seed| request(&prompt(seed, 20), 30));
    for (seed, answer) in (0..).zip(fixture.run_at_once(requests)) {
        assert_eq!(answer.tokens, expected(&prompt(seed, 20), 30));
    }
    // The prompts, then the first step that decodes, then the steps that carry its tokens.
    let mut right = vec![
        Call::Submit(1, false),
        Call::Complete(1),
        Call::Submit(2, false),
    ];
    for step in 3..=30 {
        right.extend([Call::Submit(step, true), Call::Complete(step - 1)]);
    }
    right.push(Call::Complete(30));
    assert_eq!(calls(&fixture), right);
    let stats = fixture.engine.stats();
    assert_eq!((stats.steps, stats.computed_tokens), (30, 3 * (20 + 29)));
    fixture.assert_idle_and_conserved();
}

#[test]
fn the_device_has_the_next_step_before_the_output_of_the_current_one_is_known() {
    let (fixture, permits) = Fixture::gated(EngineConfig::default(), 400);
    let generation = fixture.submit(&prompt(1, 20), 10);
    permits.send(()).unwrap();
    fixture.wait_until("a third step", |f| {
        calls(f).contains(&Call::Submit(3, true))
    });
    fixture.wait_until("the completion of the second step", |f| {
        calls(f).contains(&Call::Complete(2))
    });
    let stats = fixture.engine.stats();
    assert_eq!((stats.steps, stats.generated_tokens), (1, 1));
    drop(permits);
    assert_eq!(answer(generation).tokens, expected(&prompt(1, 20), 10));
    fixture.assert_idle_and_conserved();
}

#[test]
fn a_request_that_arrives_while_two_steps_are_in_flight_is_in_the_step_after_them() {
    let (fixture, permits) = Fixture::gated(EngineConfig::default(), 400);
    let first = fixture.submit(&prompt(1, 20), 10);
    permits.send(()).unwrap();
    fixture.wait_until("two steps are in flight", |f| {
        calls(f).contains(&Call::Complete(2))
    });
    let second = fixture.submit(&prompt(2, 20), 10);
    fixture.wait_until("both run", |f| f.engine.stats().running == 2);
    drop(permits);
    assert_eq!(answer(first).tokens, expected(&prompt(1, 20), 10));
    assert_eq!(answer(second).tokens, expected(&prompt(2, 20), 10));
    let sizes: Vec<_> = fixture.steps().iter().map(|step| step.tokens).collect();
    assert_eq!(sizes[..5], [20, 1, 1, 21, 2]);
    fixture.assert_idle_and_conserved();
}

/// The greedy continuation up to its `n`-th token or the next that can stop it, and that token.
fn stopped_by_its(n: usize, tokens: &[u32]) -> (Vec<u32>, u32) {
    let whole = expected(tokens, 60);
    // A token that did not occur before.
    let stop = (n..).find(|&at| !whole[..at].contains(&whole[at])).unwrap();
    (whole[..stop].to_vec(), whole[stop])
}

fn stopping(tokens: &[u32], stop: u32) -> Request {
    Request {
        params: SamplingParams {
            eos_token_ids: vec![stop],
            ..greedy(60)
        },
        ..request(tokens, 60)
    }
}

#[test]
fn slots_of_ended_requests_are_reused_safely_while_the_device_still_writes_to_one() {
    // There is room for two, so that waiting requests get the slots of requests that end.
    let fixture = Fixture::new(EngineConfig::default(), 130);
    let mut requests = Vec::new();
    let mut right = Vec::new();
    for seed in 0..20 {
        let (output, stop) = stopped_by_its(3 + seed as usize % 9, &prompt(seed, 15));
        requests.push(stopping(&prompt(seed, 15), stop));
        right.push(output);
    }
    let useful: usize = right.iter().map(|output| 15 + output.len()).sum();
    let answers = fixture.run_at_once(requests);
    for (answer, right) in answers.iter().zip(&right) {
        assert_eq!(answer.tokens, *right);
        assert!(matches!(answer.end, Ok((FinishReason::Stop { .. }, _))));
    }
    fixture.assert_idle_and_conserved();
    let stats = fixture.engine.stats();
    let again = (stats.computed_tokens as usize).saturating_sub(useful);
    assert!(again > 4, "rows of ended requests were computed: {again}");
    // Nothing of those rows is cached: a request that continues from there is computed correctly.
    for (seed, output) in (0..20).zip(&right) {
        let (_, stop) = stopped_by_its(3 + seed as usize % 9, &prompt(seed, 15));
        let longer = [&prompt(seed, 15)[..], output, &[stop, 1, 2]].concat();
        let answer = fixture.run(&longer, 5);
        assert!(answer.cached_tokens <= 15 + output.len());
        assert_eq!(answer.tokens, expected(&longer, 5));
    }
}

#[test]
fn commands_are_executed_between_steps_even_if_steps_overlap() {
    let fixture = Fixture::new(EngineConfig::default(), 2000);
    let running: Vec<_> = (0..3)
        .map(|seed| fixture.submit(&prompt(seed, 20), 400))
        .collect();
    for mode in [PauseMode::InPlace, PauseMode::Retract, PauseMode::InPlace] {
        let steps = fixture.engine.stats().steps;
        fixture.wait_until("some steps", |f| {
            let stats = f.engine.stats();
            stats.steps > steps + 5 || stats.finished == 3
        });
        fixture.engine.pause(mode).wait_blocking().unwrap();
        let (submitted, completed): (Vec<_>, Vec<_>) = calls(&fixture)
            .into_iter()
            .partition(|call| matches!(call, Call::Submit(..)));
        assert_eq!(submitted.len(), completed.len(), "no step is in flight");
        fixture.engine.resume().wait_blocking().unwrap();
    }
    for (seed, generation) in (0..).zip(running) {
        assert_eq!(answer(generation).tokens, expected(&prompt(seed, 20), 400));
    }
    fixture.assert_idle_and_conserved();
}

#[test]
fn a_shutdown_ends_an_engine_with_two_steps_in_flight() {
    let fixture = Fixture::new(EngineConfig::default(), 2000);
    let endless = fixture.submit(&prompt(1, 20), 480);
    fixture.wait_until("steps overlap", |f| {
        f.steps().iter().any(|step| step.overlaps)
    });
    let ended = fixture.engine.shutdown(Duration::ZERO);
    assert_eq!(ended, ShutdownOutcome::Stopped);
    let answer = answer(endless);
    assert_eq!(answer.tokens, expected(&prompt(1, 20), answer.tokens.len()));
}

fn params() -> impl Strategy<Value = SamplingParams> {
    let sampling = (
        prop::sample::select(vec![0.0_f32, 0.7, 1.0]),
        any::<u64>(),
        prop::option::weighted(0.1, 0.1_f32..1.0),
        prop::option::weighted(0.1, 0..2_usize),
    );
    let ending = (1..50_usize, vec(0..VOCAB as u32 - 3, 0..6), 0..12_usize);
    (sampling, ending).prop_map(|(sampling, ending)| {
        let (temperature, seed, penalty, logprobs) = sampling;
        let (max_tokens, eos_token_ids, min_tokens) = ending;
        SamplingParams {
            max_tokens,
            min_tokens: min_tokens.min(max_tokens),
            eos_token_ids,
            temperature,
            seed: Some(seed),
            presence_penalty: penalty.unwrap_or(0.0),
            logprobs,
            ..SamplingParams::default()
        }
    })
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let request = (0..4_u64, 1..30_usize, params(), 0..3_i32);
    let request = request.prop_map(|(family, len, params, priority)| Request {
        prompt: prompt(family, len),
        params,
        priority,
        ..Request::default()
    });
    vec(request, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn tokens_are_the_same_with_and_without_overlapping_steps(
        requests in requests(),
        kv_slots in 80..300_usize,
        max_running in 1..10_usize,
        schedule in prop::sample::select(POLICIES.to_vec()),
        page_size in prop::sample::select(vec![1_usize, 4]),
        retract_every in prop::option::of(2..9_u64),
        host_slots in prop::sample::select(vec![0_usize, 100]),
    ) {
        let outputs = |fixture: &Fixture, requests: Vec<Request>| -> Vec<_> {
            let answers = fixture.run_at_once(requests).into_iter();
            let outputs = answers.map(|answer| (answer.tokens, answer.end.unwrap().0)).collect();
            fixture.assert_idle_and_conserved();
            outputs
        };
        // Steps do not overlap where requests may be retracted before the next one. The executor
        // samples in both cases, because the engine, in f32, may sample the neighbouring token once
        // in 10^6 times.
        let retracting = EngineConfig { retract_every: Some(1), ..EngineConfig::default() };
        let without = Fixture::new(retracting, 4096);
        let right = outputs(&without, requests.clone());
        assert!(without.steps().iter().all(|step| !step.overlaps));
        let config = EngineConfig {
            max_running,
            max_batch_tokens: 40,
            prefill_chunk: 16,
            schedule,
            page_size,
            retract_every,
            ..EngineConfig::default()
        };
        let with = Fixture::with_host(config, kv_slots, host_slots);
        assert_eq!(outputs(&with, requests), right);
    }
}
