//! Simulates how many prompt tokens workers find in their caches behind a router, whose policy is the
//! real one, with KV events and without.
//!
//! A worker computes one prompt at a time and any number of outputs at once. Two routers in front of
//! the same workers take turns, and each knows only what went through it, and what is published.

mod cluster;
mod worker;

use hearth_router::PolicyKind;

use super::workload::{self, Workload};
use cluster::{Cluster, Outcome};

pub const HEADER: &str = "| workload | workers | KV of each | routers | policy | hit rate | TTFT mean, ms | TTFT p95, ms |\n|---|---|---|---|---|---|---|---|";

/// How requests are routed.
#[derive(Clone, Copy, Debug)]
pub struct Routing {
    pub policy: PolicyKind,
    /// True if workers publish KV events.
    pub events: bool,
    pub routers: usize,
}

/// Each policy, and the number of routers.
const ROUTINGS: [(&str, Routing); 5] = [
    (
        "round_robin",
        Routing {
            policy: PolicyKind::RoundRobin,
            events: false,
            routers: 1,
        },
    ),
    (
        "cache_aware, guess",
        Routing {
            policy: PolicyKind::CacheAware,
            events: false,
            routers: 1,
        },
    ),
    (
        "cache_aware, events",
        Routing {
            policy: PolicyKind::CacheAware,
            events: true,
            routers: 1,
        },
    ),
    (
        "cache_aware, guess",
        Routing {
            policy: PolicyKind::CacheAware,
            events: false,
            routers: 2,
        },
    ),
    (
        "cache_aware, events",
        Routing {
            policy: PolicyKind::CacheAware,
            events: true,
            routers: 2,
        },
    ),
];

/// The traces for a number of workers: each worker has as many sessions as one alone would have.
fn traces(workers: usize) -> Vec<Workload> {
    let mut traces = workload::all(workers * 2);
    traces.retain(|trace| {
        ["chat, 6 turns (online)", "agents, 8 calls (online)"].contains(&trace.name)
    });
    for trace in &mut traces {
        trace.concurrent *= workers;
    }
    traces
}

/// Runs one trace.
///
/// # Errors
/// A request does not fit into the cache of a worker.
pub fn run(
    trace: &Workload,
    workers: usize,
    kv_tokens: usize,
    routing: Routing,
) -> anyhow::Result<Outcome> {
    Cluster::new(trace, workers, kv_tokens, routing)?.run()
}

/// One row for each trace, number of workers, size of the caches and routing.
///
/// # Errors
/// As [`run`].
pub fn table(
    workers: &[u32],
    kv_tokens: &[usize],
    mut row: impl FnMut(String),
) -> anyhow::Result<()> {
    for &workers in workers {
        for trace in traces(workers as usize) {
            for &kv in kv_tokens {
                for (name, routing) in ROUTINGS {
                    let outcome = run(&trace, workers as usize, kv, routing)?;
                    row(format!(
                        "| {} | {workers} | {kv} | {} | {name} | {:.1} % | {:.0} | {:.0} |",
                        trace.name,
                        routing.routers,
                        100.0 * outcome.hit_rate,
                        1e3 * outcome.ttft_mean,
                        1e3 * outcome.ttft_p95,
                    ));
                }
            }
        }
    }
    Ok(())
}
