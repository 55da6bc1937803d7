//! How much load a mixed node sustains, and how many nodes of a cluster compute prompts.

use super::cluster::{Arrangement, run};
use super::link::transfer_ns;
use super::measure::Figures;
use super::node::Limits;
use super::workload::Workload;

/// The requests per second that one mixed node completes while requests always wait: those in the
/// middle half of a run, in which the node neither fills up nor runs empty.
pub fn capacity(workload: Workload, limits: Limits, seed: u64) -> f64 {
    const REQUESTS: usize = 1000;
    let requests = workload.requests(REQUESTS, f64::INFINITY, seed);
    let mut last = run(&requests, Arrangement::Mixed { nodes: 1 }, limits, 0..0).last;
    last.sort_unstable();
    let time = last[3 * REQUESTS / 4] - last[REQUESTS / 4];
    (REQUESTS / 2) as f64 * 1e9 / time as f64
}

/// The number of prefill nodes among `nodes`, in proportion to the simulated times that a mean
/// request takes: of its prompt alone on a node, and of its decode steps with all rows of the batch
/// in use, divided by the rows.
pub fn by_work(workload: Workload, nodes: usize, limits: Limits) -> usize {
    let (prompt, output) = (workload.prompt as u64, workload.output as u64);
    let chunk = limits.prefill_chunk;
    let prefill: u64 = (0..prompt.div_ceil(chunk))
        .map(|i| (i * chunk, prompt.min((i + 1) * chunk)))
        .map(|(start, end)| limits.device.step_ns(end - start, end))
        .sum();
    let rows = limits.max_running as u64;
    let decode = output * limits.device.step_ns(rows, rows * (prompt + output / 2)) / rows;
    let share = prefill as f64 / (prefill + decode) as f64;
    ((nodes as f64 * share).round() as usize).clamp(1, nodes - 1)
}

/// The numbers of prefill nodes to try: the one by work, and two to each side, a sixteenth of the
/// nodes apart.
pub fn candidates(by_work: usize, nodes: usize) -> Vec<usize> {
    let apart = (nodes / 16).max(1) as isize;
    (-2..=2)
        .filter_map(|i| by_work.checked_add_signed(i * apart))
        .filter(|prefill| (1..nodes).contains(prefill))
        .collect()
}

/// The bits that arrive for the busier side of the links, as a share of what that side can carry.
pub fn link_load(
    workload: Workload,
    rate: f64,
    (prefill, decode): (usize, usize),
    gigabits: u64,
) -> f64 {
    let seconds = transfer_ns(workload.prompt as u64, gigabits) as f64 / 1e9;
    rate * seconds / prefill.min(decode) as f64
}

/// The best of some splits among those that keep up with the requests. Of the splits whose ITL p95
/// is not above `itl_bound`, those count whose TTFT p95 is at most 5 % above the lowest; the best is
/// the one of them with the lowest ITL p95. If no split is within the bound, the best is the one
/// with the lowest ITL p95.
pub fn best(tried: &[(usize, Figures)], itl_bound: u64) -> Option<(usize, Figures)> {
    let sustained = tried.iter().filter(|(_, figures)| figures.sustained());
    let bounded = sustained.clone().filter(|(_, f)| f.itl_p95 <= itl_bound);
    let lowest = bounded.clone().map(|(_, f)| f.ttft_p95).min().unwrap_or(0);
    bounded
        .filter(|(_, f)| f.ttft_p95 <= lowest + lowest / 20)
        .min_by_key(|(_, f)| f.itl_p95)
        .or_else(|| sustained.min_by_key(|(_, f)| f.itl_p95))
        .copied()
}
