//! `hearth-programs`: runs programs of the front-end language on a back end, and measures them.

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use hearth_benches::programs::{self, Program, Target};

/// Run programs of the front-end language on a back end, and print a line of JSON for each. Their
/// share of the best hit rate is computed for models whose tokens are single bytes.
#[derive(Parser)]
#[command(name = "hearth-programs", version)]
struct Cli {
    #[arg(long, value_enum)]
    backend: Backend,
    /// Base URL of the server, for the back ends `hearth` and `llama-server`
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    url: String,
    /// Programs to run (default: all)
    #[arg(long = "program", value_enum)]
    programs: Vec<Program>,
    /// Instances of each program, which run at the same time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    instances: u32,
    /// Flags of `hearth serve`, for the back end `engine`
    #[arg(last = true)]
    serve: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Backend {
    /// The engine in this process
    Engine,
    /// A Hearth server
    Hearth,
    /// llama-server, started with --metrics
    LlamaServer,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let target = match cli.backend {
        Backend::Engine => Target::Engine(cli.serve),
        Backend::Hearth => Target::Hearth(cli.url),
        Backend::LlamaServer => Target::LlamaServer(cli.url),
    };
    let programs = match cli.programs.as_slice() {
        [] => Program::value_variants(),
        some => some,
    };
    match programs::run(target, programs, cli.instances as usize) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
