//! A pool that is too small for the requests, with a second pool in the host's memory.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::atomic::Ordering;

use common::{Answer, Fixture, POLICIES, answer, expected, prompt, request};
use hearth_engine::{EngineConfig, Event, HostWritePolicy, Request};
use hearth_forward::CopyDirection;

fn run(fixture: &Fixture, request: Request) -> Answer {
    answer(fixture.engine.submit(request).unwrap())
}

/// Conversations of several turns, the last of them repeated. Each shares its prefix with two others.
fn conversations() -> Vec<Vec<u32>> {
    let one = |turn: usize, client: u64| {
        let shared = prompt(client / 3, 60);
        [shared, prompt(100 + client, 20 + 15 * turn)].concat()
    };
    let turns = (0..3).flat_map(|turn| (0..6).map(move |client| one(turn, client)));
    turns.chain((0..6).map(|client| one(2, client))).collect()
}

#[test]
fn with_a_host_tier_outputs_are_the_same_and_less_is_computed() {
    for (index, schedule) in POLICIES.into_iter().enumerate() {
        for (page_size, retract_every) in [(1, None), (16, None), (4, Some(3))] {
            let config = EngineConfig {
                schedule,
                page_size,
                retract_every,
                host_writes: [
                    HostWritePolicy::WriteBack,
                    HostWritePolicy::WriteThrough,
                    HostWritePolicy::WriteThroughSelective,
                ][index % 3],
                // Under some policies, loads and prompts are divided into pieces.
                max_batch_tokens: if index % 2 == 0 { 2048 } else { 24 },
                ..EngineConfig::default()
            };
            let mut computed = Vec::new();
            for host_slots in [0, 4000] {
                let fixture = Fixture::with_host(config.clone(), 160, host_slots);
                for prompts in conversations().chunks(3) {
                    let requests = prompts.iter().map(|prompt| request(prompt, 6));
                    let answers = fixture.run_at_once(requests);
                    for (prompt, answer) in prompts.iter().zip(answers) {
                        assert_eq!(answer.tokens, expected(prompt, 6));
                    }
                }
                fixture.assert_idle_and_conserved();
                let stats = fixture.engine.stats();
                assert_eq!(stats.host.total, host_slots);
                assert_eq!(stats.loaded_tokens > 0, host_slots > 0);
                let copied = |direction| -> u64 {
                    let copies = fixture.copies.done.lock().unwrap();
                    let copies = copies.iter().filter(|copy| copy.direction == direction);
                    copies.map(|copy| copy.device.len() as u64).sum()
                };
                assert_eq!(copied(CopyDirection::ToHost), stats.demoted_tokens);
                assert_eq!(copied(CopyDirection::ToDevice), stats.loaded_tokens);
                computed.push(stats.computed_tokens);
            }
            assert!(computed[1] < computed[0], "{schedule:?}: {computed:?}");
        }
    }
}

#[test]
fn each_write_policy_copies_at_its_own_time() {
    let (first, second) = (prompt(1, 50), prompt(2, 50));
    let copies = |host_writes, first_three: u64, all: u64| {
        let config = EngineConfig {
            host_writes,
            ..EngineConfig::default()
        };
        let fixture = Fixture::with_host(config, 150, 1000);
        let copied = |expected| {
            fixture.assert_idle_and_conserved();
            // Tokens of the last step are copied when it is complete.
            fixture.wait_until("as many are copied", |f| {
                f.engine.stats().demoted_tokens == expected
            });
        };
        // One prompt twice, the other once. The device has room for both, and then for neither.
        for prompt in [&first, &first, &second] {
            run(&fixture, request(prompt, 1));
        }
        copied(first_three);
        run(&fixture, request(&prompt(3, 149), 1));
        copied(all);
    };
    copies(HostWritePolicy::WriteBack, 0, 100);
    copies(HostWritePolicy::WriteThrough, 100, 249);
    // All tokens of the first prompt except the last were found in the cache.
    copies(HostWritePolicy::WriteThroughSelective, 49, 49);
}

#[test]
fn tokens_from_the_host_count_as_cached() {
    let fixture = Fixture::with_host(EngineConfig::default(), 120, 500);
    let (first, second) = (prompt(1, 90), prompt(2, 100));
    for (prompt, cached) in [(&first, 0), (&second, 0), (&first, 89)] {
        assert_eq!(run(&fixture, request(prompt, 4)).cached_tokens, cached);
    }
    let stats = fixture.engine.stats();
    assert_eq!((stats.prompt_tokens, stats.cached_tokens), (280, 89));
    assert_eq!(stats.host_tokens, stats.loaded_tokens);
    assert!(stats.host_tokens >= 32, "{stats:?}");
    let flushed = fixture.engine.flush_cache().wait_blocking().unwrap();
    assert!(flushed.is_ok());
    assert_eq!(fixture.engine.stats().host.free, 500);
    assert_eq!(run(&fixture, request(&second, 4)).cached_tokens, 0);
    fixture.assert_idle_and_conserved();
}

