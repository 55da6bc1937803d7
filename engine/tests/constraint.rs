//! Outputs that follow a grammar, with and without jump-forward, alone and in a crowd.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Answer, Fixture, VOCAB, answer, prompt, request};
use hearth_engine::constraint::{Constrain, Constraint, Grammar, Mask};
use hearth_engine::{EngineConfig, FinishReason, Request, SamplingParams};

/// One set of tokens for each place; whole after the last.
#[derive(Clone, Debug)]
struct Places {
    sets: Vec<Vec<u32>>,
    /// At this place the mask takes this long, or panics.
    slow: Option<(usize, Duration)>,
    panics: Option<usize>,
    at: usize,
}

impl Places {
    fn new(sets: &[&[u32]]) -> Self {
        Self {
            sets: sets.iter().map(|set| set.to_vec()).collect(),
            slow: None,
            panics: None,
            at: 0,
        }
    }

    /// `free` places of ten tokens each, `fixed` places of one each, and again.
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
    fn mask(&mut self) -> Result<Mask, String> {
        if let Some((place, time)) = self.slow
            && place == self.at
        {
            std::thread::sleep(time);
        }
        assert_ne!(self.panics, Some(self.at), "as it was told to");
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
fn the_output_follows_the_grammar_and_ends_with_it() {
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
        // With and without a beginning that is forced.
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
        assert_eq!(seen[0].1, 20);
        assert_eq!(seen[1].1, 8);
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
        // A whole output is one, also with the last token that it may have.
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
fn an_output_without_a_choice_needs_one_step_and_is_cached_like_a_prompt() {
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
    // What was forced is in the tree as ordinary tokens.
    let answer = run(&fixture, request(&[1, 2, 5, 7, 8, 9], 1));
    assert_eq!(answer.cached_tokens, 5);
    fixture.assert_idle_and_conserved();
}

#[test]
fn preemption_in_the_middle_of_a_jump_loses_nothing() {
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

#[test]
fn penalties_and_logprobs_see_forced_tokens() {
    let places = Places::new(&[&[5], &[5, 6], &[6]]);
    let fixture = Fixture::new(EngineConfig::default(), 512);
    let with = |presence_penalty| {
        let mut request = constrained(&[1], 50, &places, true);
        request.params = SamplingParams {
            presence_penalty,
            logprobs: Some(2),
            ..request.params
        };
        let mut generation = fixture.engine.submit(request).unwrap();
        let (mut tokens, mut forced) = (Vec::new(), Vec::new());
        while let Some(event) = generation.next_blocking() {
            match event {
                hearth_engine::Event::Token(token) => tokens.push(token),
                hearth_engine::Event::Forced(list) => forced.extend(list),
                _ => {}
            }
        }
        (tokens, forced)
    };
    let (down, forced) = with(2.0);
    let (up, _) = with(-2.0);
    // The model's own difference between the two is less than what the penalty adds.
    let spread = |tokens: &[hearth_engine::TokenEvent]| tokens[0].id;
    assert!(
        spread(&down) == 6 || spread(&up) == 5,
        "the forced 5 was not counted"
    );
    let logprob = down[0].logprob.as_ref().unwrap();
    let total: f32 = logprob.top.iter().map(|(_, l)| l.exp()).sum();
    assert!(
        (total - 1.0).abs() < 1e-4,
        "only what the mask allows has a probability"
    );
    assert_eq!(forced.len(), 2);
    for token in forced {
        let logprob = token.logprob.unwrap();
        assert_eq!((logprob.logprob, logprob.top), (0.0, vec![(token.id, 0.0)]));
    }
}

#[test]
fn a_grammar_that_panics_or_hangs_ends_its_request_alone() {
    let mut panics = Places::alternating(1, 1, 5);
    panics.panics = Some(4);
    let mut hangs = Places::alternating(1, 1, 5);
    hangs.slow = Some((4, Duration::from_secs(3)));
    let fine = Places::alternating(1, 1, 5);
    let fixture = Fixture::new(EngineConfig::default(), 512);
    let all = [&panics, &hangs, &fine].map(|places| {
        let request = constrained(&[1, 2], 50, places, true);
        fixture.engine.submit(request).unwrap()
    });
    let [panicked, hung, went_on] = all.map(answer);
    assert!(panicked.end.unwrap_err().contains("panicked"));
    assert!(hung.end.unwrap_err().contains("took longer than"));
    assert_eq!(went_on.end.unwrap().0, WHOLE);
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
