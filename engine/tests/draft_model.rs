//! A draft model changes no output, whatever it drafts and however it fails, and its slots are
//! those of the requests that run.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::kinds::{output, requests, seen};
use common::{FakeModel, Fixture, VOCAB, answer, limits, prompt, request};
use hearth_engine::{
    BuildDraftModel, DraftMethod, DraftModel, Engine, EngineConfig, Request, Speculation,
};
use hearth_forward::{ExecutorLimits, ForwardBatch, ForwardError};

/// A draft model that is like the model itself, but for the tokens that `change` makes other ones.
struct Like<F> {
    model: FakeModel,
    change: F,
}

impl<F: FnMut(&mut Vec<f32>) -> Result<(), ForwardError>> DraftModel for Like<F> {
    fn sizes(&self) -> ExecutorLimits {
        self.model.limits
    }

    fn logits(&mut self, batch: &ForwardBatch) -> Result<Vec<f32>, ForwardError> {
        let mut logits = self.model.logits(batch)?;
        (self.change)(&mut logits)?;
        Ok(logits)
    }
}

fn like<F>(kv_slots: usize, change: F) -> Box<dyn DraftModel>
where
    F: FnMut(&mut Vec<f32>) -> Result<(), ForwardError> + 'static,
{
    let model = FakeModel {
        samples_on_device: false,
        ..FakeModel::new(limits(kv_slots), 0)
    };
    Box::new(Like { model, change })
}

/// A draft model that drafts what the model samples greedily.
fn same(kv_slots: usize) -> Box<dyn DraftModel> {
    like(kv_slots, |_| Ok(()))
}

/// A draft model that drafts another token after one context in `every`.
fn wrong_at_times(kv_slots: usize, every: u32) -> Box<dyn DraftModel> {
    like(kv_slots, move |logits| {
        for row in logits.chunks_mut(VOCAB) {
            if row[7].to_bits().is_multiple_of(every) {
                row[..90].rotate_left(1);
            }
        }
        Ok(())
    })
}

fn config(num_tokens: usize, adaptive: bool) -> EngineConfig {
    EngineConfig {
        speculation: Some(Speculation {
            method: DraftMethod::DraftModel,
            num_tokens,
            adaptive,
            ..Speculation::default()
        }),
        ..EngineConfig::default()
    }
}

#[test]
fn every_kind_of_request_gives_the_same_output_with_and_without_a_draft_model() {
    let requests = requests();
    let run = |fixture: &Fixture| {
        let submit = |request: &Request| fixture.engine.submit(request.clone()).unwrap();
        let generations: Vec<_> = requests.iter().map(submit).collect();
        let seen: Vec<_> = generations.into_iter().map(seen).collect();
        fixture.assert_idle_and_conserved();
        seen
    };
    let expected = run(&Fixture::sampling_on_host(EngineConfig::default(), 8192));
    let plain = EngineConfig::default();
    let small = EngineConfig {
        max_batch_tokens: 48,
        prefill_chunk: 8,
        ..EngineConfig::default()
    };
    let preempting = EngineConfig {
        retract_every: Some(5),
        page_size: 16,
        ..EngineConfig::default()
    };
    let uncached = EngineConfig {
        prefix_cache: false,
        max_running: 3,
        ..EngineConfig::default()
    };
    // The slots of the model and those of the draft model.
    for (change, slots, draft_slots) in [
        (&plain, 8192, 8192),
        (&plain, 8192, 200),
        (&small, 250, 300),
        (&preempting, 2048, 500),
        (&uncached, 1024, 1024),
    ] {
        for (num_tokens, every, adaptive) in
            [(1, 1, false), (4, 3, false), (16, 9, false), (4, 5, true)]
        {
            let config = EngineConfig {
                speculation: config(num_tokens, adaptive).speculation,
                ..change.clone()
            };
            let draft = move || wrong_at_times(draft_slots, every);
            let fixture = Fixture::with_draft_model(config.clone(), slots, draft);
            for (index, (seen, expected)) in run(&fixture).iter().zip(&expected).enumerate() {
                assert_eq!(seen, expected, "request {index}, {config:?}");
            }
            let stats = fixture.engine.stats();
            assert_eq!(stats.draft_failures, 0, "{stats:?}");
            assert!(stats.accepted_tokens <= stats.drafted_tokens, "{stats:?}");
            if !adaptive {
                assert!(stats.draft_forwards > 5, "{stats:?}");
                assert!(stats.drafted_tokens > 200, "{stats:?}");
            }
            if change.retract_every.is_some() {
                assert!(stats.preemptions > 0, "the test forces preemptions");
            }
        }
    }
}

