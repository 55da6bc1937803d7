use std::process::ExitCode;

use clap::Parser;
use hearth_server::cli::Cli;

fn main() -> ExitCode {
    match hearth_server::run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
