//! The command line. A flag that is not given is not serialised, so that the
//! layers below it show through (see [`crate::config`]).

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};
use hearth_api::secret::Secret;
use serde::Serialize;

use crate::config::{
    Config, ConfigError, Dtype, HostCacheWritePolicy, JsonWhitespace, LoadFormat, LogFormat,
    LogStats, OtlpProtocol, Pooling, Quantization, RadixEvictionPolicy, ReasoningParser,
    SamplingDefaults, SchedulePolicy, Switch, ToolCallParser,
};

const EXAMPLES: &str = "\
Examples:
  hearth                                    serve the embedded model on 127.0.0.1:8000
  hearth serve --model ./Qwen3-0.6B         serve a Hugging Face checkpoint directory
  hearth serve --model ./Qwen3-0.6B.gguf    serve a GGUF file
  hearth serve --model Qwen/Qwen3-0.6B      the same, fetched from the hub (HF_TOKEN, HF_HOME)
  hearth serve --device vulkan:1 --kv-tokens 65536
  hearth chat                               talk to the embedded model, in this process
  hearth chat --url http://127.0.0.1:8000   talk to a running server
  hearth bench --model ./SmolLM2-135M --batch 1,8
  hearth devices                            what this machine can compute on
  hearth doctor --device vulkan             whether it computes rightly, and how fast
  hearth config > hearth.toml               write the configuration down

  curl http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"model\": \"hearth-tiny\", \"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story.\"}]}'

Configuration: flags > environment > file > defaults. Every flag of `serve` has a key in the
file (--config, or ./hearth.toml) and an environment variable: --kv-tokens is `kv_tokens` and
HEARTH_KV_TOKENS. `hearth config` prints the result.";

/// A language model server that speaks OpenAI's API, on the CPU and on any GPU.
#[derive(Debug, Parser)]
#[command(name = "hearth", version, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a model over HTTP (what `hearth` alone does)
    Serve(Box<ServeArgs>),
    /// Chat in the terminal, with a running server or with a model in this process
    Chat(ChatArgs),
    /// Measure prefill and decode speed, without HTTP
    Bench(BenchArgs),
    /// List the devices of this machine, and which one `auto` takes
    Devices(DevicesArgs),
    /// Run every kernel against a reference on each device, and time it
    Doctor(DoctorArgs),
    /// Print the resolved configuration as TOML
    Config(Box<ServeArgs>),
}

#[derive(Debug, Default, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub flags: ServeFlags,
    /// Print the resolved configuration as TOML and exit
    #[arg(long)]
    pub print_config: bool,
}

impl ServeArgs {
    /// # Errors
    /// See [`Config::resolve`].
    pub fn resolve(&self) -> Result<Config, ConfigError> {
        Config::resolve(self.file.config.as_deref(), &self.flags)
    }
}

#[derive(Debug, Default, Args)]
pub struct FileArgs {
    /// Configuration file [default: ./hearth.toml where it exists]
    #[arg(long, value_name = "FILE", env = "HEARTH_CONFIG")]
    pub config: Option<PathBuf>,
}

/// What is loaded, and onto what: shared by `serve`, `chat` and `bench`.
#[derive(Debug, Default, Args, Serialize)]
#[serde(rename_all = "snake_case")]
pub struct ModelFlags {
    /// Checkpoint directory, GGUF file or hub id (org/name) [default: the embedded hearth-tiny]
    #[arg(long, value_name = "DIR|FILE|ORG/NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// auto, cpu, cuda, vulkan, metal, dx12 or webgpu, with :index for one of several
    /// [default: auto]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Number format of weights and KV cache [default: auto]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<Dtype>,
    /// Round the weights to blocks of 32 with a scale when they are loaded [default: as they are
    /// stored]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<Quantization>,
    /// Where the weights come from; dummy: random, from config.json alone [default: auto]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_format: Option<LoadFormat>,
    /// Give the same bits whatever else is in the batch or in the cache: the CPU always does, on a
    /// GPU it makes prompts slower
    #[arg(long, action = ArgAction::SetTrue)]
    #[serde(skip_serializing_if = "is_false")]
    pub deterministic: bool,
    /// On a GPU, do not time the kernels for products of many tokens at the first start, to take
    /// the quickest
    #[arg(long = "no-autotune", action = ArgAction::SetTrue)]
    #[serde(
        rename = "autotune",
        serialize_with = "negated",
        skip_serializing_if = "is_false"
    )]
    pub no_autotune: bool,
    /// Longest prompt + output, in tokens [default: the checkpoint's]
    #[arg(long, value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<usize>,
    /// Size of the KV cache, in tokens [default: from the device's memory]
    #[arg(long, value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_tokens: Option<usize>,
    /// Prompt tokens computed in one step [default: 512]
    #[arg(long, value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_chunk: Option<usize>,
    /// Log lines on standard error: text or json [default: text]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_format: Option<LogFormat>,
    /// Log filter, e.g. info or hearth_engine=debug,info [default: info; chat and bench: warn]
    #[arg(long, value_name = "FILTER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_level: Option<String>,
}

