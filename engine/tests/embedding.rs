//! An embedding depends on the prompt only: not on its chunks, on the cache, or on how often its
//! request was preempted.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Fixture, HIDDEN, answer, expected, expected_hidden, prompt, request};
use hearth_engine::{EngineConfig, FinishReason, Pooling, Request};

fn embed(prompt: &[u32], pooling: Pooling) -> Request {
    Request {
        pooling: Some(pooling),
        ..request(prompt, 5)
    }
}

fn reference(prompt: &[u32], pooling: Pooling) -> Vec<f32> {
    let states = expected_hidden(prompt);
    match pooling {
        Pooling::Last => states.last().unwrap().clone(),
        Pooling::Mean => {
            let mean = |i: usize| {
                let sum: f64 = states.iter().map(|state| f64::from(state[i])).sum();
                (sum / states.len() as f64) as f32
            };
            (0..HIDDEN).map(mean).collect()
        }
    }
}

/// Embeds prompts that share prefixes, with both kinds of pooling, beside requests that generate.
fn assert_embeddings(fixture: &Fixture) {
    let shared = prompt(7, 60);
    let prompts: Vec<Vec<u32>> = (0..12)
        .map(|i| [&shared[..(i * 17) % 60], &prompt(i as u64 + 50, 1 + i * 9)].concat())
        .collect();
    for _ in 0..2 {
        let mut submitted = Vec::new();
        for prompt in &prompts {
            for pooling in [Pooling::Last, Pooling::Mean] {
                let generation = fixture.engine.submit(embed(prompt, pooling)).unwrap();
                submitted.push((prompt, Some(pooling), generation));
            }
            submitted.push((prompt, None, fixture.submit(prompt, 9)));
        }
        for (prompt, pooling, generation) in submitted {
            let answer = answer(generation);
            let (reason, usage) = answer.end.unwrap();
            assert_eq!(reason, FinishReason::Length);
            match pooling {
                Some(pooling) => {
                    assert_eq!(answer.embedding, Some(reference(prompt, pooling)));
                    assert_eq!((answer.tokens.len(), usage.completion_tokens), (0, 0));
                }
                None => {
                    assert_eq!(answer.embedding, None);
                    assert_eq!(answer.tokens, expected(prompt, 9));
                }
            }
        }
    }
    fixture.assert_idle_and_conserved();
}

#[test]
fn an_embedding_is_the_same_for_chunks_of_any_size() {
    for (max_batch_tokens, prefill_chunk) in [(2048, 512), (64, 7), (3, 1)] {
        let config = EngineConfig {
            max_batch_tokens,
            prefill_chunk,
            max_running: 3,
            ..EngineConfig::default()
        };
        assert_embeddings(&Fixture::new(config, 4000));
    }
}

#[test]
fn an_embedding_survives_the_preemption_of_its_request() {
    for page_size in [1, 16] {
        let config = EngineConfig {
            max_batch_tokens: 24,
            prefill_chunk: 5,
            retract_every: Some(3),
            page_size,
            ..EngineConfig::default()
        };
        let fixture = Fixture::new(config, 1200);
        assert_embeddings(&fixture);
        assert!(fixture.engine.stats().preemptions > 0);
    }
}

#[test]
fn the_last_state_needs_only_the_last_token_of_a_cached_prompt() {
    let fixture = Fixture::new(EngineConfig::default(), 400);
    let prompt = prompt(3, 100);
    for (pooling, cached) in [(Pooling::Last, 0), (Pooling::Last, 99), (Pooling::Mean, 0)] {
        let answer = answer(fixture.engine.submit(embed(&prompt, pooling)).unwrap());
        assert_eq!(answer.cached_tokens, cached, "{pooling:?}");
        assert_eq!(answer.embedding, Some(reference(&prompt, pooling)));
    }
    fixture.assert_idle_and_conserved();
}
