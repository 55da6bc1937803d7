//! Speculative decoding changes no output: whatever is drafted, tokens, log-probabilities and ends
//! are those of an engine that does not speculate.
#![allow(clippy::unwrap_used)]

mod common;

use common::kinds::{Seen, output, requests, seen, with_prediction};
use common::{Fixture, answer, prompt, request};
use hearth_engine::{EngineConfig, Event, FinishReason, Request, Speculation};

fn config(speculation: Option<Speculation>) -> EngineConfig {
    EngineConfig {
        speculation,
        ..EngineConfig::default()
    }
}

/// Drafts whenever something is found.
fn eager(num_tokens: usize) -> Speculation {
    Speculation {
        num_tokens,
        lookup_min: 1,
        lookup_max: 3,
        adaptive: false,
        ..Speculation::default()
    }
}

/// Runs all requests at once on an engine that samples on the host.
fn run(config: EngineConfig, slots: usize, requests: &[Request]) -> (Vec<Seen>, Fixture) {
    let fixture = Fixture::sampling_on_host(config, slots);
    let generations: Vec<_> = requests
        .iter()
        .map(|request| fixture.engine.submit(request.clone()).unwrap())
        .collect();
    let seen = generations.into_iter().map(seen).collect();
    fixture.assert_idle_and_conserved();
    (seen, fixture)
}

#[test]
fn every_kind_of_request_gives_the_same_output_with_and_without_drafts() {
    let requests = requests();
    let (expected, _) = run(config(None), 8192, &requests);
    let ended = |end: &FinishReason| {
        let is_it = |seen: &&Seen| seen.end.as_ref().is_ok_and(|(reason, ..)| reason == end);
        expected.iter().filter(is_it).count()
    };
    assert!(ended(&FinishReason::Length) > 10);
    assert!(ended(&FinishReason::Stop { token: None }) > 10, "a grammar");
    for (change, slots) in [
        (EngineConfig::default(), 8192),
        // Few slots, and small chunks.
        (
            EngineConfig {
                max_batch_tokens: 48,
                prefill_chunk: 8,
                ..EngineConfig::default()
            },
            250,
        ),
        (
            EngineConfig {
                retract_every: Some(5),
                page_size: 16,
                ..EngineConfig::default()
            },
            2048,
        ),
        (
            EngineConfig {
                prefix_cache: false,
                max_running: 3,
                ..EngineConfig::default()
            },
            1024,
        ),
    ] {
        for speculation in [eager(1), eager(4), eager(16), Speculation::default()] {
            let config = EngineConfig {
                speculation: Some(speculation),
                ..change.clone()
            };
            let (seen, fixture) = run(config.clone(), slots, &requests);
            for (index, (seen, expected)) in seen.iter().zip(&expected).enumerate() {
                assert_eq!(seen, expected, "request {index}, {config:?}");
            }
            let stats = fixture.engine.stats();
            assert!(stats.accepted_tokens <= stats.drafted_tokens, "{stats:?}");
            assert_eq!(
                stats.accepted_at.iter().sum::<u64>(),
                stats.accepted_tokens,
                "{stats:?}"
            );
            if !speculation.adaptive {
                assert!(stats.accepted_tokens > 100, "{stats:?}");
                assert!(stats.drafted_tokens > stats.accepted_tokens, "{stats:?}");
            }
            if change.retract_every.is_some() {
                assert!(stats.preemptions > 0, "the test forces preemptions");
            }
        }
    }
}

#[test]
fn a_right_prediction_saves_steps_and_is_counted() {
    let request = request(&prompt(1, 20), 61);
    let prediction = output(&request);
    let fixture = Fixture::sampling_on_host(config(Some(eager(4))), 1024);
    let generation = fixture.engine.submit(Request {
        prediction: prediction.clone(),
        ..request.clone()
    });
    let answer = answer(generation.unwrap());
    assert_eq!(answer.tokens, prediction);
    // One step for the prompt, and one for every five of the other 60 tokens.
    assert_eq!(fixture.steps().len(), 1 + 12);
    let (_, usage) = answer.end.unwrap();
    assert_eq!((usage.drafts.drafted, usage.drafts.accepted), (48, 48));
    let stats = fixture.engine.stats();
    assert_eq!(stats.drafts, 12);
    assert_eq!(stats.accepted_at[..5], [12, 12, 12, 12, 0]);
    assert_eq!(stats.generated_tokens, 61);
}

