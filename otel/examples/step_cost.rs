//! What a step's telemetry costs the engine's thread: the times that it takes, the list of the
//! batch, and handing both over.
//!
//!     cargo run --release -p hearth-otel --example step_cost
#![allow(
    clippy::unwrap_used,
    reason = "a measurement that cannot go on has failed"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use hearth_otel::{EngineFacts, EngineSnapshot, StepRecord, Telemetry};

/// Fewer than the queue holds, so that none is dropped, which would cost less.
const BURST: usize = 2000;
const BURSTS: usize = 60;

fn main() {
    let telemetry = Telemetry::local();
    let facts = EngineFacts {
        context: 4096,
        ..EngineFacts::default()
    };
    telemetry
        .serve_model("m", facts, EngineSnapshot::default)
        .unwrap();
    let tell = telemetry.steps();
    println!("| rows of a step | ns a step, least | median | ns a token, least | median |");
    println!("|---|---|---|---|---|");
    for rows in [1, 8, 64, 256] {
        let batch: Vec<(u64, usize)> = (0..rows).map(|row| (row, 1)).collect();
        let mut bursts: Vec<f64> = (0..BURSTS)
            .map(|_| {
                let began = Instant::now();
                for _ in 0..BURST {
                    tell(step(&batch));
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
            "| {rows} | {least:.0} | {median:.0} | {:.1} | {:.1} |",
            least / each,
            median / each
        );
    }
    let page = telemetry.scrape(hearth_otel::TextFormat::Prometheus);
    let dropped = page
        .lines()
        .find(|line| line.starts_with("hearth_telemetry_dropped_total"));
    println!("{}", dropped.unwrap_or_default());
}

/// As the engine makes one: four readings of the clock, and a list of the batch.
fn step(batch: &[(u64, usize)]) -> StepRecord {
    let started = Instant::now();
    let scheduled = Instant::now();
    let forwarded = Instant::now();
    let mut requests = Vec::with_capacity(batch.len());
    let mut decode_rows = 0;
    for row in black_box(batch) {
        requests.push(*row);
        decode_rows += usize::from(row.1 == 1);
    }
    StepRecord {
        started,
        scheduled,
        forwarded,
        finished: Instant::now(),
        tokens: batch.len(),
        prefill_rows: 0,
        prefill_tokens: 0,
        decode_rows,
        started_requests: 0,
        queried_tokens: 0,
        cached_tokens: 0,
        preemptions: 0,
        running: batch.len(),
        waiting: 0,
        kv_used: 100,
        kv_usage: 0.1,
        failed: false,
        requests,
    }
}
