//! Tests the properties that the simulator's figures rely on.
#![allow(clippy::unwrap_used)]

use hearth_benches::sim::{self, workload};
use hearth_engine::{EngineConfig, SchedulePolicy};

fn run(workload: &workload::Workload, schedule: SchedulePolicy, kv_slots: usize) -> sim::Outcome {
    let config = EngineConfig {
        schedule,
        max_queue: 10_000,
        max_running: 64,
        max_batch_tokens: 576,
        prefill_chunk: 512,
        ..EngineConfig::default()
    };
    sim::run(workload, config, kv_slots, 0).unwrap()
}

#[test]
fn an_unbounded_cache_reuses_everything_that_can_be_reused() {
    for workload in workload::all(1) {
        let run = run(&workload, SchedulePolicy::Lpm, 4 << 20);
        assert_eq!(run.stats.preemptions, 0);
        assert!(
            run.hit_rate > 0.98 * run.best_hit_rate - 0.001,
            "{}: {run:?}",
            workload.name
        );
        // Another order can have slightly more tokens that are equal by chance.
        assert!(run.hit_rate < run.best_hit_rate + 0.005, "{run:?}");
    }
}

#[test]
fn the_default_policy_reuses_more_and_ends_earlier_than_fcfs_with_a_small_cache() {
    let chat = &workload::all(1)[1];
    let agents = &workload::all(1)[3];
    for workload in [chat, agents] {
        let default = run(workload, SchedulePolicy::default(), 16_384);
        let fcfs = run(workload, SchedulePolicy::Fcfs, 16_384);
        assert!(default.hit_rate > fcfs.hit_rate, "{default:?} {fcfs:?}");
        assert!(default.makespan < fcfs.makespan, "{default:?} {fcfs:?}");
        assert!(
            default.hit_rate > 0.9 * default.best_hit_rate,
            "{default:?}"
        );
    }
}

#[test]
fn every_run_of_a_workload_gives_the_same_result() {
    let agents = &workload::all(1)[3];
    for host_slots in [0, 131_072] {
        let run = || {
            let config = EngineConfig {
                max_queue: 10_000,
                max_running: 64,
                max_batch_tokens: 576,
                ..EngineConfig::default()
            };
            format!(
                "{:?}",
                sim::run(agents, config, 16_384, host_slots).unwrap()
            )
        };
        let first = run();
        for _ in 0..8 {
            assert_eq!(first, run());
        }
    }
}

#[test]
fn a_second_tier_brings_a_small_cache_close_to_the_optimum() {
    for workload in workload::all(1).iter().take(4) {
        let config = EngineConfig {
            max_queue: 10_000,
            max_running: 64,
            max_batch_tokens: 576,
            ..EngineConfig::default()
        };
        let with = sim::run(workload, config, 16_384, 131_072).unwrap();
        assert!(with.hit_rate > 0.98 * with.best_hit_rate, "{with:?}");
    }
}

#[test]
fn a_second_tier_shortens_a_workload_that_would_recompute_much_context() {
    let agents = &workload::all(1)[3];
    let config = EngineConfig {
        max_queue: 10_000,
        max_running: 64,
        max_batch_tokens: 576,
        ..EngineConfig::default()
    };
    let with = sim::run(agents, config, 16_384, 131_072).unwrap();
    let without = run(agents, SchedulePolicy::default(), 16_384);
    assert!(
        with.makespan < 0.98 * without.makespan,
        "{with:?} {without:?}"
    );
}

#[test]
fn the_prefix_cache_does_not_slow_down_requests_that_share_nothing() {
    let none = &workload::all(1)[4];
    let on = run(none, SchedulePolicy::Fcfs, 65_536);
    let off = sim::run(
        none,
        EngineConfig {
            schedule: SchedulePolicy::Fcfs,
            prefix_cache: false,
            max_queue: 10_000,
            max_running: 64,
            max_batch_tokens: 576,
            prefill_chunk: 512,
            ..EngineConfig::default()
        },
        65_536,
        0,
    )
    .unwrap();
    assert!(on.makespan <= off.makespan * 1.001, "{on:?} {off:?}");
}
