//! The order in which waiting requests start, and what they wait for.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Fixture, POLICIES, answer, expected, greedy, prompt, request};
use hearth_engine::{EngineConfig, FinishReason, Request, SchedulePolicy};

/// Requests run one at a time, each prompt in one step.
fn one_by_one(schedule: SchedulePolicy) -> EngineConfig {
    EngineConfig {
        schedule,
        max_running: 1,
        ..EngineConfig::default()
    }
}

/// A prompt of `start`, some tokens that no other prompt has, and `mark` at the end.
fn marked(start: &[u32], mark: u32) -> Vec<u32> {
    [start, &prompt(u64::from(mark), 4), &[mark]].concat()
}

/// The marks of `requests` in the order in which they started.
fn order(fixture: &Fixture, requests: Vec<Request>) -> Vec<u32> {
    let before = fixture.steps().len();
    let prompts: Vec<_> = requests.iter().map(|r| r.prompt.clone()).collect();
    for (prompt, answer) in prompts.iter().zip(fixture.run_at_once(requests)) {
        assert_eq!(answer.tokens, expected(prompt, answer.tokens.len()));
        assert_eq!(answer.end.unwrap().0, FinishReason::Length);
    }
    fixture.assert_idle_and_conserved();
    let steps = fixture.steps().split_off(before);
    steps.into_iter().flat_map(|step| step.ends).collect()
}

#[test]
fn first_come_first_served() {
    let fixture = Fixture::new(one_by_one(SchedulePolicy::Fcfs), 512);
    let requests = (0..9).map(|mark| request(&marked(&[], mark), 2));
    assert_eq!(
        order(&fixture, requests.collect()),
        (0..9).collect::<Vec<_>>()
    );
}

#[test]
fn the_longest_cached_prefix_starts_first() {
    let fixture = Fixture::new(one_by_one(SchedulePolicy::Lpm), 512);
    let cached = prompt(1, 60);
    fixture.run(&cached, 1);
    let requests = [(0, 0), (1, 10), (2, 50), (3, 0), (4, 30), (5, 50)];
    let requests = requests.map(|(mark, len)| request(&marked(&cached[..len], mark), 2));
    assert_eq!(order(&fixture, requests.to_vec()), [2, 5, 4, 1, 0, 3]);
}

#[test]
fn a_prefix_that_becomes_cached_moves_waiting_requests_up() {
    let fixture = Fixture::new(one_by_one(SchedulePolicy::Lpm), 512);
    let (a, b) = (prompt(1, 20), prompt(2, 20));
    // Nothing is cached, so the first request starts, and then those that share its prefix.
    let requests = [(0, &a), (1, &b), (2, &a), (3, &b), (4, &a)];
    let requests = requests.map(|(mark, start)| request(&marked(start, mark), 2));
    assert_eq!(order(&fixture, requests.to_vec()), [0, 2, 4, 1, 3]);
}

#[test]
fn the_heaviest_branch_is_walked_first_and_completely() {
    let fixture = Fixture::new(one_by_one(SchedulePolicy::DfsWeight), 512);
    let (a, b) = (prompt(1, 20), prompt(2, 20));
    let deep = [&b[..], &prompt(3, 10)].concat();
    let requests = [(0, &a), (1, &b), (2, &deep), (3, &a), (4, &deep), (5, &b)];
    let requests = requests.map(|(mark, start)| request(&marked(start, mark), 2));
    assert_eq!(order(&fixture, requests.to_vec()), [2, 4, 1, 5, 0, 3]);
}

#[test]
fn the_longest_output_starts_first() {
    let fixture = Fixture::new(one_by_one(SchedulePolicy::Lof), 512);
    let requests = [(0, 3), (1, 9), (2, 1), (3, 9)];
    let requests = requests.map(|(mark, tokens)| request(&marked(&[], mark), tokens));
    assert_eq!(order(&fixture, requests.to_vec()), [1, 3, 0, 2]);
}

#[test]
fn the_highest_priority_starts_first() {
    let fixture = Fixture::new(one_by_one(SchedulePolicy::Priority), 512);
    let requests = [
        (0, 0),
        (1, i32::MIN),
        (2, 5),
        (3, i32::MAX),
        (4, -1),
        (5, 5),
    ];
    let requests = requests.map(|(mark, priority)| Request {
        priority,
        ..request(&marked(&[], mark), 2)
    });
    assert_eq!(order(&fixture, requests.to_vec()), [3, 2, 5, 0, 4, 1]);
}

