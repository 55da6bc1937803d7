//! Measures what telemetry costs the engine's thread for a step: the time in which an engine hands
//! its report of the step over, to telemetry and to an observer that discards it, in turns. The
//! engine is a real one, with a model that answers every token with `a` after a given time.
//!
//!     cargo run --release -p hearth-api --example observed_steps
//!
//! Both observers are called on the engine's thread and read the clock around the call. The
//! difference of a pair of turns leaves out the readings, and what other work of the machine does
//! to both. It also leaves out the making of the report, which both observers need.

mod letters;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use hearth_api::served::Served;
use hearth_api::telemetry::{attach, observer};
use hearth_engine::{EngineConfig, Request, SamplingParams, StepObserver};
use hearth_otel::{Telemetry, TextFormat};
use letters::{CONTEXT, SEQUENCES, served};

/// The cost of telemetry on the engine's thread, with and without it in turns.
#[derive(Debug, Parser)]
#[command(name = "observed_steps")]
struct Cli {
    /// Pairs of turns for each number of sequences
    #[arg(long, default_value_t = 200)]
    pairs: usize,
    /// Tokens of each sequence in a turn
    #[arg(long, default_value_t = 500)]
    tokens: usize,
    /// Time of a step on the model's thread, which computes nothing but does not sleep
    #[arg(long, default_value_t = 100)]
    step_us: u64,
}

/// The time that an observer has taken.
#[derive(Debug, Default)]
struct Spent {
    nanoseconds: AtomicU64,
    steps: AtomicU64,
}

/// An observer that measures another one.
fn timed(mut inner: StepObserver, spent: Arc<Spent>) -> StepObserver {
    StepObserver {
        requests: inner.requests,
        observe: Box::new(move |report| {
            let began = Instant::now();
            (inner.observe)(report);
            let took = began.elapsed().as_nanos() as u64;
            spent.nanoseconds.fetch_add(took, Ordering::Relaxed);
            spent.steps.fetch_add(1, Ordering::Relaxed);
        }),
    }
}

fn discarding() -> StepObserver {
    StepObserver {
        requests: false,
        observe: Box::new(|report| drop(black_box(report))),
    }
}

/// The nanoseconds that `inner` takes for a step, while `rows` sequences get `tokens` tokens each.
fn turn(served: &Served, inner: StepObserver, rows: usize, tokens: usize) -> anyhow::Result<f64> {
    let engine = &served.engine;
    let spent = Arc::new(Spent::default());
    engine.observe(timed(inner, Arc::clone(&spent)));
    let request = || Request {
        prompt: vec![1, 2, 3],
        params: SamplingParams {
            max_tokens: tokens,
            temperature: 0.0,
            ..SamplingParams::default()
        },
        ..Request::default()
    };
    // Nobody reads the tokens as they come: the engine's thread would have to wake the reader.
    let generations = engine.submit_all((0..rows).map(|_| request()).collect())?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while spent.steps.load(Ordering::Relaxed) < tokens as u64 || engine.stats().running > 0 {
        anyhow::ensure!(Instant::now() < deadline, "a turn took more than a minute");
        thread::sleep(Duration::from_millis(1));
    }
    drop(generations);
    let steps = spent.steps.load(Ordering::Relaxed);
    Ok(spent.nanoseconds.load(Ordering::Relaxed) as f64 / steps as f64)
}

/// The median, and the interval that has the median of all possible values in 95 of 100 cases: the
/// ranks follow from the binomial distribution.
fn median(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let (middle, away) = (values.len() / 2, (values.len() as f64).sqrt() * 0.98);
    let away = (away.ceil() as usize).min(middle);
    let high = (middle + away).min(values.len() - 1);
    [values[middle], values[middle - away], values[high]]
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    anyhow::ensure!(cli.pairs > 0, "--pairs must be at least 1, given 0");
    anyhow::ensure!(
        (1..CONTEXT - 3).contains(&cli.tokens),
        "--tokens must be from 1 to {}, given {}",
        CONTEXT - 4,
        cli.tokens
    );
    let step = Duration::from_micros(cli.step_us);
    let config = EngineConfig {
        max_running: SEQUENCES,
        max_batch_tokens: SEQUENCES * CONTEXT,
        ..EngineConfig::default()
    };
    let cached = config.prefix_cache;
    let served = served(config, move || {
        let began = Instant::now();
        while began.elapsed() < step {
            std::hint::spin_loop();
        }
    })?;
    let telemetry = Telemetry::local();
    attach(&telemetry, &served)?;
    println!(
        "| sequences | discarded, ns a step | more with telemetry, ns a step | 95 % | ns a token |"
    );
    println!("|---|---|---|---|---|");
    for rows in [1, 8, 64] {
        let (mut without, mut more) = (Vec::new(), Vec::new());
        // The first pair warms up.
        for pair in 0..=cli.pairs {
            let off = || turn(&served, discarding(), rows, cli.tokens);
            let on = || turn(&served, observer(&telemetry, cached), rows, cli.tokens);
            // Neither always comes second.
            let (off, on) = if pair % 2 == 0 {
                let off = off()?;
                (off, on()?)
            } else {
                let on = on()?;
                (off()?, on)
            };
            if pair > 0 {
                without.push(off);
                more.push(on - off);
            }
        }
        let ([base, ..], [middle, low, high]) = (median(without), median(more));
        let each = middle / rows as f64;
        println!("| {rows} | {base:.0} | {middle:.1} | {low:.1} to {high:.1} | {each:.1} |");
    }
    let page = telemetry
        .scrape(TextFormat::Prometheus)
        .context("there are no metrics")?;
    let dropped = page
        .lines()
        .find(|line| line.starts_with("hearth_telemetry_dropped_total"));
    println!("{}", dropped.unwrap_or_default());
    Ok(())
}
