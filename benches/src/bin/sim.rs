//! `hearth-sim`: measures the scheduler, the prefix cache and clusters without a model.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use hearth_benches::sim::disaggregation::report::{self, Settings};
use hearth_benches::sim::{self, overhead, routing, saturation, tree, workload};
use hearth_engine::{EngineConfig, HostWritePolicy, SchedulePolicy};

/// Measure the scheduler, the prefix cache and clusters without a model.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure hit rate and makespan of every policy on the SGLang paper's kinds of workloads
    Policies {
        /// Number of requests, as a multiple of the smallest sensible number
        #[arg(long, default_value_t = 4)]
        scale: usize,
        /// Size of the KV cache on the simulated device, in tokens
        #[arg(long, default_value_t = 16_384)]
        kv_tokens: usize,
        /// Size of the KV cache in host memory, in tokens, for the runs with a second tier
        #[arg(long, default_value_t = 65_536)]
        host_tokens: usize,
    },
    /// Measure how long the device waits between two steps
    Overhead,
    /// Measure the radix tree's operations, by the number of cached tokens
    Tree {
        /// Numbers of cached tokens to measure, as a comma-separated list
        #[arg(long, value_delimiter = ',', default_value = "1000000,10000000")]
        tokens: Vec<usize>,
    },
    /// Simulate hit rates of the router's policies, with KV events and without
    Routing {
        /// Numbers of workers to simulate, as a comma-separated list
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "4,64",
            value_parser = clap::value_parser!(u32).range(1..)
        )]
        workers: Vec<u32>,
        /// Sizes of a worker's KV cache in tokens, as a comma-separated list
        #[arg(long, value_delimiter = ',', default_value = "32768,131072")]
        kv_tokens: Vec<usize>,
    },
    /// Simulate TTFT and ITL of clusters with and without prefill/decode disaggregation
    Disaggregation {
        /// Numbers of nodes to simulate, as a comma-separated list of numbers from 2 on
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "4,16,64,256",
            value_parser = clap::value_parser!(u32).range(2..)
        )]
        nodes: Vec<u32>,
        /// Number of requests per node, of which the figures show the second half; clusters of fewer
        /// than 16 nodes get as many requests as one of 16
        #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u32).range(8..))]
        requests: u32,
        /// Seed of the arrivals and lengths of requests
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
        seed: u64,
    },
    /// Simulate where `hearth:saturation:ratio` says that a server is full, and autoscalers that
    /// follow it, the queue, or the use of the GPU
    Saturation {
        /// Requests of a run that searches for the limit of one server
        #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u32).range(200..))]
        requests: u32,
        /// Simulated minutes of a run with an autoscaler
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(10..))]
        minutes: u32,
        /// Seed of the arrivals and lengths of requests
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
        seed: u64,
    },
}

const POLICIES: [(&str, SchedulePolicy); 6] = [
    ("fcfs", SchedulePolicy::Fcfs),
    ("lpm", SchedulePolicy::Lpm),
    ("dfs-weight", SchedulePolicy::DfsWeight),
    ("lof", SchedulePolicy::Lof),
    ("priority", SchedulePolicy::Priority),
    ("random", SchedulePolicy::Random),
];

fn config(schedule: SchedulePolicy) -> EngineConfig {
    EngineConfig {
        schedule,
        max_running: 64,
        max_queue: 100_000,
        max_batch_tokens: 576,
        prefill_chunk: 512,
        ..EngineConfig::default()
    }
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Policies {
            scale,
            kv_tokens,
            host_tokens,
        } => policies(scale, kv_tokens, host_tokens),
        Command::Overhead => overheads(),
        Command::Tree { tokens } => trees(&tokens),
        Command::Routing { workers, kv_tokens } => {
            println!("{}", routing::HEADER);
            routing::table(&workers, &kv_tokens, |row| println!("{row}"))
        }
        Command::Disaggregation {
            nodes,
            requests,
            seed,
        } => {
            clusters(&Settings {
                nodes: nodes.into_iter().map(|nodes| nodes as usize).collect(),
                requests: requests as usize,
                seed,
            });
            Ok(())
        }
        Command::Saturation {
            requests,
            minutes,
            seed,
        } => {
            saturation::tables(requests as usize, minutes, seed, |line| println!("{line}"));
            Ok(())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn policies(scale: usize, kv_tokens: usize, host_tokens: usize) -> anyhow::Result<()> {
    println!("| workload | policy | hit rate | of the optimum | makespan, s | computed tokens |");
    println!("|---|---|---|---|---|---|");
    for workload in workload::all(scale) {
        let mut runs =
            Vec::from(POLICIES.map(|(name, schedule)| (name, config(schedule), kv_tokens, 0)));
        let off = EngineConfig {
            prefix_cache: false,
            ..config(SchedulePolicy::Fcfs)
        };
        runs.push(("fcfs, no cache", off, kv_tokens, 0));
        let lpm = config(SchedulePolicy::Lpm);
        for (name, host_writes) in [
            ("lpm, write_back", HostWritePolicy::WriteBack),
            ("lpm, write_through", HostWritePolicy::WriteThrough),
            (
                "lpm, write_through_selective",
                HostWritePolicy::WriteThroughSelective,
            ),
        ] {
            let config = EngineConfig {
                host_writes,
                ..lpm.clone()
            };
            runs.push((name, config, kv_tokens, host_tokens));
        }
        runs.push(("lpm, cache without end", lpm, 8 << 20, 0));
        for (name, config, kv_tokens, host_tokens) in runs {
            let run = sim::run(&workload, config, kv_tokens, host_tokens)?;
            let share = match run.best_hit_rate {
                // Below 1 %, only single tokens are equal, by chance.
                best if best < 0.01 => "-".to_owned(),
                best => format!("{:.1} %", 100.0 * run.hit_rate / best),
            };
            println!(
                "| {} | {name} | {:.1} % | {share} | {:.1} | {} |",
                workload.name,
                100.0 * run.hit_rate,
                run.makespan,
                run.stats.computed_tokens,
            );
        }
    }
    Ok(())
}

fn overheads() -> anyhow::Result<()> {
    println!(
        "| policy | forward, ms | running | waiting | context | median, us | p99, us | worst, us | the first, us |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (name, schedule) in POLICIES {
        for takes in [0, 2] {
            for (running, waiting, context) in [(64, 0, 512), (64, 10_000, 512), (64, 10_000, 4096)]
            {
                let config = config(schedule);
                let time = Duration::from_millis(takes);
                let cost = overhead::measure(config, running, waiting, context, time)?;
                println!(
                    "| {name} | {takes} | {running} | {waiting} | {context} | {:.0} | {:.0} | {:.0} \
                     | {:.0} |",
                    cost.median, cost.p99, cost.worst, cost.first
                );
            }
        }
    }
    Ok(())
}

fn trees(tokens: &[usize]) -> anyhow::Result<()> {
    println!("| cached tokens | page | match, us | insert, us | evict, us | bytes a token |");
    println!("|---|---|---|---|---|---|");
    for &tokens in tokens {
        for page_size in [1, 16] {
            let costs = tree::measure(tokens, page_size)?;
            println!(
                "| {tokens} | {page_size} | {:.2} | {:.2} | {:.2} | {:.1} |",
                costs.matched, costs.inserted, costs.evicted, costs.bytes_per_token
            );
        }
    }
    Ok(())
}

fn clusters(settings: &Settings) {
    println!("{}", report::HEADER);
    report::table(settings, |row| println!("{row}"));
}
