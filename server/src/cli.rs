//! The command line. A flag that is not given is not serialised, so that the value of a lower
//! layer of the configuration applies (see [`crate::config`]).
//!
//! - `flags`: flags that set the configuration.
//! - `commands`: arguments of the other commands.
//! - `router`: arguments of `router`.
//! - `headings`: the headings of `--help`, completions and the man page.

mod commands;
mod flags;
mod headings;
mod router;

use clap::{Args, Parser, Subcommand};

pub use commands::{BenchArgs, ChatArgs, DevicesArgs, DoctorArgs, TopArgs};
pub use flags::{FileArgs, ModelFlags, ServeFlags};
pub use headings::{command, print_completions, print_man_page};
pub use router::{RouterArgs, RouterFlags};

use crate::config::{Config, ConfigError};

const EXAMPLES: &str = "\
Examples:
  hearth                                    serve the embedded model on 127.0.0.1:8000
  hearth serve --model ./Qwen3-0.6B         serve a Hugging Face checkpoint directory
  hearth serve --model ./Qwen3-0.6B.gguf    serve a GGUF file
  hearth serve --model Qwen/Qwen3-0.6B      download from the Hugging Face hub (HF_TOKEN, HF_HOME)
  hearth serve --device vulkan:1 --kv-tokens 65536
  hearth router --worker-urls http://127.0.0.1:8001 http://127.0.0.1:8002
  hearth chat                               talk to the embedded model, in this process
  hearth chat --url http://127.0.0.1:8000   talk to a running server
  hearth top                                watch the server on 127.0.0.1:8000
  hearth bench --model ./SmolLM2-135M --batch 1,8
  hearth serve --model ./Qwen3-0.6B --max-model-len 8192 --estimate
  hearth devices                            list the devices of this machine
  hearth doctor --device vulkan             test the kernels on a device, and time them
  hearth config > hearth.toml               save the configuration
  hearth completions bash > /etc/bash_completion.d/hearth

  curl http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"model\": \"hearth-tiny\", \"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story.\"}]}'

Configuration: flags override the environment, which overrides the configuration file (--config,
or ./hearth.toml), which overrides the defaults. Every flag of `serve` has an environment variable
and a key in the file: --kv-tokens is HEARTH_KV_TOKENS and `kv_tokens`. `hearth config` prints the
resulting configuration.";

/// A server for language models with OpenAI's API, on the CPU and on GPUs of any vendor
#[derive(Debug, Parser)]
#[command(name = "hearth", version, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub serve: ServeArgs,
}

impl Cli {
    /// True for a command whose work is its output. The others serve somebody, or hold the terminal.
    pub fn only_prints(&self) -> bool {
        match &self.command {
            None => self.serve.only_prints(),
            Some(Command::Serve(args)) => args.only_prints(),
            Some(Command::Router(args)) => args.print_config,
            Some(Command::Chat(_) | Command::Top(_)) => false,
            Some(_) => true,
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a model over HTTP; this is the default command
    Serve(Box<ServeArgs>),
    /// Route requests to several servers, or to pairs of prefill and decode servers
    Router(RouterArgs),
    /// Chat in the terminal, with a model loaded in this process or with a running server
    Chat(ChatArgs),
    /// Watch a running server in the terminal: requests, latencies, steps, caches
    Top(TopArgs),
    /// Measure the prefill and decode speed of a model, without HTTP
    Bench(BenchArgs),
    /// List the devices of this machine, and say which one `auto` selects
    Devices(DevicesArgs),
    /// Compare every kernel with a reference on each device, and time it
    Doctor(DoctorArgs),
    /// Print the resolved configuration as TOML
    Config(Box<ServeArgs>),
    /// Download a model of the Hugging Face Hub
    Pull {
        /// The model
        #[arg(value_name = "ORG/NAME")]
        model: String,
    },
    /// List the downloaded models
    List,
    /// Remove a downloaded model
    Rm {
        /// The model
        #[arg(value_name = "ORG/NAME")]
        model: String,
    },
    /// Print a script that completes this command line in a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the man page
    Man,
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
    /// Print the memory that the model needs, for several numbers of requests at a time, and exit
    #[arg(long)]
    pub estimate: bool,
}

impl ServeArgs {
    fn only_prints(&self) -> bool {
        self.print_config || self.estimate
    }

    /// Resolves the configuration from the flags, the environment and the file.
    ///
    /// # Errors
    /// See [`Config::resolve`].
    pub fn resolve(&self) -> Result<Config, ConfigError> {
        Config::resolve(self.file.config.as_deref(), &self.flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{OtlpProtocol, ReasoningParser, ToolCallParser};
    use clap::CommandFactory;

    #[test]
    fn the_command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_that_are_not_given_do_not_override_lower_layers() {
        let cli = Cli::parse_from(["hearth"]);
        assert_eq!(
            serde_json::to_value(&cli.serve.flags).unwrap(),
            serde_json::json!({})
        );
    }

    #[test]
    fn without_a_subcommand_the_flags_are_those_of_serve() {
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
    fn chat_with_a_running_server_refuses_the_flags_of_a_local_model() {
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
            api_keys_file: Some("".into()),
            allowed_hosts: Some(String::new()),
            cors: Some(String::new()),
            kv_events_config: Some(String::new()),
            show_hidden_metrics_for_version: Some(String::new()),
            custom_histogram_buckets: Some(String::new()),
            otlp_endpoint: Some(String::new()),
            otlp_protocol: Some(OtlpProtocol::Http),
            tool_call_parser: Some(ToolCallParser::Hermes),
            reasoning_parser: Some(ReasoningParser::Qwen3),
            speculative_config: Some(String::new()),
            speculative_algorithm: Some(String::new()),
            speculative_draft_model_path: Some(String::new()),
            speculative_num_draft_tokens: Some(1),
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
