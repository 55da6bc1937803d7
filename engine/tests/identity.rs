//! The output of a request depends on the request only: not on the cache, on other requests in the
//! batch, on the chunks of its prompt, or on how often it was preempted.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Fixture, POLICIES, answer, expected, greedy, prompt, request};
use hearth_engine::{EngineConfig, FinishReason, Request, SamplingParams};

fn config() -> EngineConfig {
    EngineConfig::default()
}

/// Prompts that share prefixes of many lengths.
fn family(count: u64) -> Vec<Vec<u32>> {
    let shared = prompt(1000, 80);
    (0..count)
        .map(|i| {
            let common = (i as usize * 37) % 80;
            [&shared[..common], &prompt(i, 5 + (i as usize * 11) % 40)].concat()
        })
        .collect()
}

/// Runs all prompts at once and checks each output against the reference.
fn assert_all_as_expected(fixture: &Fixture, prompts: &[Vec<u32>], max_tokens: usize) {
    let generations: Vec<_> = prompts
        .iter()
        .map(|p| fixture.submit(p, max_tokens))
        .collect();
    for (prompt, generation) in prompts.iter().zip(generations) {
        let answer = answer(generation);
        assert_eq!(answer.tokens, expected(prompt, max_tokens), "{prompt:?}");
        let (reason, usage) = answer.end.unwrap();
        assert_eq!(reason, FinishReason::Length);
        assert_eq!(
            (usage.prompt_tokens, usage.completion_tokens),
            (prompt.len(), max_tokens)
        );
    }
    fixture.assert_idle_and_conserved();
}

#[test]
fn a_prompt_gives_the_same_output_with_and_without_the_cache() {
    for prefix_cache in [true, false] {
        let fixture = Fixture::new(
            EngineConfig {
                prefix_cache,
                ..config()
            },
            400,
        );
        for prompt in family(20).iter().chain(&family(20)) {
            let answer = fixture.run(prompt, 12);
            assert_eq!(answer.tokens, expected(prompt, 12));
        }
        let stats = fixture.engine.stats();
        assert_eq!(stats.cached_tokens > 0, prefix_cache);
        assert_eq!(stats.kv.cached() > 0, prefix_cache);
        fixture.assert_idle_and_conserved();
    }
}

#[test]
fn a_prompt_gives_the_same_output_alone_and_in_a_batch_of_16() {
    for prefix_cache in [true, false] {
        let config = EngineConfig {
            prefix_cache,
            ..config()
        };
        let (fixture, permits) = Fixture::gated(config, 4096);
        // The first forward pass is held back until all requests have arrived.
        let first = fixture.submit(&[5], 1);
        fixture.wait_until("running", |f| f.engine.stats().running == 1);
        let prompts = family(16);
        let release = std::thread::scope(|scope| {
            let run = scope.spawn(|| assert_all_as_expected(&fixture, &prompts, 20));
            fixture.wait_until("all are there", |f| {
                f.engine.stats().waiting + f.engine.stats().running == 17
            });
            drop(permits);
            run.join()
        });
        release.unwrap();
        assert_eq!(answer(first).tokens, expected(&[5], 1));
        assert!(fixture.steps().iter().any(|step| step.sequences == 16));
    }
}

#[test]
fn a_prompt_gives_the_same_output_in_chunks_of_any_size() {
    for (max_batch_tokens, prefill_chunk) in [(2048, 2048), (64, 16), (7, 3), (16, 1), (1, 1)] {
        let config = EngineConfig {
            max_batch_tokens,
            prefill_chunk,
            ..config()
        };
        let fixture = Fixture::new(config, 4096);
        assert_all_as_expected(&fixture, &family(12), 10);
        let most = fixture
            .steps()
            .iter()
            .map(|step| step.tokens)
            .max()
            .unwrap();
        assert!(
            most <= max_batch_tokens,
            "{most} tokens in a step of {max_batch_tokens}"
        );
    }
}

#[test]
fn a_preempted_request_continues_where_it_stopped() {
    for prefix_cache in [true, false] {
        let config = EngineConfig {
            prefix_cache,
            ..config()
        };
        // All prompts fit, all outputs do not, and the estimate of 70 % admits more requests than can
        // finish.
        let fixture = Fixture::new(config, 160);
        let prompts: Vec<_> = (0..12).map(|seed| prompt(seed, 8)).collect();
        assert_all_as_expected(&fixture, &prompts, 100);
        let stats = fixture.engine.stats();
        assert!(
            stats.preemptions > 0,
            "the test forces preemptions: {stats:?}"
        );
        assert_eq!((stats.finished, stats.failed, stats.cancelled), (12, 0, 0));
    }
}

#[test]
fn two_hundred_prompts_give_the_same_outputs_under_every_policy_page_size_and_retraction() {
    let prompts = family(200);
    let outputs: Vec<_> = prompts.iter().map(|p| expected(p, 8)).collect();
    let check = |config: EngineConfig| {
        // A third of the slots that all 64 together would need.
        let fixture = Fixture::new(config.clone(), 2048);
        let requests = prompts.iter().enumerate().map(|(i, prompt)| Request {
            priority: i as i32 % 3,
            ..request(prompt, 8)
        });
        let answers = fixture.run_at_once(requests);
        for (answer, output) in answers.iter().zip(&outputs) {
            assert_eq!(answer.tokens, *output, "{config:?}");
        }
        fixture.assert_idle_and_conserved();
        let stats = fixture.engine.stats();
        assert_eq!(stats.finished, 200);
        if config.retract_every.is_some() {
            assert!(stats.preemptions > 200, "{config:?} {stats:?}");
        }
        assert_eq!(stats.cached_tokens > 0, config.prefix_cache, "{config:?}");
    };
    for schedule in POLICIES {
        for page_size in [1, 16, 64] {
            for (prefix_cache, retract_every) in [
                (true, None),
                (false, None),
                (true, Some(3)),
                (false, Some(3)),
            ] {
                check(EngineConfig {
                    schedule,
                    page_size,
                    prefix_cache,
                    retract_every,
                    max_running: 64,
                    max_batch_tokens: 512,
                    prefill_chunk: 128,
                    ..config()
                });
            }
        }
    }
}

#[test]
fn a_pool_for_exactly_one_request_serves_any_number_of_them() {
    let fixture = Fixture::new(config(), 40);
    let prompts: Vec<_> = (0..8).map(|seed| prompt(seed, 20)).collect();
    assert_all_as_expected(&fixture, &prompts, 20);
}

#[test]
fn a_seeded_request_samples_the_same_tokens_in_any_batch() {
    let params = SamplingParams {
        temperature: 1.0,
        seed: Some(42),
        ..greedy(30)
    };
    let request = |seed| Request {
        params: params.clone(),
        ..request(&prompt(seed, 10), 30)
    };
    let alone = Fixture::new(config(), 4096);
    let alone = answer(alone.engine.submit(request(3)).unwrap()).tokens;
    assert_ne!(alone, expected(&prompt(3, 10), 30), "it is not greedy");
    // Now with a small pool, small chunks, other requests and preemptions.
    let crowd = EngineConfig {
        max_batch_tokens: 16,
        prefill_chunk: 4,
        ..config()
    };
    let crowded = Fixture::new(crowd, 90);
    let mut generations = Vec::new();
    for seed in 0..8 {
        generations.push(crowded.engine.submit(request(seed)).unwrap());
    }
    assert_eq!(answer(generations.remove(3)).tokens, alone);
    drop(generations);
    crowded.assert_idle_and_conserved();
}
