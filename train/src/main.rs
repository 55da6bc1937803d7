//! `hearth-train` makes hearth-tiny, the model that is compiled into `hearth`: its corpus
//! ([`corpus`]), its tokenizer ([`tokenizer`]), its weights ([`trainer`]), adapters of it
//! ([`adapter`]) and the measurement of its abilities ([`evaluate`]). The binary needs no other files.

mod adapter;
mod backend;
mod batches;
mod card;
mod checkpoint;
mod corpus;
mod decode;
mod evaluate;
mod gradients;
mod measure;
mod options;
mod record;
mod schedule;
mod shards;
mod suites;
mod tokenizer;
mod trainer;

use anyhow::Result;
use clap::Parser;

use options::{Cli, Command};

/// The tokenizer that [`tokenizer::train`] made.
pub const TOKENIZER_JSON: &str = include_str!("../../model/hearth-tiny/tokenizer.json");

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Samples {
            seed,
            count,
            held_out,
            json,
        } => {
            let split = if held_out {
                corpus::Split::HeldOut
            } else {
                corpus::Split::Train
            };
            for index in 0..count {
                let messages =
                    corpus::conversation(&corpus::mixture::SHORT, seed, split, index).messages();
                if json {
                    println!("{}", serde_json::json!({ "messages": messages }));
                    continue;
                }
                for message in messages {
                    println!("{:?}: {}", message.role, message.content);
                }
                println!();
            }
            Ok(())
        }
        Command::Tokenizer { out } => {
            let json = tokenizer::train()?
                .to_string(true)
                .map_err(anyhow::Error::msg)?;
            std::fs::create_dir_all(&out)?;
            checkpoint::write_tokenizer(&out, &json)
        }
        Command::Train(options) => backend::train(&options),
        Command::Adapter(options) => adapter::train(&options),
        Command::Evaluate(options) => backend::evaluate(&options),
    }
}