#[test]
fn the_model_itself_as_draft_model_is_always_right() {
    let request = request(&prompt(1, 20), 61);
    let expected = output(&request);
    let fixture = Fixture::with_draft_model(config(4, false), 1024, || same(1024));
    let answer = answer(fixture.engine.submit(request).unwrap());
    assert_eq!(answer.tokens, expected);
    // One step for the prompt, and one for every five of the other 60 tokens.
    assert_eq!(fixture.steps().len(), 1 + 12);
    let (_, usage) = answer.end.unwrap();
    assert_eq!((usage.drafts.drafts, usage.drafts.drafted), (12, 48));
    assert_eq!(usage.drafts.accepted, 48);
    let stats = fixture.engine.stats();
    assert_eq!(stats.draft_forwards, 12 * 4);
    // Every token but the last of a draft is computed once, and that one in the next step.
    assert_eq!(stats.draft_model_tokens, 20 + 61 - 2);
    fixture.assert_idle_and_conserved();
}

#[test]
fn the_drafts_of_all_requests_are_made_in_the_same_forward_passes() {
    let requests: Vec<_> = (0..8).map(|i| request(&prompt(i, 30), 41)).collect();
    let fixture = Fixture::with_draft_model(config(4, false), 2048, || same(2048));
    for (answer, request) in fixture.run_at_once(requests.clone()).iter().zip(&requests) {
        assert_eq!(answer.tokens, output(request));
    }
    let stats = fixture.engine.stats();
    assert_eq!(stats.accepted_tokens, 8 * 32);
    assert_eq!(stats.draft_forwards, 8 * 4, "eight steps with drafts");
    fixture.assert_idle_and_conserved();
}

#[test]
fn a_long_prompt_is_computed_in_chunks_beside_the_drafts_of_others() {
    let long = EngineConfig {
        prefill_chunk: 32,
        ..config(4, false)
    };
    let fixture = Fixture::with_draft_model(long, 2048, || same(2048));
    let requests = [request(&prompt(1, 10), 100), request(&prompt(2, 300), 60)];
    for (answer, request) in fixture.run_at_once(requests.clone()).iter().zip(&requests) {
        assert_eq!(answer.tokens, output(request));
    }
    let stats = fixture.engine.stats();
    assert!(stats.accepted_tokens > 100, "{stats:?}");
    fixture.assert_idle_and_conserved();
}

#[test]
fn a_later_request_finds_what_the_draft_model_computed_for_an_earlier_one() {
    let fixture = Fixture::with_draft_model(config(4, false), 2048, || same(2048));
    let of = |namespace: &str, more: &[u32]| Request {
        namespace: Some(namespace.to_owned()),
        ..request(&[&prompt(1, 200)[..], more].concat(), 20)
    };
    let computed = |request: Request| {
        let before = fixture.engine.stats().draft_model_tokens;
        answer(fixture.engine.submit(request).unwrap());
        fixture.engine.stats().draft_model_tokens - before
    };
    assert!(computed(of("a", &[1, 2])) > 200);
    assert!(computed(of("a", &[3, 4])) < 60);
    assert!(computed(of("b", &[3, 4])) > 200);
    fixture.assert_idle_and_conserved();
}

#[test]
fn a_draft_model_that_fails_is_no_failure_of_the_requests() {
    type Break = fn(&mut Vec<f32>) -> Result<(), ForwardError>;
    let broken: [Break; 4] = [
        |_| Err(ForwardError::other("out of memory")),
        |_| panic!("the driver is gone"),
        |logits| {
            logits.pop();
            Ok(())
        },
        |logits| {
            logits.fill(f32::NAN);
            Ok(())
        },
    ];
    for (index, change) in broken.into_iter().enumerate() {
        let fixture = Fixture::with_draft_model(config(4, false), 1024, move || like(1024, change));
        let requests = [request(&prompt(1, 20), 61), request(&prompt(2, 40), 61)];
        for (answer, request) in fixture.run_at_once(requests.clone()).iter().zip(&requests) {
            assert_eq!(answer.tokens, output(request), "case {index}");
        }
        let stats = fixture.engine.stats();
        assert_eq!(stats.drafts, 0, "{stats:?}");
        if index < 3 {
            assert_eq!((stats.draft_forwards, stats.draft_failures), (8, 8));
        }
        fixture.assert_idle_and_conserved();
    }
}

