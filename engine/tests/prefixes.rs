//! Cached prefixes are read out of one engine and put into another. The fake model stores a hash of
//! the whole prefix in each slot, so a wrong slot or a wrong byte changes every token that follows.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use common::{Answer, Fixture, VOCAB, answer, expected, path, prompt, request};
use hearth_engine::{EngineConfig, PauseMode, Request, ShutdownOutcome, TransferError};

fn config(page_size: usize) -> EngineConfig {
    EngineConfig {
        prefill_chunk: 8,
        max_batch_tokens: 16,
        page_size,
        ..EngineConfig::default()
    }
}

fn run(fixture: &Fixture, namespace: &str, prompt: &[u32]) -> Answer {
    let request = Request {
        namespace: Some(namespace.to_owned()),
        ..request(prompt, 6)
    };
    answer(fixture.engine.submit(request).unwrap())
}

/// Copies everything that `from` has cached to `to`, edge after edge. Returns the number of tokens.
fn copy(from: &Fixture, to: &Fixture) -> u64 {
    let edges = from.engine.cached_prefixes().wait_blocking().unwrap();
    for (at, edge) in edges.iter().enumerate() {
        let (namespace, tokens) = (Arc::clone(&edge.namespace), path(&edges, at));
        let start = tokens.len() - edge.tokens.len();
        let read = from
            .engine
            .read_prefix(Arc::clone(&namespace), tokens.clone(), start);
        let bytes = read.wait_blocking().unwrap().unwrap();
        let restored = to.engine.restore_prefix(namespace, tokens, start, bytes);
        restored.unwrap().wait_blocking().unwrap().unwrap();
    }
    edges.iter().map(|edge| edge.tokens.len() as u64).sum()
}

#[test]
fn an_engine_goes_on_with_what_another_had_cached() {
    for page_size in [1, 4] {
        let first = Fixture::new(config(page_size), 800);
        let shared = prompt(1, 40);
        let mut prompts = Vec::new();
        for (namespace, seed) in [("a", 2), ("a", 3), ("b", 4)] {
            let prompt = [&shared[..], &prompt(seed, 30)].concat();
            run(&first, namespace, &prompt);
            prompts.push((namespace, prompt));
        }
        let second = Fixture::new(config(page_size), 800);
        let copied = copy(&first, &second);
        assert!(copied > 120);
        first.wait_until("saved", |first| first.engine.stats().saved_tokens == copied);
        second.wait_until("restored", |second| {
            second.engine.stats().restored_tokens == copied
        });
        second.assert_idle_and_conserved();
        for (place, (namespace, prompt)) in prompts.iter().enumerate() {
            let answer = run(&second, namespace, prompt);
            assert_eq!(answer.tokens, expected(prompt, 6));
            // At least one token is computed, and pages are whole.
            assert_eq!(
                answer.cached_tokens,
                (prompt.len() - 1) / page_size * page_size
            );
            assert_eq!(run(&second, &place.to_string(), prompt).cached_tokens, 0);
        }
        second.assert_idle_and_conserved();
        first.assert_idle_and_conserved();
        // A second copy finds everything there, and leaves no slot behind.
        copy(&first, &second);
        second.assert_idle_and_conserved();
    }
}

#[test]
fn prefixes_are_restored_while_requests_run_and_change_none() {
    let (first, second) = (Fixture::new(config(1), 400), Fixture::new(config(1), 800));
    for seed in 0..5 {
        run(&first, "a", &prompt(seed, 40));
    }
    let running: Vec<_> = (10..16)
        .map(|seed| second.submit(&prompt(seed, 20), 20))
        .collect();
    copy(&first, &second);
    for (seed, generation) in (10..16).zip(running) {
        assert_eq!(answer(generation).tokens, expected(&prompt(seed, 20), 20));
    }
    for seed in 0..5 {
        let prompt = prompt(seed, 40);
        assert_eq!(run(&second, "a", &prompt).tokens, expected(&prompt, 6));
    }
    second.assert_idle_and_conserved();
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_nothing_behind() {
    let fixture = Fixture::new(config(1), 60);
    let bytes = |tokens: usize| vec![0; tokens * fixture.engine.kv_token_bytes()];
    let restore = |tokens: Vec<u32>, from: usize, bytes| {
        fixture
            .engine
            .restore_prefix("a".into(), tokens, from, bytes)
    };
    let later = |tokens, from, bytes| {
        restore(tokens, from, bytes)
            .unwrap()
            .wait_blocking()
            .unwrap()
    };
    assert_eq!(
        later(prompt(1, 20), 10, bytes(10)),
        Err(TransferError::NotCached)
    );
    assert_eq!(
        later(prompt(1, 61), 0, bytes(61)),
        Err(TransferError::NoFreeSlots)
    );
    assert!(matches!(
        restore(prompt(1, 5), 6, bytes(0)),
        Err(TransferError::OutOfRange { .. })
    ));
    assert!(matches!(
        restore(prompt(1, 5), 0, bytes(4)),
        Err(TransferError::OutOfRange { .. })
    ));
    let strange = vec![VOCAB as u32; 5];
    assert!(matches!(
        restore(strange, 0, bytes(5)),
        Err(TransferError::Vocabulary)
    ));
    let read = fixture.engine.read_prefix("a".into(), prompt(1, 5), 0);
    assert_eq!(read.wait_blocking().unwrap(), Err(TransferError::NotCached));
    fixture.assert_idle_and_conserved();
    assert_eq!(later(prompt(1, 60), 0, bytes(60)), Ok(()));
    fixture.assert_idle_and_conserved();
}

#[test]
fn a_closed_engine_can_be_read_until_its_hold_is_dropped() {
    let fixture = Fixture::new(config(1), 100);
    let tokens = prompt(3, 30);
    let hold = fixture.engine.hold();
    let running = fixture.submit(&tokens, 20);
    fixture.engine.close(Duration::from_secs(60));
    assert!(fixture.engine.submit(request(&tokens, 1)).is_err());
    assert_eq!(answer(running).tokens, expected(&tokens, 20));
    let edges = fixture.engine.cached_prefixes().wait_blocking().unwrap();
    assert!((0..edges.len()).any(|at| path(&edges, at).starts_with(&tokens)));
    let read = fixture.engine.read_prefix("".into(), tokens, 0);
    assert!(read.wait_blocking().unwrap().is_ok());
    drop(hold);
    let outcome = fixture.engine.shutdown(Duration::ZERO);
    assert_eq!(outcome, ShutdownOutcome::Stopped);
}

#[test]
fn a_paused_engine_that_is_closed_answers_reads_that_came_before() {
    let fixture = Fixture::new(config(1), 100);
    let tokens = prompt(4, 30);
    run(&fixture, "a", &tokens);
    let hold = fixture.engine.hold();
    let pause = || fixture.engine.pause(PauseMode::InPlace);
    pause().wait_blocking().unwrap();
    let read = fixture.engine.read_prefix("a".into(), tokens, 0);
    // Commands are carried out in their order: the read waits for the engine to go on now.
    pause().wait_blocking().unwrap();
    fixture.engine.close(Duration::from_secs(60));
    let (sender, answered) = channel();
    thread::spawn(move || sender.send(read.wait_blocking()));
    let answer = answered.recv_timeout(Duration::from_secs(60));
    assert!(answer.expect("the read is answered").unwrap().is_ok());
    drop(hold);
    let outcome = fixture.engine.shutdown(Duration::ZERO);
    assert_eq!(outcome, ShutdownOutcome::Stopped);
}
