//! The hearth binary: command line, configuration, and what puts the other crates together.
//!
//! [`cli`] and [`config`] read the flags and the settings; [`load`] opens the checkpoint and starts
//! the engine over it. `serve` puts the HTTP server of `hearth_api` in front of the engine, and
//! [`chat`] a terminal; [`bench`](mod@bench) times the model without either.
//!
//! **Architecture Invariant.** This crate sees the model through
//! [`Executor`](hearth_forward::Executor) and `hearth_model`'s public types; it names no tensor
//! library. The model's tokenizer and the HTTP server meet in [`text`].

pub mod banner;
pub mod bench;
pub mod chat;
pub mod cli;
pub mod config;
mod devices;
mod disaggregation;
mod doctor;
mod draft_model;
mod estimate;
pub mod executor;
mod hub;
mod kernel_cache;
mod kv_events;
pub mod load;
mod load_formats;
mod lora;
mod pipe;
mod prefix_files;
mod router;
mod serve;
mod telemetry;
pub mod text;
mod top;
pub mod warmup;
mod wrap;

use cli::{Cli, Command};

/// Runs the command that the command line names.
///
/// # Errors
/// Why the command failed, as a text for people.
pub fn run(cli: Cli) -> anyhow::Result<()> {
    if cli.only_prints() {
        pipe::end_without_reader();
    }
    match cli.command {
        None => serve(&cli.serve),
        Some(Command::Serve(args)) => serve(&args),
        Some(Command::Config(args)) => print_config(&args),
        Some(Command::Router(args)) => router::run(&args),
        Some(Command::Chat(args)) => chat::run(&args),
        Some(Command::Top(args)) => top::run(&args),
        Some(Command::Bench(args)) => bench::run(&args),
        Some(Command::Pull { model }) => hub::pull(&model),
        Some(Command::List) => hub::list(),
        Some(Command::Rm { model }) => hub::remove(&model),
        Some(Command::Completions { shell }) => {
            cli::print_completions(shell);
            Ok(())
        }
        Some(Command::Man) => Ok(cli::print_man_page()?),
        Some(Command::Devices(args)) => devices::run(&args),
        Some(Command::Doctor(args)) => doctor::run(&args),
    }
}

fn serve(args: &cli::ServeArgs) -> anyhow::Result<()> {
    if args.print_config {
        print_config(args)
    } else if args.estimate {
        estimate::run(&args.resolve()?)
    } else {
        serve::run(args.resolve()?)
    }
}

fn print_config(args: &cli::ServeArgs) -> anyhow::Result<()> {
    print!("{}", args.resolve()?.to_toml());
    Ok(())
}
