//! Outputs that match a grammar, with and without jump-forward, alone and beside other requests.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{Answer, Fixture, VOCAB, answer, prompt, request};
use hearth_engine::constraint::{Constrain, Constraint, Grammar};
use hearth_engine::logprobs::TokenLogprobs;
use hearth_engine::{EngineConfig, Event, FinishReason, Request};
use hearth_forward::TokenMask;

/// Allows one set of tokens for each position. The output is complete after the last one.
#[derive(Clone, Debug)]
struct Places {
    sets: Vec<Vec<u32>>,
    at: usize,
}

impl Places {
    fn new(sets: &[&[u32]]) -> Self {
        Self {
            sets: sets.iter().map(|set| set.to_vec()).collect(),
            at: 0,
        }
    }

    /// `free` positions of ten tokens each and then `fixed` positions of one each, repeated.
    fn alternating(free: usize, fixed: usize, times: usize) -> Self {
        let ten = |seed: usize| (0..10).map(|i| (seed * 7 + i) as u32 % 90).collect();
        let round = |time: usize| -> Vec<Vec<u32>> {
            let free = (0..free).map(|i| ten(time * 3 + i));
            let fixed = (0..fixed).map(|i| vec![(time * 5 + i) as u32 % 90]);
            free.chain(fixed).collect()
        };
        Self {
            sets: (0..times).flat_map(round).collect(),
            ..Self::new(&[])
        }
    }

    fn allows(&self, output: &[u32]) -> bool {
        let fits = output
            .iter()
            .zip(&self.sets)
            .all(|(t, set)| set.contains(t));
        fits && output.len() <= self.sets.len()
    }
}

impl Grammar for Places {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

impl Constraint for Places {
    fn mask(&mut self) -> Result<TokenMask, String> {
        let mut mask = vec![0; VOCAB.div_ceil(32)];
        for token in &self.sets[self.at] {
            mask[*token as usize / 32] |= 1 << (token % 32);
        }
        Ok(mask.into())
    }

    fn consume(&mut self, token: u32) -> Result<(), String> {
        if !self.sets[self.at].contains(&token) {
            return Err(format!("{token} is not allowed at {}", self.at));
        }
        self.at += 1;
        Ok(())
    }

    fn forced(&mut self, limit: usize) -> Vec<u32> {
        let rest = self.sets[self.at..].iter().take(limit);
        rest.map_while(|set| <[u32; 1]>::try_from(set.as_slice()).ok())
            .flatten()
            .collect()
    }

    fn is_complete(&self) -> bool {
        self.at == self.sets.len()
    }

