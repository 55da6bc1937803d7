//! Which requests share a step, and which tokens are computed only once.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Fixture, answer, expected, greedy, prompt, request};
use hearth_engine::{EngineConfig, Event, Request, SamplingParams};

fn config() -> EngineConfig {
    EngineConfig::default()
}

#[test]
fn of_a_cached_prompt_only_the_last_token_is_computed() {
    let fixture = Fixture::new(config(), 512);
    assert_eq!(fixture.run(&prompt(1, 50), 4).cached_tokens, 0);
    let again = fixture.run(&prompt(1, 50), 4);
    assert_eq!(again.cached_tokens, 49);
    assert_eq!(again.end.unwrap().1.cached_tokens, 49);
    let stats = fixture.engine.stats();
    assert_eq!((stats.prompt_tokens, stats.cached_tokens), (100, 49));
    assert_eq!(stats.computed_tokens, 50 + 3 + 1 + 3);
}

#[test]
fn a_conversation_reuses_its_earlier_answers() {
    let fixture = Fixture::new(config(), 512);
    let mut conversation = prompt(1, 20);
    for round in 0..5 {
        let answer = fixture.run(&conversation, 10);
        // The last sampled token was never computed.
        let known = if round == 0 {
            0
        } else {
            conversation.len() - 5 - 1
        };
        assert_eq!(answer.cached_tokens, known);
        conversation.extend(answer.tokens);
        conversation.extend(prompt(round, 5));
    }
}

#[test]
fn running_requests_share_a_prompt_before_either_is_done() {
    let (fixture, permits) = Fixture::gated(config(), 512);
    let first = fixture.submit(&prompt(1, 40), 60);
    fixture.wait_until("it runs", |f| f.engine.stats().running == 1);
    let second = fixture.submit(&[prompt(1, 40), prompt(2, 4)].concat(), 60);
    for _ in 0..4 {
        permits.send(()).unwrap();
    }
    fixture.wait_until("both run", |f| f.engine.stats().running == 2);
    let kv = fixture.engine.stats().kv;
    assert!(kv.is_conserved() && kv.protected >= 40, "{kv:?}");
    drop(permits);
    assert_eq!(answer(second).cached_tokens, 40);
    assert_eq!(answer(first).tokens, expected(&prompt(1, 40), 60));
}

#[test]
fn namespaces_share_nothing() {
    let fixture = Fixture::new(config(), 512);
    let run = |namespace: Option<&str>| {
        let namespace = namespace.map(str::to_owned);
        let request = Request {
            namespace,
            ..request(&prompt(1, 30), 5)
        };
        let answer = answer(fixture.engine.submit(request).unwrap());
        assert_eq!(answer.tokens, expected(&prompt(1, 30), 5));
        answer.cached_tokens
    };
    assert_eq!((run(None), run(Some("a")), run(Some("b"))), (0, 0, 0));
    assert_eq!((run(None), run(Some("a")), run(Some("b"))), (29, 29, 29));
}

#[test]
fn several_prompts_and_decode_rows_share_a_step() {
    let bounds = EngineConfig {
        max_batch_tokens: 64,
        prefill_chunk: 16,
        ..config()
    };
    let (fixture, permits) = Fixture::gated(bounds, 4096);
    let decoding = fixture.submit(&prompt(1, 4), 100);
    fixture.wait_until("it runs", |f| f.engine.stats().running == 1);
    let prompts: Vec<_> = (2..5).map(|seed| prompt(seed, 200)).collect();
    let long: Vec<_> = prompts.iter().map(|p| fixture.submit(p, 5)).collect();
    drop(permits);
    for (prompt, generation) in prompts.iter().zip(long) {
        assert_eq!(answer(generation).tokens, expected(prompt, 5));
    }
    assert_eq!(answer(decoding).tokens, expected(&prompt(1, 4), 100));
    let steps = fixture.steps();
    assert!(
        steps
            .iter()
            .any(|step| step.prefills == 3 && step.sequences == 4),
        "{steps:?}"
    );
    assert!(steps.iter().all(|step| step.tokens <= 64), "{steps:?}");
    assert!(
        steps.iter().any(|step| step.tokens > 60),
        "the budget is used"
    );
}

