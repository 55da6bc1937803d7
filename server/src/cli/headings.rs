//! The headings of `--help`, and what is made of the command line: completions and a man page.

use std::io;

use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;

use super::Cli;
use crate::config::HEADINGS;

/// Flags that are no settings; clap has them first.
#[cfg(test)]
const NO_SETTINGS: [&str; 5] = ["config", "print_config", "estimate", "help", "version"];

/// The command line with its flags under headings.
pub fn command() -> Command {
    let mut command = Cli::command().mut_args(under_heading);
    for name in ["serve", "config"] {
        command = command.mut_subcommand(name, |command| command.mut_args(under_heading));
    }
    command
}

fn under_heading(arg: Arg) -> Arg {
    match heading(arg.get_id().as_str()) {
        Some(heading) => arg.help_heading(heading),
        None => arg,
    }
}

/// The heading of a flag; `None` for one that is no setting. A setting that is on by default has a flag
/// that turns it off.
fn heading(id: &str) -> Option<&'static str> {
    let key = id.strip_prefix("no_").unwrap_or(id);
    let mut headings = HEADINGS.iter();
    let found = headings.find(|(_, keys)| keys.contains(&key));
    found.map(|(heading, _)| *heading)
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
        for key in HEADINGS.iter().flat_map(|(_, keys)| *keys) {
            let is_its = |id: &str| id.strip_prefix("no_").unwrap_or(id) == *key;
            let is_flag = serve
                .get_arguments()
                .any(|arg| is_its(arg.get_id().as_str()));
            assert!(is_flag, "there is no flag for {key}");
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