#[test]
fn a_failure_now_and_then_costs_a_draft_only() {
    let mut calls = 0;
    let draft = move || {
        like(400, move |_| {
            calls += 1;
            match calls % 5 {
                0 => Err(ForwardError::other("out of memory")),
                _ => Ok(()),
            }
        })
    };
    let requests: Vec<_> = (0..6).map(|i| request(&prompt(i, 30), 80)).collect();
    let fixture = Fixture::with_draft_model(config(3, false), 2048, draft);
    for (answer, request) in fixture.run_at_once(requests.clone()).iter().zip(&requests) {
        assert_eq!(answer.tokens, output(request));
    }
    let stats = fixture.engine.stats();
    assert!(
        stats.draft_failures > 8 && stats.accepted_tokens > 100,
        "{stats:?}"
    );
    fixture.assert_idle_and_conserved();
}

#[test]
fn a_request_that_is_longer_than_the_draft_model_holds_goes_on_without_it() {
    let request = request(&prompt(1, 20), 100);
    // The pool has room for 50 tokens.
    let fixture = Fixture::with_draft_model(config(4, false), 1024, || same(50));
    let answer = answer(fixture.engine.submit(request.clone()).unwrap());
    assert_eq!(answer.tokens, output(&request));
    let stats = fixture.engine.stats();
    assert!((20..32).contains(&stats.accepted_tokens), "{stats:?}");
    fixture.assert_idle_and_conserved();
}

#[test]
fn the_draft_model_is_not_run_where_it_does_not_pay() {
    // It takes much longer than the model, and is always wrong.
    let draft = || {
        like(2048, |logits| {
            std::thread::sleep(Duration::from_millis(3));
            logits
                .chunks_mut(VOCAB)
                .for_each(|row| row[..90].rotate_left(1));
            Ok(())
        })
    };
    let fixture = Fixture::with_draft_model(config(4, true), 2048, draft);
    for seed in 0..4 {
        let request = request(&prompt(seed, 20), 300);
        let answer = answer(fixture.engine.submit(request.clone()).unwrap());
        assert_eq!(answer.tokens.len(), 300);
    }
    let stats = fixture.engine.stats();
    assert!((1..=12).contains(&stats.draft_forwards), "{stats:?}");
}

#[test]
fn requests_that_are_left_give_the_slots_of_the_draft_model_back() {
    let fixture = Fixture::with_draft_model(config(4, false), 2048, || wrong_at_times(512, 4));
    let mut left = Vec::new();
    for seed in 0..6 {
        let mut generation = fixture.submit(&prompt(seed, 30), 400);
        for _ in 0..40 {
            generation.next_blocking();
        }
        left.push(generation);
    }
    drop(left);
    fixture.assert_idle_and_conserved();
    assert!(fixture.engine.stats().draft_forwards > 20);
    fixture
        .engine
        .flush_cache()
        .wait_blocking()
        .unwrap()
        .unwrap();
    let draft = fixture.engine.stats().draft_kv;
    assert_eq!((draft.total, draft.free), (512, 512));
}

#[test]
fn an_engine_without_the_right_draft_model_does_not_start() {
    let build = || {
        Ok(FakeModel {
            samples_on_device: false,
            ..FakeModel::new(limits(64), 0)
        })
    };
    let missing = Engine::spawn(config(4, true), build).unwrap_err();
    assert!(missing.to_string().contains("draft model"), "{missing}");
    let other: BuildDraftModel = Box::new(|_| {
        let limits = ExecutorLimits {
            vocab_size: 77,
            ..limits(64)
        };
        Ok(Box::new(FakeModel::new(limits, 0)))
    });
    let error = Engine::spawn_with_draft_model(config(4, true), build, Some(other));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("77") && error.contains("101"), "{error}");
    // Nothing is drafted, so no draft model is made.
    let never: BuildDraftModel = Box::new(|_| unreachable!("the executor samples"));
    let on_device = || Ok(FakeModel::new(limits(64), 0));
    let engine = Engine::spawn_with_draft_model(config(4, true), on_device, Some(never)).unwrap();
    assert_eq!(engine.speculation(), None);
}
