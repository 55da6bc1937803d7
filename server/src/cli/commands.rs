//! Arguments of `chat`, `top`, `bench`, `devices` and `doctor`.

use std::path::PathBuf;

use clap::Args;

use super::flags::{FileArgs, ModelFlags};

#[derive(Debug, Args)]
pub struct ChatArgs {
    /// URL of a running server to chat with [default: load the model in this process]
    // Does not conflict with `config`: HEARTH_CONFIG may be set for a server on this machine.
    #[arg(long, conflicts_with_all = [
        "model", "device", "dtype", "quantization", "load_format", "deterministic", "no_autotune", "max_model_len", "kv_tokens",
        "swa_full_tokens_ratio", "kv_cache_dtype", "prefill_chunk", "log_format", "log_level",
    ])]
    pub url: Option<String>,
    /// API key of that server [default: HEARTH_API_KEY, then OPENAI_API_KEY]
    #[arg(long, requires = "url", value_name = "KEY")]
    pub api_key: Option<String>,
    /// System message at the start of the conversation [default: none]
    #[arg(long)]
    pub system: Option<String>,
    /// Sampling temperature; 0 always takes the likeliest token [default: the model's]
    #[arg(long)]
    pub temperature: Option<f64>,
    /// Longest response, in tokens [default: up to the context length]
    #[arg(long)]
    pub max_tokens: Option<usize>,
    /// Seed of the sampling; the same seed gives the same responses [default: random]
    #[arg(long)]
    pub seed: Option<u64>,
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub flags: ModelFlags,
}

#[derive(Debug, Args)]
pub struct TopArgs {
    /// URL of the server
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    pub url: String,
    /// API key of the server, if it needs one
    #[arg(
        long,
        value_name = "KEY",
        env = "HEARTH_API_KEY",
        hide_env_values = true
    )]
    pub api_key: Option<String>,
    /// Seconds between two pictures
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", value_parser = interval)]
    pub interval: f64,
    /// Print one picture of the first interval, without control characters, and exit
    #[arg(long)]
    pub once: bool,
}

fn interval(given: &str) -> Result<f64, String> {
    let seconds: f64 = given.parse().map_err(|_| "not a number".to_owned())?;
    if (0.1..=3600.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("must be between 0.1 and 3600 seconds".to_owned())
    }
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Tokens before each prompt, which all sequences share. Only the first chunk of them is
    /// computed; the KV cache of the rest has copies of it
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub context: u32,
    /// Length of each prompt, in tokens
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_tokens: u32,
    /// Tokens to decode per sequence
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub decode_tokens: u32,
    /// Batch sizes to measure, as a comma-separated list
    #[arg(long, default_value = "1,8", value_delimiter = ',', value_name = "N,N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub batch: Vec<u32>,
    /// Repetitions of each measurement, of which the median is printed
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: u32,
    /// Also print the time of each operation in a step (on the CPU only)
    #[arg(long)]
    pub breakdown: bool,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub flags: ModelFlags,
}

#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Print a JSON object in place of the list
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Device to examine, in the form of `serve --device` [default: all usable devices]
    #[arg(long)]
    pub device: Option<String>,
    /// Number of random cases per kernel and number format
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub cases: u32,
    /// Seed of the random inputs [default: random]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Skip the timing of the kernels
    #[arg(long)]
    pub no_speed: bool,
    /// Also test and time the kernels among which `serve` selects at its first start, which takes
    /// minutes on a GPU
    #[arg(long)]
    pub autotune: bool,
    /// Also run the models of this directory, such as model/goldens, that come with reference
    /// logits, and compare their logits
    #[arg(long, value_name = "DIR")]
    pub goldens: Option<PathBuf>,
    /// Print one JSON object instead of the text
    #[arg(long)]
    pub json: bool,
}