    fn canceller(&self) -> Box<dyn Fn() + Send> {
        Box::new(|| {})
    }
}

fn constrained(prompt: &[u32], max_tokens: usize, places: &Places, jump_forward: bool) -> Request {
    Request {
        constraint: Some(Constrain {
            grammar: Arc::new(places.clone()),
            jump_forward,
        }),
        ..request(prompt, max_tokens)
    }
}

fn run(fixture: &Fixture, request: Request) -> Answer {
    answer(fixture.engine.submit(request).unwrap())
}

const WHOLE: FinishReason = FinishReason::Stop { token: None };

#[test]
fn the_output_matches_the_grammar_and_ends_with_it() {
    let fixture = Fixture::new(EngineConfig::default(), 512);
    let places = Places::alternating(2, 3, 4);
    let answer = run(&fixture, constrained(&[1, 2, 3], 100, &places, false));
    assert!(places.allows(&answer.tokens), "{:?}", answer.tokens);
    assert_eq!(answer.tokens.len(), 20);
    let (reason, usage) = answer.end.unwrap();
    assert_eq!((reason, usage.completion_tokens), (WHOLE, 20));
    assert_eq!(fixture.engine.stats().forced_tokens, 0);
    fixture.assert_idle_and_conserved();
}

#[test]
fn jumping_forward_gives_the_same_tokens_in_fewer_steps() {
    for first in [0, 2] {
        let mut places = Places::alternating(2, 3, 4);
        // With and without a forced beginning.
        places.sets.rotate_left(first);
        let mut seen = Vec::new();
        for jump in [false, true] {
            let fixture = Fixture::new(EngineConfig::default(), 512);
            let answer = run(&fixture, constrained(&[1, 2, 3], 100, &places, jump));
            let (reason, usage) = answer.end.unwrap();
            assert_eq!((reason, usage.prompt_tokens), (WHOLE, 3));
            assert_eq!(usage.completion_tokens, answer.tokens.len());
            seen.push((answer.tokens, fixture.steps().len()));
            fixture.assert_idle_and_conserved();
            let stats = fixture.engine.stats();
            assert_eq!(stats.generated_tokens + stats.forced_tokens, 20);
        }
        assert_eq!(seen[0].0, seen[1].0);
        // A step does not wait for a grammar: forced tokens may come after a row that turns out to
        // be unnecessary, and so may the end.
        assert!((20..=21).contains(&seen[0].1), "{}", seen[0].1);
        assert!((8..=12).contains(&seen[1].1), "{}", seen[1].1);
    }
}

#[test]
fn forced_tokens_keep_to_max_tokens_and_to_stop_tokens() {
    let fixture = Fixture::new(EngineConfig::default(), 512);
    let places = Places::new(&[&[5, 6], &[7], &[8], &[9], &[10, 11]]);
    for most in 1..=5 {
        let answer = run(&fixture, constrained(&[1], most, &places, true));
        let (reason, usage) = answer.end.unwrap();
        assert_eq!((answer.tokens.len(), usage.completion_tokens), (most, most));
        // A complete output finishes as complete even with the last token that it may have.
        let expected = if most == 5 {
            WHOLE
        } else {
            FinishReason::Length
        };
        assert_eq!(reason, expected, "{most}");
    }
    let mut request = constrained(&[1], 50, &places, true);
    request.params.stop_token_ids = vec![8];
    let answer = run(&fixture, request);
    assert_eq!(answer.tokens.len(), 2);
    let (reason, usage) = answer.end.unwrap();
    assert_eq!(reason, FinishReason::Stop { token: Some(8) });
    assert_eq!(usage.completion_tokens, 3);
    fixture.assert_idle_and_conserved();
}

#[test]
fn a_fully_forced_output_needs_one_step_and_is_cached_like_a_prompt() {
    let fixture = Fixture::new(EngineConfig::default(), 512);
    let places = Places::new(&[&[5], &[7], &[8]]);
    for round in 0..2 {
        let answer = run(&fixture, constrained(&[1, 2], 50, &places, true));
        assert_eq!(answer.tokens, [5, 7, 8]);
        assert_eq!(answer.end.unwrap().0, WHOLE);
        assert_eq!(answer.cached_tokens, round * 2, "no more than the prompt");
        assert_eq!(fixture.steps().len(), round + 1);
    }
    let stats = fixture.engine.stats();
    assert_eq!((stats.prompt_tokens, stats.cached_tokens), (4, 2));
    // Forced tokens are in the tree like ordinary tokens.
    let answer = run(&fixture, request(&[1, 2, 5, 7, 8, 9], 1));
    assert_eq!(answer.cached_tokens, 5);
    fixture.assert_idle_and_conserved();
}

#[test]
fn preemption_between_forced_tokens_loses_nothing() {
    let places = Places::alternating(1, 4, 6);
    let alone = Fixture::new(EngineConfig::default(), 512);
    let requests: Vec<Request> = (0..6)
        .map(|i| constrained(&prompt(i, 5 + i as usize), 100, &places, true))
        .collect();
    let expected: Vec<Vec<u32>> = requests
        .iter()
        .map(|r| run(&alone, r.clone()).tokens)
        .collect();
    for (every, slots) in [(Some(2), 512), (Some(3), 512), (None, 50)] {
        let config = EngineConfig {
            retract_every: every,
            max_batch_tokens: 24,
            prefill_chunk: 4,
            ..EngineConfig::default()
        };
        let fixture = Fixture::new(config, slots);
        let running: Vec<_> = requests
            .iter()
            .map(|r| fixture.engine.submit(r.clone()).unwrap())
            .collect();
        let given: Vec<Vec<u32>> = running.into_iter().map(|g| answer(g).tokens).collect();
        assert_eq!(given, expected);
        fixture.assert_idle_and_conserved();
        assert!(every.is_none() || fixture.engine.stats().preemptions > 0);
    }
}

/// The tokens of a request with their log-probabilities.
fn scored(fixture: &Fixture, mut request: Request) -> Vec<TokenLogprobs> {
    request.params.logprobs = Some(2);
    let mut generation = fixture.engine.submit(request).unwrap();
    let mut scored = Vec::new();
    while let Some(event) = generation.next_blocking() {
        let tokens = match event {
            Event::Token(token) => vec![token],
            Event::Forced(tokens) => tokens,
            _ => Vec::new(),
        };
        scored.extend(tokens.into_iter().map(|token| {
            let logprob = token.logprob.unwrap();
            assert_eq!(token.id, logprob.token);
            logprob
        }));
    }
    scored
}

#[test]
fn penalties_see_forced_tokens() {
    let places = Places::new(&[&[5], &[5, 6], &[6]]);
    let fixture = Fixture::new(EngineConfig::default(), 512);
    let second = |presence_penalty| {
        let mut request = constrained(&[1], 50, &places, true);
        request.params.presence_penalty = presence_penalty;
        run(&fixture, request).tokens[1]
    };
    // The difference between the two logits is less than the penalty.
    assert!(
        second(2.0) == 6 || second(-2.0) == 5,
        "the forced 5 was not counted"
    );
}

#[test]
fn forced_tokens_have_the_log_probabilities_that_the_model_gives_them() {
    let text = [1, 2, 3];
    for first in 0..5 {
        let mut places = Places::alternating(2, 3, 4);
        places.sets.rotate_left(first);
        // All rows at once, and a few at a time with preemptions.
        for (max_batch_tokens, retract_every) in [(2048, None), (4, Some(3))] {
            let config = EngineConfig {
                max_batch_tokens,
                retract_every,
                ..EngineConfig::default()
            };
            let fixture = Fixture::new(config, 512);
            let beside = fixture.submit(&[7, 8], 60);
            let jumped = scored(&fixture, constrained(&text, 100, &places, true));
            let sampled = scored(&fixture, constrained(&text, 100, &places, false));
            assert_eq!(jumped.len(), 20);
            assert_eq!(jumped, sampled, "jumping changes no number");
            let whole: Vec<u32> = text
                .into_iter()
                .chain(jumped.iter().map(|t| t.token))
                .collect();
            let mut request = request(&whole, 0);
            request.params.prompt_logprobs = Some(2);
            let mut scoring = fixture.engine.submit(request).unwrap();
            while let Some(event) = scoring.next_blocking() {
                if let Event::PromptLogprobs(prompt) = event {
                    let prompt: Vec<_> = prompt.into_iter().skip(3).map(Option::unwrap).collect();
                    for ((place, prompt), token) in places.sets.iter().zip(prompt).zip(&jumped) {
                        let is_free = place.len() > 1;
                        let total: f32 = token.top.iter().map(|(_, l)| l.exp()).sum();
                        assert!(is_free || prompt == *token, "as in a prompt");
                        assert!(
                            !is_free || token.logprob > prompt.logprob,
                            "of ten, not of all"
                        );
                        assert!(is_free || token.logprob < 0.0 && total < 0.9);
                    }
                }
            }
            answer(beside);
            fixture.assert_idle_and_conserved();
        }
    }
}

#[test]
fn an_output_that_ends_with_forced_tokens_has_all_of_its_log_probabilities() {
    let fixture = Fixture::new(EngineConfig::default(), 512);
    let places = Places::new(&[&[5], &[7], &[8], &[9]]);
    for (most, stop, expected) in [
        (50, None, 4),
        (3, None, 3),
        (50, Some(8), 2),
        (50, Some(5), 0),
    ] {
        let mut request = constrained(&[1, 2], most, &places, true);
        request.params.stop_token_ids = stop.into_iter().collect();
        // Once computed and once from the cache.
        let first = scored(&fixture, request.clone());
        let second = scored(&fixture, request.clone());
        assert_eq!(first.len(), expected);
        assert_eq!(first, second);
        // The log-probabilities of the prompt come before, from the same forward pass.
        request.params.prompt_logprobs = Some(0);
        assert_eq!(scored(&fixture, request), first);
    }
    fixture.assert_idle_and_conserved();
}

#[test]
fn nothing_is_constrained_where_nothing_is_generated() {
    let fixture = Fixture::new(EngineConfig::default(), 512);
    let places = Places::new(&[&[5], &[7]]);
    let answer = run(&fixture, constrained(&[1, 2], 0, &places, true));
    assert!(answer.tokens.is_empty());
    assert_eq!(answer.end.unwrap().0, FinishReason::Length);
}
