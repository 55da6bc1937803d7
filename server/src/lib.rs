//! The hearth binary: command line, configuration, HTTP.
//!
//! Architecture invariant: this crate sees the model through `hearth_engine`'s
//! [`Executor`](hearth_engine::Executor) and `hearth_model`'s public types; it
//! names no tensor library. The two meet in [`executor`] alone.

pub mod banner;
pub mod cli;
pub mod config;
pub mod http;
pub mod served;
pub mod text;

pub fn run(_: cli::Cli) -> anyhow::Result<()> {
    Ok(())
}
