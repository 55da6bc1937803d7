//! What is sent, how much of it, and how much at a time.

use clap::{Parser, ValueEnum};

/// Closed-loop load for a server with OpenAI's completions API: each of
/// --concurrency clients sends its next request when the last one is answered.
#[derive(Clone, Debug, Parser)]
#[command(name = "hearth-load", version)]
pub struct Cli {
    /// The server: Hearth, llama-server, vLLM, SGLang, ...
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    pub url: String,
    /// Model id [default: the first one the server lists]
    #[arg(long)]
    pub model: Option<String>,
    /// Requests measured
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub requests: u32,
    /// Requests in flight
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrency: u32,
    /// Requests sent one by one beforehand, and not counted
    #[arg(long, default_value_t = 1)]
    pub warmup: u32,
    /// Prompt tokens that differ in every request
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_tokens: u32,
    /// Prompt tokens in front of these that all requests share
    #[arg(long, default_value_t = 0)]
    pub shared_prefix: u32,
    /// Tokens generated per request; the end-of-sequence token is ignored
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub output_tokens: u32,
    /// Prompts as token ids (exact lengths), or as words (any server; lengths are approximate)
    #[arg(long, value_enum, default_value_t = PromptForm::Tokens)]
    pub prompts: PromptForm,
    /// Token ids are drawn from 10 to here: stay within every model's vocabulary
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(11..))]
    pub vocab: u32,
    /// Same seed, same prompts
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// More fields for every request, as a JSON object, e.g. '{"cache_prompt": false}'
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PromptForm {
    Tokens,
    Words,
}