#[derive(Debug, Default, Args, Serialize)]
pub struct ServeFlags {
    /// Address to listen on [default: 127.0.0.1]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Port to listen on; 0 takes a free one [default: 8000]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The model's id in the API [default: the name of the directory or
    /// GGUF file, or the hub id]
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served_model_name: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    pub model: ModelFlags,
    /// Sequences computed together in one step [default: 64]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_running_requests: Option<usize>,
    /// Tokens computed in one step, of prompts and outputs together; --prefill-chunk bounds
    /// one prompt's share [default: --prefill-chunk + --max-running-requests]
    #[arg(long, value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_batch_tokens: Option<usize>,
    /// Tokens of KV kept in the host's memory when the device has no room for them
    /// [default: 0]
    #[arg(long, value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_cache_tokens: Option<usize>,
    /// When what is cached is copied there [default: write_back]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_cache_write_policy: Option<HostCacheWritePolicy>,
    /// Who of the waiting starts next [default: lpm]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_policy: Option<SchedulePolicy>,
    /// Sequences that may wait; more get 503 and Retry-After [default: 512]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_queue: Option<usize>,
    /// Compute every prompt from its first token: share no prefixes
    #[arg(long = "no-prefix-cache", action = ArgAction::SetTrue)]
    #[serde(
        rename = "prefix_cache",
        serialize_with = "negated",
        skip_serializing_if = "is_false"
    )]
    pub no_prefix_cache: bool,
    /// Tokens that are cached and matched together: a power of two up to 64 [default: 1]
    #[arg(long, value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_size: Option<usize>,
    /// Which cached prefix goes when room is needed [default: lru]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub radix_eviction_policy: Option<RadixEvictionPolicy>,
    /// What a request gets for sampling fields it leaves out: the model's
    /// generation_config.json, or OpenAI's defaults [default: model]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling_defaults: Option<SamplingDefaults>,
    /// Append text that a request's grammar forces without sampling it [default: on]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jump_forward: Option<Switch>,
    /// How JSON of a schema is laid out [default: natural]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json_whitespace: Option<JsonWhitespace>,
    /// Hidden states that make an embedding [default: last]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pooling: Option<Pooling>,
    /// How the model writes calls of tools [default: as its chat template shows]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_parser: Option<ToolCallParser>,
    /// How the model marks its reasoning, which is then given apart [default: not at all]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_parser: Option<ReasoningParser>,
    /// Largest request body, in bytes [default: 16777216]
    #[arg(long, value_name = "BYTES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_body_bytes: Option<usize>,
    /// Threads that serve HTTP [default: 2]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_workers: Option<usize>,
    /// Let in only clients with this key (better as HEARTH_API_KEY: other users of the machine
    /// see flags) [default: everybody]
    #[arg(long, value_name = "KEY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<Secret>,
    /// Key of the routes that flush the cache, abort and pause [default: --api-key]
    #[arg(long, value_name = "KEY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_api_key: Option<Secret>,
    /// Origins of web pages that may read answers, comma-separated, or * [default: none]
    #[arg(long, value_name = "ORIGINS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cors: Option<String>,
    /// Speak HTTPS (and HTTP/2) with this certificate chain, a PEM file [default: plain HTTP]
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert, a PEM file
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// Seconds that a client may stop reading in the middle of a stream before it is cut off
    /// [default: 60]
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_timeout: Option<u64>,
    /// Seconds that running requests get to finish on SIGINT or SIGTERM [default: 30]
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shutdown_timeout: Option<u64>,
    /// Whose names /metrics shows: a list of vllm, sglang, otel, plain [default: vllm,otel]
    #[arg(long, value_name = "NAMES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_names: Option<String>,
    /// Show the metrics that vLLM has given up since this version, e.g. 0.8
    #[arg(long, value_name = "X.Y")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub show_hidden_metrics_for_version: Option<String>,
    /// Bounds of histograms, as JSON: '{"time_to_first_token": [0.1, 0.5, 1]}' [default: those
    /// of vLLM, SGLang and OpenTelemetry]
    #[arg(long, value_name = "JSON")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom_histogram_buckets: Option<String>,
    /// Send traces and metrics there by OTLP, e.g. http://localhost:4318 [default: as
    /// OTEL_EXPORTER_OTLP_ENDPOINT says, else nowhere]
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_endpoint: Option<String>,
    /// How OTLP is spoken [default: http, or as OTEL_EXPORTER_OTLP_PROTOCOL says]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_protocol: Option<OtlpProtocol>,
    /// A trace for each step of the engine: a list of model (its forward), worker (its
    /// execution), all
    #[arg(long, value_name = "PARTS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collect_detailed_traces: Option<String>,
    /// Periodic log lines about the engine: vllm, sglang or off [default: vllm]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_stats: Option<LogStats>,
    /// Seconds between the lines of --log-stats vllm [default: 10]
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_stats_interval: Option<u64>,
    /// Decode steps between the lines of --log-stats sglang [default: 40]
    #[arg(long, value_name = "STEPS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_log_interval: Option<u64>,
}

fn is_false(value: &bool) -> bool {
    !*value
}

fn negated<S: serde::Serializer>(value: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(!*value)
}

