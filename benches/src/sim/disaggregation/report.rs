//! The table: mixed and disaggregated clusters beside each other.

use std::fmt;
use std::ops::Range;

use super::cluster::{Arrangement, run};
use super::measure::Figures;
use super::node::Limits;
use super::split;
use super::workload::{Request, WORKLOADS, Workload};
use crate::sim::cost::SEVEN_B;

/// The limits of a step by default, in the simulations of the engine as well.
pub const LIMITS: Limits = Limits {
    max_running: 64,
    prefill_chunk: 512,
    device: SEVEN_B,
};
/// Mixed nodes also run with these smaller chunks of prompts, which are the other way to shorten the
/// steps that decoding shares with prompts.
const SMALL_CHUNKS: [u64; 2] = [256, 128];
/// The rates of arrival, in percent of what the mixed cluster sustains.
const LOADS: [u64; 2] = [60, 85];
/// Gigabits per second of each node's link.
const LINKS: [u64; 4] = [1, 10, 100, 400];

/// The size and seed of the simulation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The sizes of the clusters.
    pub nodes: Vec<usize>,
    /// Requests per node. A cluster of fewer than 16 nodes gets as many requests as one of 16.
    pub requests: usize,
    /// The seed of arrivals and lengths, which must not be 0.
    pub seed: u64,
}

/// A row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    pub nodes: usize,
    pub workload: &'static str,
    /// Percent of what the mixed cluster sustains.
    pub load: u64,
    pub arrangement: Arrangement,
    /// Prompt tokens of a step.
    pub prefill_chunk: u64,
    /// The number of prefill nodes by the ratio of work.
    pub by_work: usize,
    /// The load of the links, if there are any: see [`split::link_load`].
    pub link_load: Option<f64>,
    /// None if the nodes or their links do not keep up with the requests.
    pub figures: Option<Figures>,
}

pub const HEADER: &str = "\
| nodes | workload | load | arrangement | p:d by work | link load | TTFT p50, ms | p95 | ITL p50, ms | p95 | max | tok/s |
|---|---|---|---|---|---|---|---|---|---|---|---|";

impl fmt::Display for Row {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { nodes, by_work, .. } = self;
        write!(out, "| {nodes} | {} | {} % | ", self.workload, self.load)?;
        match self.arrangement {
            Arrangement::Mixed { .. } => write!(out, "mixed, chunks of {}", self.prefill_chunk)?,
            Arrangement::Disaggregated {
                prefill,
                decode,
                gigabits,
            } => write!(out, "PD {prefill}:{decode}, {gigabits} Gbit/s")?,
        }
        match self.link_load {
            Some(load) => write!(
                out,
                " | {by_work}:{} | {:.0} %",
                nodes - by_work,
                100.0 * load
            )?,
            None => write!(out, " | - | -")?,
        }
        let Some(figures) = &self.figures else {
            return write!(out, " | overloaded | - | - | - | - | - |");
        };
        let ms = |ns: u64| ns as f64 / 1e6;
        write!(
            out,
            " | {:.0} | {:.0} | {:.1} | {:.1} | {:.1} | {:.0} |",
            ms(figures.ttft_p50),
            ms(figures.ttft_p95),
            ms(figures.itl_p50),
            ms(figures.itl_p95),
            ms(figures.itl_max),
            figures.throughput
        )
    }
}

/// Simulates all rows of the table, and gives each to `print`.
pub fn table(settings: &Settings, mut print: impl FnMut(&Row)) {
    for &nodes in &settings.nodes {
        for workload in WORKLOADS {
            let capacity = split::capacity(workload, LIMITS, settings.seed);
            for load in LOADS {
                let rate = nodes as f64 * capacity * load as f64 / 100.0;
                rows(settings, workload, nodes, load, rate, &mut print);
            }
        }
    }
}

/// The rows of one workload under one load: `rate` requests a second.
fn rows(
    settings: &Settings,
    workload: Workload,
    nodes: usize,
    load: u64,
    rate: f64,
    print: &mut impl FnMut(&Row),
) {
    // With few requests, chance decides whether a small cluster seems to keep up.
    let count = settings.requests * nodes.max(16);
    let requests = workload.requests(count, rate, settings.seed);
    let window = steady(&requests);
    let figures = |arrangement, limits| {
        run(&requests, arrangement, limits, window.clone()).figures(&requests)
    };
    let by_work = split::by_work(workload, nodes, LIMITS);
    let mut row = |arrangement, prefill_chunk, link_load, figures: Option<Figures>| {
        print(&Row {
            nodes,
            workload: workload.name,
            load,
            arrangement,
            prefill_chunk,
            by_work,
            link_load,
            figures: figures.filter(Figures::sustained),
        });
    };
    let arrangement = Arrangement::Mixed { nodes };
    let mixed = figures(arrangement, LIMITS);
    row(arrangement, LIMITS.prefill_chunk, None, Some(mixed));
    for prefill_chunk in SMALL_CHUNKS {
        let limits = Limits {
            prefill_chunk,
            ..LIMITS
        };
        let small = figures(arrangement, limits);
        row(arrangement, prefill_chunk, None, Some(small));
    }
    // Disaggregation is for a lower ITL, and 10 % are room for a split of few nodes.
    let itl_bound = mixed.itl_p95 + mixed.itl_p95 / 10;
    for gigabits in LINKS {
        let pair = |prefill| Arrangement::Disaggregated {
            prefill,
            decode: nodes - prefill,
            gigabits,
        };
        let link_load =
            |prefill| split::link_load(workload, rate, (prefill, nodes - prefill), gigabits);
        // A split whose links are overloaded cannot be the best one.
        let tried: Vec<_> = split::candidates(by_work, nodes)
            .into_iter()
            .filter(|&prefill| link_load(prefill) < 1.0)
            .map(|prefill| (prefill, figures(pair(prefill), LIMITS)))
            .collect();
        let best = split::best(&tried, itl_bound);
        let prefill = best.map_or(by_work, |(prefill, _)| prefill);
        let figures = best.map(|(_, figures)| figures);
        row(
            pair(prefill),
            LIMITS.prefill_chunk,
            Some(link_load(prefill)),
            figures,
        );
    }
}

/// The time in which the cluster neither fills up nor runs empty: the second half of the arrivals.
fn steady(requests: &[Request]) -> Range<u64> {
    let arrival = |index: usize| requests.get(index).map_or(0, |request| request.arrival);
    arrival(requests.len() / 2)..arrival(requests.len().saturating_sub(1))
}
