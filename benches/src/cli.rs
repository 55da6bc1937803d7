//! The flags of `hearth-load`.

use clap::{Parser, ValueEnum};

/// Measure a server with OpenAI's completions API under closed-loop load: each of
/// --concurrency clients sends its next request when its last one is answered.
#[derive(Clone, Debug, Parser)]
#[command(name = "hearth-load", version)]
pub struct Cli {
    /// URL of the server: Hearth, llama-server, vLLM, SGLang or another one
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    pub url: String,
    /// Model id to request [default: the first one that the server lists]
    #[arg(long)]
    pub model: Option<String>,
    /// Number of requests to measure
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub requests: u32,
    /// Number of requests in flight at a time
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrency: u32,
    /// Number of requests to send one by one before the measurement
    #[arg(long, default_value_t = 1)]
    pub warmup: u32,
    /// Tokens of each prompt that differ from all other prompts
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_tokens: u32,
    /// Tokens at the start of each prompt that all requests share
    #[arg(long, default_value_t = 0)]
    pub shared_prefix: u32,
    /// Tokens to generate per request; the end-of-sequence token is ignored
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub output_tokens: u32,
    /// Form of the prompts: token ids, with exact lengths, or words, which any server accepts and
    /// whose lengths are approximate
    #[arg(long, value_enum, default_value_t = PromptForm::Tokens)]
    pub prompts: PromptForm,
    /// Upper bound of the token ids in prompts, which are drawn from 10 on
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(11..))]
    pub vocab: u32,
    /// Seed of the prompts; the same seed gives the same prompts
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Additional fields of every request, as a JSON object such as '{"cache_prompt": false}'
    #[arg(long, value_name = "JSON", value_parser = parse_extra)]
    pub extra: Option<Extra>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub json: bool,
}

/// Fields merged into every request.
pub type Extra = serde_json::Map<String, serde_json::Value>;

fn parse_extra(text: &str) -> Result<Extra, String> {
    serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))
}

/// The form of the prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PromptForm {
    Tokens,
    Words,
}
