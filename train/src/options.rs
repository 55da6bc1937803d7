//! The command line of `hearth-train`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::corpus::styles::Style;

/// Makes hearth-tiny: its corpus, its tokenizer, its weights, its evaluation.
#[derive(Debug, Parser)]
#[command(name = "hearth-train", version, about)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print conversations of the corpus.
    Samples {
        #[arg(long, default_value_t = 0)]
        seed: u64,
        #[arg(long, default_value_t = 20)]
        count: u64,
        /// Show held-out conversations instead of training ones.
        #[arg(long)]
        held_out: bool,
        /// One JSON object with `messages` per line.
        #[arg(long)]
        json: bool,
    },
    /// Train the tokenizer and write tokenizer.json and tokenizer_config.json.
    Tokenizer {
        #[arg(long)]
        out: PathBuf,
    },
    /// Train, evaluate and write a checkpoint in Hugging Face's format.
    Train(TrainOptions),
    /// Train an adapter (LoRA) that gives hearth-tiny's answers another style, on the CPU in a few
    /// minutes, and write it as PEFT does.
    Adapter(AdapterOptions),
    /// Evaluate the checkpoint in `--out` again and rewrite its model card. Of the other options,
    /// only those about the device, the prompts and the stories apply.
    Evaluate(TrainOptions),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    Cpu,
    Cuda,
    Vulkan,
}

#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub struct TrainOptions {
    /// Folder that receives the checkpoint, the curves and the model card.
    #[arg(long)]
    #[serde(skip)]
    pub out: PathBuf,
    /// Begin with the weights of this checkpoint folder instead of random ones.
    #[arg(long)]
    #[serde(skip)]
    pub from: Option<PathBuf>,
    #[arg(long, value_enum, default_value = "cpu")]
    pub device: DeviceKind,
    /// End after this many steps.
    #[arg(long, default_value_t = 1_000_000)]
    pub steps: u64,
    /// End training after this many minutes, not counting the last evaluation.
    #[arg(long, default_value_t = 110.0)]
    pub minutes: f64,
    /// Rows of a batch.
    #[arg(long, default_value_t = 6)]
    pub batch: usize,
    /// Tokens of a row.
    #[arg(long, default_value_t = 224)]
    pub length: usize,
    /// Every N steps, train on a third of the rows, each three times as long, with longer
    /// conversations; 0 for never.
    #[arg(long, default_value_t = 4)]
    pub long_every: u64,
    /// Threads that share the rows of a batch on the CPU; 0 for one per core.
    #[arg(long, default_value_t = 0)]
    #[serde(skip)]
    pub shards: usize,
    /// Peak learning rate.
    #[arg(long, default_value_t = 2.5e-3)]
    pub lr: f64,
    #[arg(long, default_value_t = 100)]
    pub warmup: u64,
    #[arg(long, default_value_t = 0.05)]
    pub weight_decay: f32,
    /// Largest joint norm of the gradients.
    #[arg(long, default_value_t = 1.0)]
    pub clip: f32,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Evaluate and save every N minutes.
    #[arg(long, default_value_t = 30.0)]
    pub every: f64,
    /// Prompts per held-out suite in the last evaluation; earlier evaluations take a quarter.
    #[arg(long, default_value_t = 250)]
    pub prompts: usize,
    /// Stories generated for the last evaluation.
    #[arg(long, default_value_t = 24)]
    pub stories: usize,
    /// Threads that make batches.
    #[arg(long, default_value_t = 1)]
    pub workers: usize,
    #[command(flatten)]
    pub shape: Shape,
}

#[derive(Debug, Clone, Args)]
pub struct AdapterOptions {
    #[arg(long, value_enum)]
    pub style: Style,
    /// Folder that receives adapter_config.json and adapter_model.safetensors.
    #[arg(long)]
    pub out: PathBuf,
    /// Folder of the model that is adapted.
    #[arg(long, default_value = "model/hearth-tiny")]
    pub base: PathBuf,
    #[arg(long, default_value_t = 4)]
    pub rank: usize,
    /// The scale is this divided by the rank.
    #[arg(long, default_value_t = 8.0)]
    pub alpha: f64,
    #[arg(long, default_value_t = 300)]
    pub steps: u64,
    /// Rows of a batch.
    #[arg(long, default_value_t = 6)]
    pub batch: usize,
    /// Tokens of a row.
    #[arg(long, default_value_t = 128)]
    pub length: usize,
    /// Peak learning rate.
    #[arg(long, default_value_t = 5e-3)]
    pub lr: f64,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Held-out requests that are answered at the end.
    #[arg(long, default_value_t = 40)]
    pub prompts: u64,
}

/// The model's size.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub struct Shape {
    #[arg(long, default_value_t = 128)]
    pub hidden: usize,
    #[arg(long, default_value_t = 4)]
    pub layers: usize,
    #[arg(long, default_value_t = 4)]
    pub heads: usize,
    #[arg(long, default_value_t = 2)]
    pub kv_heads: usize,
    #[arg(long, default_value_t = 32)]
    pub head_dim: usize,
    #[arg(long, default_value_t = 384)]
    pub intermediate: usize,
}