#[test]
fn the_random_order_is_the_same_in_every_run_and_not_that_of_arrival() {
    let once = || {
        let fixture = Fixture::new(one_by_one(SchedulePolicy::Random), 512);
        let requests = (0..20).map(|mark| request(&marked(&[], mark), 1));
        order(&fixture, requests.collect())
    };
    let first = once();
    assert_eq!(first, once());
    assert!(!first.is_sorted());
    let mut all = first;
    all.sort_unstable();
    assert_eq!(all, (0..20).collect::<Vec<_>>());
}

#[test]
fn a_higher_priority_preempts_a_lower_one_which_continues_afterwards() {
    // There is room for one request, by count or by slots.
    for (max_running, kv_slots) in [(1, 512), (8, 70)] {
        let config = EngineConfig {
            max_running,
            ..one_by_one(SchedulePolicy::Priority)
        };
        let (fixture, permits) = Fixture::gated(config, kv_slots);
        let urgent = |seed, priority| Request {
            priority,
            ..request(&prompt(seed, 20), 40)
        };
        let low = fixture.engine.submit(urgent(1, 0)).unwrap();
        fixture.wait_until("it runs", |f| f.engine.stats().running == 1);
        let equal = fixture.engine.submit(urgent(2, 0)).unwrap();
        for _ in 0..10 {
            permits.send(()).unwrap();
        }
        fixture.wait_until("ten steps", |f| f.engine.stats().steps == 10);
        assert_eq!(
            fixture.engine.stats().preemptions,
            0,
            "a request of equal priority waits"
        );
        let high = fixture.engine.submit(urgent(3, 1)).unwrap();
        // The next step is in flight, too.
        permits.send(()).unwrap();
        permits.send(()).unwrap();
        fixture.wait_until("it gave way", |f| f.engine.stats().preemptions == 1);
        drop(permits);
        assert_eq!(answer(high).tokens, expected(&prompt(3, 20), 40));
        assert_eq!(answer(low).tokens, expected(&prompt(1, 20), 40));
        assert_eq!(answer(equal).tokens, expected(&prompt(2, 20), 40));
        fixture.assert_idle_and_conserved();
    }
}

#[test]
fn a_prefix_that_many_wait_for_is_computed_once_under_every_policy() {
    for schedule in POLICIES {
        for page_size in [1, 16, 64] {
            let config = EngineConfig {
                schedule,
                page_size,
                max_running: 8,
                prefill_chunk: 128,
                max_batch_tokens: 256,
                ..EngineConfig::default()
            };
            let limits = hearth_forward::ExecutorLimits {
                max_model_len: 1024,
                ..common::limits(32 * 600)
            };
            let fixture = Fixture::build(config, limits, None);
            let shared = prompt(1, 512);
            let own = |i: u64| [&shared[..], &[i as u32], &prompt(100 + i, 31)].concat();
            let answers = fixture.run_at_once((0..32).map(|i| request(&own(i), 16)));
            for (i, answer) in (0..).zip(answers) {
                assert_eq!(answer.tokens, expected(&own(i), 16));
            }
            let stats = fixture.engine.stats();
            let decoded = 32 * 15;
            assert_eq!(
                stats.computed_tokens - decoded,
                512 + 32 * 32,
                "{schedule:?} {page_size}"
            );
            assert_eq!(stats.cached_tokens, 31 * 512);
        }
    }
}

#[test]
fn long_prompts_do_not_delay_a_short_one_and_the_first_of_them_gets_half_of_every_step() {
    let config = EngineConfig {
        max_batch_tokens: 64,
        prefill_chunk: 64,
        ..EngineConfig::default()
    };
    let (fixture, permits) = Fixture::gated(config, 4096);
    let long: Vec<_> = (1..4).map(|i| fixture.submit(&prompt(i, 400), 1)).collect();
    permits.send(()).unwrap();
    fixture.wait_until("they run", |f| f.engine.stats().running == 3);
    let short = fixture.submit(&prompt(9, 20), 2);
    // The step that was scheduled already, the step of the short prompt, and the step of its second
    // token.
    for _ in 0..4 {
        permits.send(()).unwrap();
    }
    fixture.wait_until("the short one is done", |f| f.engine.stats().finished == 1);
    assert_eq!(answer(short).tokens, expected(&prompt(9, 20), 2));
    drop(permits);
    for (i, generation) in (1..).zip(long) {
        assert_eq!(answer(generation).tokens, expected(&prompt(i, 400), 1));
    }
    let steps = fixture.steps();
    assert!(steps.iter().all(|step| step.tokens <= 64), "{steps:?}");
    assert!(steps.iter().any(|step| step.prefills > 2), "{steps:?}");
    // 400 tokens, at least 32 of them in each step.
    let (first, end) = (prompt(1, 400), prompt(1, 400)[399]);
    let done = steps.iter().position(|step| step.ends.contains(&end));
    assert!(done.unwrap() <= first.len() / 32, "{steps:?}");
}

