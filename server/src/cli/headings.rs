//! The headings of `--help`, and what is made of the command line: completions and a man page.

use std::io;

use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;

use super::Cli;

/// The heading of flags that are named under no other.
const REST: &str = "Server";
/// Flags that are no settings; clap has them first.
const NO_SETTINGS: [&str; 5] = ["config", "print_config", "estimate", "help", "version"];
const HEADINGS: &[(&str, &[&str])] = &[
    (
        "Model",
        &[
            "model",
            "served_model_name",
            "device",
            "dtype",
            "quantization",
            "load_format",
            "deterministic",
            "no_autotune",
            "max_model_len",
        ],
    ),
    (
        "Scheduling and cache",
        &[
            "kv_tokens",
            "prefill_chunk",
            "max_running_requests",
            "max_batch_tokens",
            "max_submission_ms",
            "max_queue",
            "schedule_policy",
            "no_prefix_cache",
            "page_size",
            "radix_eviction_policy",
            "host_cache_tokens",
            "host_cache_write_policy",
        ],
    ),
    (
        "Speculative decoding",
        &[
            "speculative_config",
            "speculative_algorithm",
            "speculative_draft_model_path",
            "speculative_num_draft_tokens",
        ],
    ),
    (
        "Adapters (LoRA)",
        &[
            "enable_lora",
            "lora_modules",
            "lora_paths",
            "lora",
            "lora_scaled",
            "lora_init_without_apply",
            "max_loras",
            "max_lora_rank",
            "max_cpu_loras",
            "lora_dir",
        ],
    ),
    (
        "Requests and answers",
        &[
            "sampling_defaults",
            "jump_forward",
            "json_whitespace",
            "structured_strictness",
            "pooling",
            "tool_call_parser",
            "reasoning_parser",
            "special_tokens_in_messages",
        ],
    ),
    (
        "Server",
        &[
            "host",
            "port",
            "http_workers",
            "max_body_bytes",
            "tls_cert",
            "tls_key",
            "stall_timeout",
            "shutdown_timeout",
        ],
    ),
    (
        "Keys and web pages",
        &[
            "api_key",
            "admin_api_key",
            "api_keys_file",
            "cache_isolation",
            "allowed_hosts",
            "cors",
        ],
    ),
    (
        "Prefill/decode disaggregation and KV events",
        &[
            "disaggregation_mode",
            "disaggregation_bootstrap_port",
            "disaggregation_kv_port",
            "disaggregation_secret",
            "disaggregation_timeout",
            "disaggregation_fallback",
            "kv_events_config",
        ],
    ),
    (
        "Metrics, traces and logs",
        &[
            "disable_metrics",
            "metrics_names",
            "show_hidden_metrics_for_version",
            "custom_histogram_buckets",
            "otlp_endpoint",
            "otlp_protocol",
            "collect_detailed_traces",
            "log_stats",
            "log_stats_interval",
            "decode_log_interval",
            "stall_trace_dir",
            "log_format",
            "log_level",
        ],
    ),
];

/// The command line with its flags under headings.
pub fn command() -> Command {
    let mut command = Cli::command().mut_args(under_heading);
    for name in ["serve", "config"] {
        command = command.mut_subcommand(name, |command| command.mut_args(under_heading));
    }
    command
}

fn under_heading(arg: Arg) -> Arg {
    let id = arg.get_id().as_str();
    match NO_SETTINGS.contains(&id) {
        true => arg,
        false => {
            let heading = heading(id);
            arg.help_heading(heading)
        }
    }
}

fn heading(id: &str) -> &'static str {
    let mut headings = HEADINGS.iter();
    let found = headings.find(|(_, ids)| ids.contains(&id));
    found.map_or(REST, |(heading, _)| *heading)
}

/// Prints the completions of a shell.
pub fn print_completions(shell: Shell) {
    clap_complete::generate(shell, &mut command(), "hearth", &mut io::stdout());
}

/// Prints the man page, with a section for each command.
///
/// # Errors
/// Standard output cannot be written to.
pub fn print_man_page() -> io::Result<()> {
    let mut command = command();
    command.build();
    let mut out = io::stdout().lock();
    clap_mangen::Man::new(command.clone()).render(&mut out)?;
    for command in command
        .get_subcommands()
        .filter(|command| command.get_name() != "help")
    {
        let man = clap_mangen::Man::new(command.clone());
        man.render_name_section(&mut out)?;
        man.render_synopsis_section(&mut out)?;
        man.render_options_section(&mut out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_of_serve_is_under_a_heading_and_every_heading_names_settings() {
        let command = command();
        let serve = command.find_subcommand("serve").unwrap();
        for arg in serve.get_arguments() {
            let is_setting = !NO_SETTINGS.contains(&arg.get_id().as_str());
            assert_eq!(arg.get_help_heading().is_some(), is_setting, "{arg}");
        }
        for id in HEADINGS.iter().flat_map(|(_, ids)| *ids) {
            let is_flag = serve.get_arguments().any(|arg| arg.get_id() == id);
            assert!(is_flag, "there is no flag {id}");
        }
    }

    #[test]
    fn completions_and_the_man_page_name_the_commands() {
        let mut completions = Vec::new();
        clap_complete::generate(Shell::Bash, &mut command(), "hearth", &mut completions);
        let completions = String::from_utf8(completions).unwrap();
        assert!(completions.contains("doctor") && completions.contains("--kv-tokens"));
        let mut page = Vec::new();
        clap_mangen::Man::new(command()).render(&mut page).unwrap();
        assert!(String::from_utf8(page).unwrap().contains("hearth"));
    }
}
