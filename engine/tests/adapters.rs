//! Requests with adapters: their slots on the device, their namespaces in the cache, and who waits
//! for whom.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{ADAPTER_SLOTS, FAILS, Fixture, POLICIES, answer, expected_of, prompt, request};
use hearth_engine::{Adapter, EngineConfig, Request};
use hearth_forward::{AdaptedMatrix, TableNumbers, WholeTable};

/// An adapter that has a whole table if its name begins with `table`.
fn adapter(digest: &str) -> Arc<Adapter> {
    let table = WholeTable {
        matrix: AdaptedMatrix::LmHead,
        numbers: TableNumbers::F32,
        bytes: Arc::default(),
    };
    Arc::new(Adapter {
        digest: digest.to_owned(),
        tables: vec![table; usize::from(digest.starts_with("table"))],
        ..Adapter::default()
    })
}

fn with(digest: Option<&str>, prompt: &[u32], max_tokens: usize) -> Request {
    Request {
        adapter: digest.map(adapter),
        ..request(prompt, max_tokens)
    }
}

#[test]
fn rows_of_several_adapters_and_the_base_share_a_step() {
    for samples_on_device in [true, false] {
        let config = EngineConfig::default();
        let fixture = Fixture::build_any(config, common::limits(4096), 0, None, samples_on_device);
        let given = [None, Some("a"), Some("b"), Some("a"), None];
        let answers = fixture.run_at_once(given.map(|digest| with(digest, &prompt(1, 30), 20)));
        for (digest, answer) in given.into_iter().zip(answers) {
            assert_eq!(
                answer.tokens,
                expected_of(digest, &prompt(1, 30), 20),
                "{digest:?}"
            );
        }
        let steps = fixture.steps();
        assert!(steps.iter().any(|step| step.sequences == 5), "{steps:?}");
        assert_eq!(
            fixture.loaded.lock().unwrap().len(),
            2,
            "each is loaded once"
        );
        fixture.assert_idle_and_conserved();
    }
}

#[test]
fn equal_adapters_share_a_cached_prefix_and_others_do_not() {
    let fixture = Fixture::new(EngineConfig::default(), 1024);
    let run = |digest| {
        let answer = answer(
            fixture
                .engine
                .submit(with(digest, &prompt(1, 40), 5))
                .unwrap(),
        );
        assert_eq!(answer.tokens, expected_of(digest, &prompt(1, 40), 5));
        answer.cached_tokens
    };
    let each = [None, Some("a"), Some("b")];
    assert_eq!(each.map(run), [0; 3]);
    assert_eq!(each.map(run), [39; 3]);
    // The third adapter takes a slot; the first comes back and still finds its prefix.
    assert_eq!([Some("c"), Some("a")].map(run), [0, 39]);
}

#[test]
fn requests_pass_one_whose_adapter_has_no_slot() {
    for schedule in POLICIES {
        let config = EngineConfig {
            schedule,
            ..EngineConfig::default()
        };
        let (fixture, permits) = Fixture::gated(config, 4096);
        let submit = |digest, seed| {
            let request = with(digest, &prompt(seed, 20), 40);
            fixture.engine.submit(request).unwrap()
        };
        let running: Vec<_> = ["a", "b"].map(|digest| submit(Some(digest), 1)).into();
        fixture.wait_until("both run", |f| f.engine.stats().running == ADAPTER_SLOTS);
        let third = submit(Some("c"), 2);
        let behind = [submit(Some("a"), 3), submit(None, 4)];
        for _ in 0..3 {
            permits.send(()).unwrap();
        }
        fixture.wait_until("those behind run", |f| f.engine.stats().running == 4);
        assert_eq!(fixture.engine.stats().waiting, 1, "{schedule:?}");
        drop(permits);
        assert_eq!(
            answer(third).tokens,
            expected_of(Some("c"), &prompt(2, 20), 40)
        );
        for (generation, digest) in running.into_iter().zip(["a", "b"]) {
            let tokens = answer(generation).tokens;
            assert_eq!(tokens, expected_of(Some(digest), &prompt(1, 20), 40));
        }
        for generation in behind {
            assert!(answer(generation).end.is_ok());
        }
        fixture.assert_idle_and_conserved();
    }
}

#[test]
fn a_request_gets_a_slot_although_others_never_cease_to_arrive() {
    for waiting in ["c", "table"] {
        gets_a_slot_although_others_never_cease_to_arrive(waiting);
    }
}

fn gets_a_slot_although_others_never_cease_to_arrive(waiting: &'static str) {
    let fixture = Fixture::new(EngineConfig::default(), 4096);
    let submit = |digest, seed| {
        let request = with(Some(digest), &prompt(seed, 8), 30);
        fixture.engine.submit(request).unwrap()
    };
    let mut others = std::collections::VecDeque::new();
    for seed in 0..6 {
        others.push_back((
            ["a", "b"][seed as usize % 2],
            submit(["a", "b"][seed as usize % 2], seed),
        ));
    }
    let waits = std::thread::spawn({
        let generation = submit(waiting, 999);
        move || answer(generation)
    });
    let mut seed = 6;
    while !waits.is_finished() {
        assert!(seed < 3000, "it starves");
        let (digest, oldest) = others.pop_front().unwrap();
        assert!(answer(oldest).end.is_ok());
        // Before the oldest has ended, others of its adapter run already.
        others.push_back((digest, submit(digest, seed)));
        seed += 1;
    }
    let tokens = waits.join().unwrap().tokens;
    assert_eq!(tokens, expected_of(Some(waiting), &prompt(999, 8), 30));
    for (_, generation) in others {
        assert!(answer(generation).end.is_ok());
    }
    fixture.assert_idle_and_conserved();
}

