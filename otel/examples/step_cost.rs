//! Measures the cost of telemetry per step on the engine's thread in a loop, with warm caches: counting the rows,
//! noting the step, and handing over the steps that were noted, 64 at a time; with detailed traces also the list of
//! the batch, and each step is handed over by itself. The times of a step are those that the
//! engine reads for itself, whether anybody measures or not (`engine/src/step.rs`). One reading of the
//! clock is in the last line, for comparison.
//!
//!     cargo run --release -p hearth-otel --example step_cost
#![allow(
    clippy::unwrap_used,
    reason = "a measurement that cannot go on has failed"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use hearth_otel::{EngineFacts, EngineSnapshot, StepRecord, Telemetry};

/// Steps per burst: fewer than the mailbox holds, because dropping a record would cost less.
const BURST: usize = 2000;
const BURSTS: usize = 60;
/// Steps that the engine hands over together.
const TOGETHER: usize = 64;

fn main() {
    let telemetry = Telemetry::local();
    let facts = EngineFacts {
        context: 4096,
        ..EngineFacts::default()
    };
    telemetry
        .serve_model("m", facts, EngineSnapshot::default)
        .unwrap();
    let outbox = telemetry.steps();
    let mut noted = Vec::with_capacity(TOGETHER);
    println!(
        "| rows of a step | in detail | ns a step, least | median | ns a token, least | median |"
    );
    println!("|---|---|---|---|---|---|");
    let cases = [1, 8, 64, 256].into_iter();
    for (rows, detailed) in cases.flat_map(|rows| [(rows, false), (rows, true)]) {
        let batch: Vec<(u64, usize)> = (0..rows).map(|row| (row, 1)).collect();
        let mut bursts: Vec<f64> = (0..BURSTS)
            .map(|_| {
                let began = Instant::now();
                for _ in 0..BURST {
                    noted.push(step(&batch, detailed, began));
                    if detailed || noted.len() == TOGETHER {
                        outbox.send(noted.drain(..));
                    }
                }
                let took = began.elapsed().as_secs_f64() * 1e9 / BURST as f64;
                // The telemetry thread catches up.
                std::thread::sleep(Duration::from_millis(20));
                took
            })
            .collect();
        bursts.sort_by(f64::total_cmp);
        let (least, median) = (bursts[0], bursts[BURSTS / 2]);
        let each = rows as f64;
        println!(
            "| {rows} | {detailed} | {least:.0} | {median:.0} | {:.1} | {:.1} |",
            least / each,
            median / each
        );
    }
    let page = telemetry
        .scrape(hearth_otel::TextFormat::Prometheus)
        .unwrap();
    let dropped = page
        .lines()
        .find(|line| line.starts_with("hearth_telemetry_dropped_total"));
    println!("{}", dropped.unwrap_or_default());
    let began = Instant::now();
    for _ in 0..BURST {
        black_box(Instant::now());
    }
    let reading = began.elapsed().as_secs_f64() * 1e9 / BURST as f64;
    println!("a reading of the clock: {reading:.0} ns");
}

/// Builds a record in the same way as the engine.
fn step(batch: &[(u64, usize)], detailed: bool, finished: Instant) -> StepRecord {
    let started = black_box(finished);
    let (scheduled, forwarded) = (black_box(started), black_box(started));
    let mut requests = Vec::new();
    if detailed {
        requests.reserve_exact(batch.len());
    }
    let mut decode_rows = 0;
    for row in black_box(batch) {
        if detailed {
            requests.push(*row);
        }
        decode_rows += usize::from(row.1 == 1);
    }
    StepRecord {
        started,
        scheduled,
        forwarded,
        finished,
        tokens: batch.len(),
        prefill_rows: 0,
        prefill_tokens: 0,
        decode_rows,
        started_requests: 0,
        queried_tokens: 0,
        cached_tokens: 0,
        running: batch.len(),
        waiting: 0,
        kv_used: 100,
        kv_usage: 0.1,
        failed: false,
        requests,
    }
}
