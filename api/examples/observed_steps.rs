//! Measures what telemetry costs the engine's thread in a running engine: the CPU time of that thread for
//! a step, with telemetry and without an observer, in turns. The engine is a real one, with a model that
//! answers every token with `a` after a given time. Only Linux reports the CPU time of a thread.
//!
//!     cargo build --release -p hearth-api --example observed_steps
//!     taskset -c 0 target/release/examples/observed_steps
//!
//! Its threads need one CPU alone: waking a thread on another CPU of a virtual machine takes microseconds or
//! not, as that CPU sleeps or not, and this is larger than what is to be measured.
//!
//! The difference has everything that telemetry causes on this thread: making the reports of steps,
//! handing them over, and what that displaces from the processor's caches. Two engines are
//! compared, so that new ones are made after some pairs of turns: the addresses of their memory
//! matter.

mod letters;

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use hearth_api::served::Served;
use hearth_api::telemetry::attach;
use hearth_engine::{EngineConfig, Request, SamplingParams};
use hearth_otel::{Telemetry, TextFormat};
use letters::{CONTEXT, SEQUENCES, served};

/// The cost of telemetry on the engine's thread, with and without it in turns.
#[derive(Debug, Parser)]
#[command(name = "observed_steps")]
struct Cli {
    /// Pairs of turns for each number of sequences
    #[arg(long, default_value_t = 200)]
    pairs: usize,
    /// Pairs after which new engines are made
    #[arg(long, default_value_t = 10)]
    life: usize,
    /// Tokens of each sequence in a turn
    #[arg(long, default_value_t = 500)]
    tokens: usize,
    /// Time of a step on the model's thread, which computes nothing but does not sleep
    #[arg(long, default_value_t = 100)]
    step_us: u64,
}

/// The threads of engines.
fn engine_threads() -> anyhow::Result<BTreeSet<String>> {
    let tasks = fs::read_dir("/proc/self/task").context("only Linux lists threads")?;
    let ids = tasks.map(|task| Ok(task?.file_name().to_string_lossy().into_owned()));
    let ids: anyhow::Result<BTreeSet<String>> = ids.collect();
    let mut ids = ids?;
    // A thread that has ended meanwhile is left out.
    ids.retain(|id| {
        fs::read_to_string(format!("/proc/self/task/{id}/comm"))
            .is_ok_and(|name| name.starts_with("hearth-engine"))
    });
    Ok(ids)
}

/// An engine and the id of its thread.
struct Running {
    served: Served,
    thread: String,
}

impl Running {
    fn start(step: Duration) -> anyhow::Result<Self> {
        let config = EngineConfig {
            max_running: SEQUENCES,
            max_batch_tokens: SEQUENCES * CONTEXT,
            ..EngineConfig::default()
        };
        let before = engine_threads()?;
        let served = served(config, move || {
            let began = Instant::now();
            while began.elapsed() < step {
                std::hint::spin_loop();
            }
        })?;
        let after = engine_threads()?;
        let thread = after.difference(&before).next().cloned();
        Ok(Self {
            served,
            thread: thread.context("the engine has no thread")?,
        })
    }

    /// The CPU time of the engine's thread so far, in nanoseconds.
    fn spent(&self) -> anyhow::Result<u64> {
        let path = format!("/proc/self/task/{}/schedstat", self.thread);
        let times = fs::read_to_string(path)?;
        let first = times.split_whitespace().next();
        Ok(first.context("an empty schedstat")?.parse()?)
    }

    /// The nanoseconds that the engine's thread takes for a step, while `rows` sequences get `tokens`
    /// tokens each.
    fn turn(&self, rows: usize, tokens: usize) -> anyhow::Result<f64> {
        let engine = &self.served.engine;
        let before = (self.spent()?, engine.stats().steps);
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
        while engine.stats().steps < before.1 + tokens as u64 || !engine.stats().is_idle() {
            anyhow::ensure!(Instant::now() < deadline, "a turn took more than a minute");
            thread::sleep(Duration::from_millis(1));
        }
        // By then it waits for the next request.
        thread::sleep(Duration::from_millis(1));
        drop(generations);
        let steps = engine.stats().steps - before.1;
        Ok((self.spent()? - before.0) as f64 / steps as f64)
    }
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
    anyhow::ensure!(cli.life > 0, "--life must be at least 1, given 0");
    anyhow::ensure!(
        (1..CONTEXT - 3).contains(&cli.tokens),
        "--tokens must be from 1 to {}, given {}",
        CONTEXT - 4,
        cli.tokens
    );
    let step = Duration::from_micros(cli.step_us);
    println!(
        "| sequences | without, ns a step | more with telemetry, ns a step | 95 % | ns a token |"
    );
    println!("|---|---|---|---|---|");
    let mut dropped = Vec::new();
    for rows in [1, 8, 64] {
        let (mut without, mut more) = (Vec::new(), Vec::new());
        while more.len() < cli.pairs {
            let (off, on) = (Running::start(step)?, Running::start(step)?);
            let telemetry = Telemetry::local();
            attach(&telemetry, &on.served)?;
            // The first pair warms up.
            for pair in 0..=cli.life {
                // Neither always comes second.
                let (base, with) = if pair % 2 == 0 {
                    let base = off.turn(rows, cli.tokens)?;
                    (base, on.turn(rows, cli.tokens)?)
                } else {
                    let with = on.turn(rows, cli.tokens)?;
                    (off.turn(rows, cli.tokens)?, with)
                };
                if pair > 0 {
                    without.push(base);
                    more.push(with - base);
                }
            }
            let page = telemetry.scrape(TextFormat::Prometheus);
            let page = page.context("there are no metrics")?;
            let mut lines = page.lines();
            let line = lines.find(|line| line.starts_with("hearth_telemetry_dropped_total"));
            dropped.extend(line.map(str::to_owned));
        }
        let ([base, ..], [middle, low, high]) = (median(without), median(more));
        let each = middle / rows as f64;
        println!("| {rows} | {base:.0} | {middle:.1} | {low:.1} to {high:.1} | {each:.1} |");
    }
    dropped.sort();
    dropped.dedup();
    println!("{}", dropped.join("\n"));
    Ok(())
}