#[test]
fn many_adapters_take_turns_in_the_slots() {
    for schedule in POLICIES {
        let config = EngineConfig {
            schedule,
            ..EngineConfig::default()
        };
        let fixture = Fixture::new(config, 512);
        // A third of them fits only into one of the slots.
        let name = |n: usize| ["table", "adapter", "other"][n % 3];
        let digests: Vec<String> = (0..9).map(|n| format!("{}-{n}", name(n))).collect();
        let requests = (0..60).map(|n| {
            let digest = (n % 10 < 9).then(|| digests[n % 10].as_str());
            with(digest, &prompt(n as u64 % 7, 30), 12)
        });
        let answers = fixture.run_at_once(requests);
        for (n, answer) in answers.into_iter().enumerate() {
            let digest = (n % 10 < 9).then(|| digests[n % 10].as_str());
            let want = expected_of(digest, &prompt(n as u64 % 7, 30), 12);
            assert_eq!(answer.tokens, want, "{schedule:?} {n}");
        }
        fixture.assert_idle_and_conserved();
    }
}

/// A request that is preempted, or whose prefix was evicted to the host's memory and comes back from
/// there, meets keys and values of its own adapter alone.
#[test]
fn preempted_requests_and_prefixes_in_the_host_keep_their_adapters() {
    let config = EngineConfig {
        retract_every: Some(5),
        ..EngineConfig::default()
    };
    let fixture = Fixture::with_host(config, 300, 4000);
    let adapters = [None, Some("a"), Some("b"), Some("c")];
    // All have the same prompts, so that nothing but the adapter tells them apart.
    let of = |n: usize| (adapters[n % 4], prompt(n as u64 / 4 % 3, 80));
    for round in 0..3 {
        let requests = (0..24).map(|n| {
            let (digest, prompt) = of(n);
            with(digest, &prompt, 20)
        });
        for (n, answer) in fixture.run_at_once(requests).into_iter().enumerate() {
            let (digest, prompt) = of(n);
            let want = expected_of(digest, &prompt, 20);
            assert_eq!(answer.tokens, want, "round {round}, {digest:?}");
        }
    }
    let stats = fixture.engine.stats();
    assert!(stats.preemptions > 10, "{stats:?}");
    assert!(stats.loaded_tokens > 100, "{stats:?}");
    fixture.assert_idle_and_conserved();
}

#[test]
fn a_withdrawn_request_that_waited_for_a_slot_leaves_nothing_behind() {
    let (fixture, permits) = Fixture::gated(EngineConfig::default(), 4096);
    let running = ["a", "b"].map(|digest| {
        let request = with(Some(digest), &prompt(1, 20), 200);
        fixture.engine.submit(request).unwrap()
    });
    fixture.wait_until("both run", |f| f.engine.stats().running == 2);
    let waits = fixture
        .engine
        .submit(with(Some("c"), &prompt(2, 20), 5))
        .unwrap();
    for _ in 0..100 {
        permits.send(()).unwrap();
    }
    drop(waits);
    drop(permits);
    for (generation, digest) in running.into_iter().zip(["a", "b"]) {
        let tokens = answer(generation).tokens;
        assert_eq!(tokens, expected_of(Some(digest), &prompt(1, 20), 200));
    }
    let after = answer(
        fixture
            .engine
            .submit(with(Some("d"), &prompt(3, 20), 5))
            .unwrap(),
    );
    assert_eq!(after.tokens, expected_of(Some("d"), &prompt(3, 20), 5));
    fixture.assert_idle_and_conserved();
}

#[test]
fn an_adapter_that_cannot_be_loaded_is_tried_again_for_the_next_request() {
    let fixture = Fixture::new(EngineConfig::default(), 512);
    fixture.fail_load.store(true, Ordering::SeqCst);
    let run = || {
        answer(
            fixture
                .engine
                .submit(with(Some("a"), &prompt(1, 10), 5))
                .unwrap(),
        )
    };
    let error = run().end.unwrap_err();
    assert!(error.contains("no memory for an adapter"), "{error}");
    assert_eq!(run().tokens, expected_of(Some("a"), &prompt(1, 10), 5));
    // A failed forward pass says nothing about the slots.
    let fails = fixture.engine.submit(with(None, &[1, FAILS], 5)).unwrap();
    assert!(answer(fails).end.is_err());
    assert_eq!(run().tokens, expected_of(Some("a"), &prompt(1, 10), 5));
    assert_eq!(fixture.loaded.lock().unwrap().len(), 1);
}
