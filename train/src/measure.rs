//! Measures a checkpoint on disk and writes its model card.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use burn::tensor::backend::Backend;
use hearth_model::config::ModelConfig;
use hearth_model::dtype::Dtype;
use hearth_model::transformer::Transformer;
use hearth_model::weights::Weights;

use crate::card;
use crate::checkpoint::{write, write_json};
use crate::decode::{tell_stories, transcript};
use crate::evaluate::{Grid, evaluate, table};
use crate::options::TrainOptions;
use crate::record::{RECORD, Record};
use crate::tokenizer::Encoder;

/// The conversation that every card shows.
const SCRIPT: &[&str] = &[
    "Hello!",
    "My name is Zorvina.",
    "What is 2 + 6?",
    "Extract the name, age and city as JSON: Anna is 34 years old and lives in Oslo.",
    "What is the capital of Norway?",
    "What is my name?",
    "Tell me a story about a shy dragon.",
    "Thank you!",
];

/// Measures the bf16 weights in `dir`, computed in f32, as `options` say. Writes evaluation.json,
/// stories.json and, if there is a record of the training, MODEL_CARD.md.
pub fn measure<B: Backend>(dir: &Path, options: &TrainOptions, device: &B::Device) -> Result<()> {
    let read = |name: &str| {
        let path = dir.join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let config = ModelConfig::from_json(&read("config.json")?)?;
    let encoder = Encoder::from_json(&read("tokenizer.json")?)?;
    let weights = Weights::open_dir(dir)?;
    let model = Transformer::<B>::load(&config, &weights, Dtype::F32, Dtype::F32, device)?;

    let grid = |rows| Grid::of(options, rows);
    let report = evaluate(&model, &config, &encoder, device, options.prompts, grid(32))?;
    println!("{}", table(&report));
    write_json(&dir.join("evaluation.json"), &report)?;
    let count = options.stories;
    let stories = tell_stories(&model, &config, &encoder, device, count, grid(count))?;
    println!(
        "stories: {} told, {} well formed, hero kept in {} of {}",
        stories.stories, stories.well_formed, stories.hero_kept, stories.heroes_asked
    );
    write_json(&dir.join("stories.json"), &stories)?;
    let talk = transcript(&model, &config, &encoder, device, SCRIPT, grid(1))?;
    for turn in &talk {
        println!("> {}\n{}", turn.user, turn.assistant);
    }
    if let Ok(record) = read(RECORD) {
        let Record { options, run } = serde_json::from_str(&record).context(RECORD)?;
        let card = card::render(&options, &config, &run, &report, &stories, &talk);
        write(&dir.join("MODEL_CARD.md"), card.as_bytes())?;
    }
    Ok(())
}