#[derive(Debug, Args)]
pub struct ChatArgs {
    /// A running server [default: load the model in this process]
    // Not `config`: HEARTH_CONFIG may be set for the server on the same machine.
    #[arg(long, conflicts_with_all = [
        "model", "device", "dtype", "quantization", "load_format", "deterministic", "no_autotune", "max_model_len", "kv_tokens",
        "prefill_chunk", "log_format", "log_level",
    ])]
    pub url: Option<String>,
    /// System message to begin with
    #[arg(long)]
    pub system: Option<String>,
    /// Randomness, 0 for none [default: the model's]
    #[arg(long)]
    pub temperature: Option<f32>,
    /// Longest answer, in tokens [default: to the end of the context]
    #[arg(long)]
    pub max_tokens: Option<usize>,
    /// Same seed, same answer
    #[arg(long)]
    pub seed: Option<u64>,
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub flags: ModelFlags,
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Prompt length of the prefill measurement, in tokens
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_tokens: u32,
    /// Tokens decoded per sequence
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub decode_tokens: u32,
    /// Batch sizes, comma-separated
    #[arg(long, default_value = "1,8", value_delimiter = ',', value_name = "N,N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub batch: Vec<u32>,
    /// Times each measurement is repeated; the median is printed
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: u32,
    /// Also print what a step's time goes to, operation by operation (CPU only)
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
    /// Print JSON instead of the list
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// One device, as --device of serve [default: each that can be used]
    #[arg(long)]
    pub device: Option<String>,
    /// Random cases of each kernel in each number format
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub cases: u32,
    /// Seed of the random inputs [default: another each time]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Do not time the kernels
    #[arg(long)]
    pub no_speed: bool,
    /// Also try and time the kernels that serve chooses from at its first start: minutes on a GPU
    #[arg(long)]
    pub autotune: bool,
    /// Also run the models in this directory (model/goldens) that have logits to compare with
    #[arg(long, value_name = "DIR")]
    pub goldens: Option<PathBuf>,
    /// Print one JSON object instead of the text
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_not_given_leave_the_lower_layers_alone() {
        let cli = Cli::parse_from(["hearth"]);
        assert_eq!(
            serde_json::to_value(&cli.serve.flags).unwrap(),
            serde_json::json!({})
        );
    }

    #[test]
    fn flags_without_a_subcommand_are_those_of_serve() {
        let cli = Cli::parse_from(["hearth", "--port", "9", "--no-prefix-cache"]);
        assert_eq!(
            serde_json::to_value(&cli.serve.flags).unwrap(),
            serde_json::json!({"port": 9, "prefix_cache": false})
        );
        let cli = Cli::parse_from(["hearth", "serve", "--dtype", "bf16"]);
        let Some(Command::Serve(serve)) = cli.command else {
            panic!("not serve")
        };
        assert_eq!(
            serde_json::to_value(&serve.flags).unwrap(),
            serde_json::json!({"dtype": "bf16"})
        );
    }

    #[test]
    fn a_chat_with_a_server_takes_no_flag_of_a_model_in_this_process() {
        let command = Cli::command();
        let flags = ModelFlags::augment_args(clap::Command::new("flags"));
        for flag in flags.get_arguments() {
            let name = format!("--{}", flag.get_long().unwrap());
            let values = flag.get_possible_values();
            let value = values.first().map_or("1", |value| value.get_name());
            let url = ["hearth", "chat", "--url", "http://127.0.0.1:1"];
            let value = flag.get_action().takes_values().then_some(value);
            let given = url.into_iter().chain([name.as_str()]).chain(value);
            let error = command.clone().try_get_matches_from(given).unwrap_err();
            assert_eq!(
                error.kind(),
                clap::error::ErrorKind::ArgumentConflict,
                "{name} beside --url: {error}"
            );
        }
    }

    #[test]
    fn every_key_of_the_configuration_has_a_flag() {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        let flags: Vec<String> = serve
            .get_arguments()
            .filter_map(|arg| arg.get_long().map(str::to_owned))
            .collect();
        let full = Config {
            model: Some(String::new()),
            served_model_name: Some(String::new()),
            max_model_len: Some(1),
            kv_tokens: Some(1),
            max_batch_tokens: Some(1),
            api_key: "a".parse().ok(),
            admin_api_key: "a".parse().ok(),
            cors: Some(String::new()),
            show_hidden_metrics_for_version: Some(String::new()),
            custom_histogram_buckets: Some(String::new()),
            otlp_endpoint: Some(String::new()),
            otlp_protocol: Some(OtlpProtocol::Http),
            tool_call_parser: Some(ToolCallParser::Hermes),
            reasoning_parser: Some(ReasoningParser::Qwen3),
            collect_detailed_traces: Some(String::new()),
            ..Config::default()
        };
        let keys = serde_json::to_value(full).unwrap();
        for key in keys.as_object().unwrap().keys() {
            let flag = match key.as_str() {
                "prefix_cache" | "autotune" => format!("no-{}", key.replace('_', "-")),
                key => key.replace('_', "-"),
            };
            assert!(flags.contains(&flag), "--{flag} is missing");
        }
    }
}