#[test]
fn tokens_of_one_step_are_marked_as_a_run_with_one_time() {
    let request = request(&prompt(1, 20), 21);
    let prediction = output(&request);
    let fixture = Fixture::sampling_on_host(config(Some(eager(4))), 1024);
    let mut generation = fixture
        .engine
        .submit(Request {
            prediction,
            ..request
        })
        .unwrap();
    let mut tokens = Vec::new();
    while let Some(event) = generation.next_blocking() {
        if let Event::Token(token) = event {
            tokens.push((token.run, token.at));
        }
    }
    assert_eq!(tokens[0].0, 1);
    for run in tokens[1..].chunks(5) {
        assert!(run.iter().all(|token| *token == (5, run[0].1)), "{run:?}");
    }
}

#[test]
fn what_another_request_continued_with_is_drafted_within_its_namespace_only() {
    let fixture = Fixture::sampling_on_host(config(Some(eager(4))), 1024);
    let of = |namespace: &str| Request {
        namespace: Some(namespace.to_owned()),
        ..request(&prompt(1, 20), 41)
    };
    let accepted = |request: Request| {
        let before = fixture.engine.stats().accepted_tokens;
        let tokens = answer(fixture.engine.submit(request).unwrap()).tokens;
        (tokens, fixture.engine.stats().accepted_tokens - before)
    };
    let (first, by_chance) = accepted(of("a"));
    let (again, accepted_again) = accepted(of("a"));
    assert_eq!(again, first);
    // The last token of an output is not cached, because nothing was computed after it.
    assert!(accepted_again >= 30, "{accepted_again}");
    let (other, accepted_elsewhere) = accepted(of("b"));
    assert_eq!((other, accepted_elsewhere), (first, by_chance));
}

#[test]
fn a_request_may_refuse_drafts_and_a_device_that_samples_gets_none() {
    let request = request(&prompt(1, 20), 41);
    let with = Request {
        prediction: output(&request),
        ..request
    };
    let fixture = Fixture::sampling_on_host(config(Some(eager(4))), 1024);
    let without = Request {
        no_speculation: true,
        ..with.clone()
    };
    let refused = answer(fixture.engine.submit(without).unwrap());
    assert_eq!(fixture.engine.stats().drafts, 0);
    assert_eq!(refused.tokens, with.prediction);
    assert_eq!(fixture.engine.speculation(), Some(eager(4)));
    let on_device = Fixture::new(config(Some(eager(4))), 1024);
    let tokens = answer(on_device.engine.submit(with.clone()).unwrap()).tokens;
    assert_eq!(tokens, with.prediction);
    assert_eq!(on_device.engine.stats().drafts, 0);
    assert_eq!(on_device.engine.speculation(), None);
}

#[test]
fn refused_drafts_never_enter_the_cache() {
    let fixture = Fixture::sampling_on_host(config(Some(eager(16))), 1024);
    let request = request(&prompt(1, 20), 40);
    let wrong = Request {
        prediction: vec![96; 200],
        ..request.clone()
    };
    let tokens = answer(fixture.engine.submit(wrong).unwrap()).tokens;
    fixture.assert_idle_and_conserved();
    let stats = fixture.engine.stats();
    assert!(stats.drafted_tokens > stats.accepted_tokens);
    // Everything but the last token, for which nothing was computed.
    assert_eq!(stats.kv.cached(), 20 + 39);
    assert_eq!(tokens, output(&request));
}

#[test]
fn the_pool_of_exactly_one_request_suffices_with_drafts() {
    let fixture = Fixture::sampling_on_host(config(Some(eager(16))), 60);
    let request = request(&prompt(1, 20), 40);
    let expected = output(&request);
    let requests = (0..4).map(|i| Request {
        prediction: expected[i..].to_vec(),
        ..request.clone()
    });
    for answer in fixture.run_at_once(requests) {
        assert_eq!(answer.tokens, expected);
    }
    fixture.assert_idle_and_conserved();
}

#[test]
fn requests_that_are_preempted_for_want_of_slots_continue_with_drafts() {
    // All prompts fit, all outputs do not.
    let requests: Vec<_> = (0..12)
        .map(|seed| with_prediction(&request(&prompt(seed, 8), 100)))
        .collect();
    let fixture = Fixture::sampling_on_host(config(Some(eager(4))), 160);
    for (answer, request) in fixture.run_at_once(requests.clone()).iter().zip(&requests) {
        assert_eq!(answer.tokens, output(request));
    }
    fixture.assert_idle_and_conserved();
    let stats = fixture.engine.stats();
    assert!(stats.preemptions > 0, "{stats:?}");
    assert!(stats.accepted_tokens > 100, "{stats:?}");
}