#[test]
fn a_short_prompt_is_not_delayed_by_a_long_one() {
    let bounds = EngineConfig {
        max_batch_tokens: 32,
        prefill_chunk: 16,
        ..config()
    };
    let (fixture, permits) = Fixture::gated(bounds, 4096);
    let long = fixture.submit(&prompt(1, 480), 1);
    fixture.wait_until("it runs", |f| f.engine.stats().running == 1);
    let short = fixture.submit(&prompt(2, 10), 2);
    // The step that was held back, the step of the short prompt, and the step of its second token.
    for _ in 0..3 {
        permits.send(()).unwrap();
    }
    fixture.wait_until("the short one is done", |f| f.engine.stats().finished == 1);
    assert_eq!(answer(short).tokens, expected(&prompt(2, 10), 2));
    drop(permits);
    answer(long);
}

#[test]
fn prompt_logprobs_are_the_same_in_chunks_of_any_size_and_ignore_the_cache() {
    let collect = |fixture: &Fixture| {
        let params = SamplingParams {
            prompt_logprobs: Some(2),
            ..greedy(2)
        };
        let request = Request {
            params,
            ..request(&prompt(1, 40), 2)
        };
        let mut generation = fixture.engine.submit(request).unwrap();
        let mut found = None;
        while let Some(event) = generation.next_blocking() {
            if let Event::PromptLogprobs(logprobs) = event {
                assert!(found.replace(logprobs).is_none(), "they are sent once");
            }
        }
        found.unwrap()
    };
    let whole = Fixture::new(config(), 512);
    let first = collect(&whole);
    assert_eq!(first.len(), 40);
    assert!(first[0].is_none());
    for (token, logprob) in prompt(1, 40).into_iter().zip(&first).skip(1) {
        let logprob = logprob.as_ref().unwrap();
        assert_eq!((logprob.token, logprob.top.len()), (token, 2));
        assert!(logprob.logprob < 0.0);
    }
    assert_eq!(collect(&whole), first, "with the prompt cached");
    let chunks = EngineConfig {
        max_batch_tokens: 7,
        prefill_chunk: 7,
        ..config()
    };
    assert_eq!(collect(&Fixture::new(chunks, 512)), first);
}

#[test]
fn prompt_logprobs_of_the_end_reuse_the_cached_beginning() {
    let fixture = Fixture::new(config(), 512);
    let collect = |from: usize| {
        let params = SamplingParams {
            prompt_logprobs: Some(1),
            prompt_logprobs_from: from,
            ..greedy(0)
        };
        let request = Request {
            params,
            ..request(&prompt(1, 40), 0)
        };
        let mut generation = fixture.engine.submit(request).unwrap();
        let (mut found, mut cached) = (None, 0);
        while let Some(event) = generation.next_blocking() {
            match event {
                Event::Started { cached_tokens, .. } => cached = cached_tokens,
                Event::PromptLogprobs(logprobs) => found = Some(logprobs),
                _ => {}
            }
        }
        (found.unwrap(), cached)
    };
    let (all, cached) = collect(0);
    assert_eq!(cached, 0);
    for from in [1, 30, 38, 39] {
        let (tail, cached) = collect(from);
        assert_eq!(tail.len(), 40);
        assert_eq!(tail[from + 1..], all[from + 1..], "from {from}");
        assert!(tail[..=from].iter().all(Option::is_none), "from {from}");
        assert_eq!(cached, from, "the tokens before are not computed again");
    }
    // Beyond the prompt there is nothing to score.
    assert!(collect(99).0.iter().all(Option::is_none));
}