#[test]
fn no_step_copies_more_than_four_times_the_tokens_that_it_may_compute() {
    let config = EngineConfig {
        max_batch_tokens: 16,
        ..EngineConfig::default()
    };
    let fixture = Fixture::with_host(config, 120, 1000);
    for round in 0..6 {
        let text = prompt(round % 2, 90);
        assert_eq!(run(&fixture, request(&text, 8)).tokens, expected(&text, 8));
    }
    let copies = fixture.copies.done.lock().unwrap();
    let longest = copies.iter().map(|copy| copy.device.len()).max();
    assert!(longest <= Some(64), "{longest:?}");
    assert!(
        copies
            .iter()
            .any(|copy| copy.direction == CopyDirection::ToDevice)
    );
}

/// Makes the device evict `text`, whose prefix stays in the host's memory.
fn evicted(fixture: &Fixture, text: &[u32]) {
    run(fixture, request(text, 2));
    // The other prompts are short, so that each step can copy all that it evicts.
    for other in 10..18 {
        run(fixture, request(&prompt(other, 25), 2));
    }
}

fn slow_copies() -> EngineConfig {
    EngineConfig {
        max_batch_tokens: 8,
        ..EngineConfig::default()
    }
}

#[test]
fn requests_decode_while_others_load() {
    let fixture = Fixture::with_host(slow_copies(), 200, 1000);
    let first = prompt(1, 150);
    evicted(&fixture, &first);
    let beside = fixture.submit(&[5, 6], 30);
    let loading = fixture.submit(&first, 4);
    assert_eq!(answer(loading).tokens, expected(&first, 4));
    assert_eq!(answer(beside).tokens, expected(&[5, 6], 30));
    let copies = fixture.copies.done.lock().unwrap();
    let loads = copies
        .iter()
        .filter(|copy| copy.direction == CopyDirection::ToDevice);
    assert!(loads.count() > 1);
    fixture.assert_idle_and_conserved();
}

#[test]
fn an_abort_during_a_load_loses_and_leaks_no_slots() {
    let (fixture, permits) = Fixture::gated_with_host(slow_copies(), 200, 1000);
    let first = prompt(1, 150);
    fixture.copies.gated.store(false, Ordering::SeqCst);
    evicted(&fixture, &first);
    fixture.copies.gated.store(true, Ordering::SeqCst);
    let mut loading = fixture.submit(&first, 4);
    assert!(matches!(
        loading.next_blocking(),
        Some(Event::Started { .. })
    ));
    permits.send(()).unwrap();
    fixture.wait_until("some is loaded", |f| f.engine.stats().loaded_tokens > 0);
    let loaded = fixture.engine.stats().loaded_tokens as usize;
    assert!(loaded < first.len() - 1, "not all");
    drop(loading);
    drop(permits);
    fixture.assert_idle_and_conserved();
    assert_eq!(
        run(&fixture, request(&first, 4)).tokens,
        expected(&first, 4)
    );
    fixture.assert_idle_and_conserved();
}

#[test]
fn failed_copies_end_the_requests_that_need_them_and_empty_the_host() {
    let fixture = Fixture::with_host(EngineConfig::default(), 220, 1000);
    let (first, second) = (prompt(1, 150), prompt(2, 200));
    run(&fixture, request(&first, 2));
    run(&fixture, request(&second, 2));
    let beside = fixture.submit(&[5, 6], 30);
    fixture.copies.fail.store(true, Ordering::SeqCst);
    let error = run(&fixture, request(&first, 4)).end.unwrap_err();
    assert!(error.contains("the bus is gone"), "{error}");
    assert_eq!(answer(beside).tokens, expected(&[5, 6], 30));
    fixture.wait_until("the host is empty", |f| {
        let host = f.engine.stats().host;
        host.free == host.total
    });
    // Demotions fail, too, which affects no request.
    assert_eq!(
        run(&fixture, request(&first, 4)).tokens,
        expected(&first, 4)
    );
    assert_eq!(
        run(&fixture, request(&second, 4)).tokens,
        expected(&second, 4)
    );
    fixture.copies.fail.store(false, Ordering::SeqCst);
    for text in [&first, &second, &first] {
        assert_eq!(run(&fixture, request(text, 4)).tokens, expected(text, 4));
    }
    fixture.assert_idle_and_conserved();
}

#[test]
fn a_host_pool_smaller_than_a_prompt_keeps_the_beginning_of_it() {
    let fixture = Fixture::with_host(EngineConfig::default(), 120, 40);
    for round in 0..6 {
        let text = prompt(round % 2, 90);
        assert_eq!(run(&fixture, request(&text, 8)).tokens, expected(&text, 8));
    }
    fixture.assert_idle_and_conserved();
}
