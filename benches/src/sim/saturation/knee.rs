//! The load at which one server misses its objective, beside the load at which it is saturated.

use std::ops::Range;

use super::arrivals::Process;
use super::{KEPT, Model};
use crate::sim::disaggregation::cluster::{Arrangement, Run, run};
use crate::sim::disaggregation::split::capacity;
use crate::sim::disaggregation::workload::Request;

/// Requests per second.
#[derive(Clone, Copy, Debug)]
pub struct Knee {
    /// The highest rate at which [`KEPT`] of the requests have their first token in time.
    pub kept: f64,
    /// The highest rate at which the saturation is below 1 for as large a part of the time.
    pub saturated: f64,
}

/// Searches both rates with the same random numbers.
pub fn find(model: &Model, process: Process, requests: usize, seed: u64) -> Knee {
    let most = 1.5 * capacity(model.workload, model.limits(), seed);
    let try_rate = |rate: f64| {
        let requests = process.requests(model.workload, requests, f64::MAX, |_| rate, seed);
        let run = run(
            &requests,
            Arrangement::Mixed { nodes: 1 },
            model.limits(),
            0..0,
        );
        (requests, run)
    };
    Knee {
        kept: highest(most, |rate| {
            let (requests, run) = try_rate(rate);
            part_in_time(&requests, &run.first, model.objective) >= KEPT
        }),
        saturated: highest(most, |rate| {
            let (requests, run) = try_rate(rate);
            below_one(&requests, &run, model.limits().max_running) >= KEPT
        }),
    }
}

/// The highest rate up to `most` at which `holds`, by bisection.
fn highest(most: f64, holds: impl Fn(f64) -> bool) -> f64 {
    let (mut low, mut high) = (0.0, most);
    for _ in 0..12 {
        let middle = f64::midpoint(low, high);
        match holds(middle) {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}

/// The second half of the arrivals, in which the server no longer fills up.
fn steady(requests: &[Request]) -> Range<u64> {
    requests[requests.len() / 2].arrival..requests[requests.len() - 1].arrival
}

/// The part of the requests whose first token came within `objective` nanoseconds.
pub fn part_in_time(requests: &[Request], first: &[u64], objective: u64) -> f64 {
    let window = steady(requests);
    let measured = requests.iter().zip(first);
    let measured = measured.filter(|(request, _)| window.contains(&request.arrival));
    let (mut all, mut kept) = (0.0, 0.0);
    for (request, first) in measured {
        all += 1.0;
        kept += f64::from(u8::from(first - request.arrival <= objective));
    }
    kept / all
}

/// The part of the time in which fewer than `max_running` requests ran or waited.
fn below_one(requests: &[Request], run: &Run, max_running: usize) -> f64 {
    let window = steady(requests);
    let arrived = requests.iter().map(|request| (request.arrival, 1));
    let ended = run.last.iter().map(|&last| (last, -1));
    let mut changes: Vec<(u64, i64)> = arrived.chain(ended).collect();
    changes.sort_unstable();
    let (mut there, mut since, mut below) = (0_i64, window.start, 0);
    for (at, change) in changes {
        let at = at.clamp(window.start, window.end);
        if there < max_running as i64 {
            below += at - since;
        }
        (there, since) = (there + change, at);
    }
    below as f64 / (window.end - window.start) as f64
}