#[test]
fn several_outputs_of_one_prompt_compute_it_once() {
    let fixture = Fixture::new(EngineConfig::default(), 4096);
    let seeded = |seed| Request {
        params: hearth_engine::SamplingParams {
            seed: Some(seed),
            temperature: 1.0,
            ..greedy(1)
        },
        ..request(&prompt(1, 100), 1)
    };
    fixture.run_at_once((0..8).map(seeded));
    assert_eq!(fixture.engine.stats().computed_tokens, 100 + 7);
}

#[test]
fn parked_requests_continue_on_their_own_when_their_leader_ends_or_fails() {
    for fails in [false, true] {
        let config = EngineConfig {
            prefill_chunk: 16,
            max_batch_tokens: 16,
            ..EngineConfig::default()
        };
        let (fixture, permits) = Fixture::gated(config, 2048);
        let shared = prompt(1, 100);
        // The last chunk of the leader fails, after the others have begun to wait for it.
        let mut doomed = shared.clone();
        doomed.extend(fails.then_some(common::FAILS));
        let leader = fixture.submit(&doomed, 4);
        fixture.wait_until("it runs", |f| f.engine.stats().running == 1);
        let own = |i: u64| [&shared[..], &prompt(100 + i, 8)].concat();
        let parked: Vec<_> = (0..4).map(|i| fixture.submit(&own(i), 4)).collect();
        for _ in 0..3 {
            permits.send(()).unwrap();
        }
        fixture.wait_until("three steps", |f| f.engine.stats().steps == 3);
        let stats = fixture.engine.stats();
        assert_eq!(
            (stats.running, stats.waiting, stats.deferred),
            (1, 4, 4),
            "they wait for the leader"
        );
        if fails {
            drop(permits);
            assert!(answer(leader).end.is_err());
        } else {
            drop(leader);
            drop(permits);
        }
        for (i, parked_request) in (0..).zip(parked) {
            assert_eq!(answer(parked_request).tokens, expected(&own(i), 4));
        }
        fixture.assert_idle_and_conserved();
    }
}

/// Prompts that end in the leaves of a random tree, in random order, and the number of tokens on
/// all of its edges.
fn tree_of_prompts(seed: u64) -> (Vec<Vec<u32>>, usize) {
    let mut random = prompt(seed, 10_000).into_iter();
    let mut below = |bound: u32| random.next().unwrap() % bound;
    let mut paths = vec![Vec::new()];
    let (mut edges, mut prompts) = (0, Vec::new());
    while let Some(path) = paths.pop() {
        // If the tree grows too large, all further branches are leaves.
        if path.len() > 150 || prompts.len() + paths.len() > 200 {
            prompts.push((below(97), path));
            continue;
        }
        // Children differ in their first tokens.
        for child in 0..1 + below(4) {
            let label = prompt(seed * 1000 + edges as u64, 1 + below(40) as usize);
            edges += label.len() + 1;
            paths.push([&path[..], &[child], &label].concat());
        }
    }
    prompts.sort();
    (prompts.into_iter().map(|(_, p)| p).collect(), edges)
}

/// Theorem 3.1 of arXiv 2312.07104: a cache that holds the longest request suffices
/// for a batch in depth-first order to compute every edge of its tree once.
#[test]
fn in_depth_first_order_every_edge_is_computed_exactly_once() {
    let computed = |schedule, seed| {
        let (prompts, edges) = tree_of_prompts(seed);
        let longest = prompts.iter().map(Vec::len).max().unwrap();
        let fixture = Fixture::new(one_by_one(schedule), longest + 1);
        fixture.run_at_once(prompts.iter().map(|p| request(p, 1)));
        (fixture.engine.stats().computed_tokens as usize, edges)
    };
    let mut in_order_of_arrival = [0, 0];
    for seed in 0..20 {
        for schedule in [SchedulePolicy::Lpm, SchedulePolicy::DfsWeight] {
            let (computed, edges) = computed(schedule, seed);
            assert_eq!(computed, edges, "{schedule:?}, seed {seed}");
        }
        let (computed, edges) = computed(SchedulePolicy::Fcfs, seed);
        in_order_of_arrival[0] += computed;
        in_order_of_arrival[1] += edges;
    }
    let [computed, edges] = in_order_of_arrival;
    assert!(computed > edges * 3 / 2, "any other order computes more");
}
