use std::process::ExitCode;

use clap::Parser;
use hearth_benches::cli::Cli;
use hearth_benches::{load, report};

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let run = runtime.block_on(load::run(cli))?;
    let summary = report::Summary::of(cli, &run);
    if cli.json {
        println!("{}", serde_json::to_string(&summary)?);
    } else {
        println!("{summary}");
    }
    anyhow::ensure!(
        summary.failed == 0,
        "{} requests failed: {}",
        summary.failed,
        run.first_error()
    );
    Ok(())
}
