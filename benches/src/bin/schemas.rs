//! `hearth-schemas`: measures structured output over a directory of JSON Schemas with instances.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use hearth_benches::schemas::{self, Settings};

/// Measure which JSON Schemas compile, which instances are accepted, and how long that takes. The
/// directory has the files of JSONSchemaBench: {"schema", "tests": [{"valid", "data"}]}.
#[derive(Parser)]
#[command(name = "hearth-schemas", version)]
struct Cli {
    /// Directory of JSON files
    directory: PathBuf,
    /// Vocabulary in tiktoken's format (base64 bytes and rank per line), without which a token is a byte
    #[arg(long)]
    vocabulary: Option<PathBuf>,
    /// Number of the vocabulary's tokens to use
    #[arg(long, default_value_t = 128_000)]
    tokens: usize,
    /// Measure only every Nth file
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    every: u32,
    /// Number of threads that measure
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// Number of names to print of each kind of failure, and of the slowest schemas
    #[arg(long, default_value_t = 0)]
    list: usize,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let settings = Settings {
        directory: cli.directory,
        vocabulary: cli.vocabulary,
        tokens: cli.tokens,
        every: cli.every as usize,
        threads: cli.threads as usize,
        list: cli.list,
    };
    match schemas::run(settings) {
        Ok(report) => {
            print!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
