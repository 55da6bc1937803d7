//! `hearth chat`: a conversation in the terminal, with a running server or with a model in this
//! process.
//!
//! - `partner`: who answers.
//! - `conversation`: the messages so far.
//! - `commands`: what begins with a slash.
//! - `input`, `buffer`, `keys`, `search`: the line editor.
//! - `markdown`: answers, wrapped and with their marks as type.

mod buffer;
mod commands;
mod conversation;
mod input;
mod keys;
mod markdown;
mod partner;
mod search;

use std::io::{IsTerminal, Write};
use std::time::Instant;

use anyhow::Result;
use hearth_client::{ChatOptions, Client, ClientError};

use crate::cli::ChatArgs;
use crate::config::Config;
use crate::load;
use crate::wrap::wrapped;
use commands::{Command, help};
pub use conversation::Conversation;
use input::{Input, Line};
use markdown::Markdown;
pub use partner::{Partner, Reply};

/// Reads messages from standard input and prints the answers, until the input ends.
///
/// # Errors
/// The model does not load, or the server cannot be reached. An answer that fails is reported,
/// and the conversation continues.
pub fn run(args: &ChatArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let _logs;
    let partner = match &args.url {
        Some(url) => {
            let client = client(url, args.api_key.as_deref())?;
            let model = runtime
                .block_on(client.first_model())
                .map_err(|error| explained(error, url))?;
            Partner::Remote { client, model }
        }
        None => {
            let config = Config::resolve_quiet(args.file.config.as_deref(), &args.flags)?;
            _logs = hearth_otel::init_logs(config.log_format.into(), &config.log_level)?;
            Partner::Local(Box::new(load::load(&config)?))
        }
    };
    let options = ChatOptions {
        temperature: args.temperature,
        max_tokens: args.max_tokens,
        seed: args.seed,
        ..ChatOptions::default()
    };
    let mut session = Session {
        runtime,
        partner,
        options,
        conversation: Conversation::new(args.system.as_deref()),
        input: Input::new(),
    };
    session.talk()
}

/// A client with the key that is given or that the environment has.
fn client(url: &str, key: Option<&str>) -> Result<Client> {
    let variable = |name| std::env::var(name).ok().filter(|key| !key.is_empty());
    let key = key
        .map(str::to_owned)
        .or_else(|| variable("HEARTH_API_KEY"))
        .or_else(|| variable("OPENAI_API_KEY"));
    Ok(match key {
        Some(key) => {
            let bearer = format!("Bearer {key}");
            Client::with_headers(url, &[("authorization", &bearer)])?
        }
        None => Client::new(url)?,
    })
}

/// The error of the first request, with advice.
fn explained(error: ClientError, url: &str) -> anyhow::Error {
    let advice = match &error {
        ClientError::Transport { .. } => format!("is a server running at {url}?"),
        ClientError::Refused { status: 401, .. } => {
            "the server wants another key: --api-key, or the variable HEARTH_API_KEY".to_owned()
        }
        _ => "cannot get the model's name from the server".to_owned(),
    };
    anyhow::Error::new(error).context(advice)
}

struct Session {
    runtime: tokio::runtime::Runtime,
    partner: Partner,
    options: ChatOptions,
    conversation: Conversation,
    input: Input,
}

impl Session {
    fn talk(&mut self) -> Result<()> {
        if self.input.is_interactive() {
            println!(
                "Talking to {}. /help lists the commands, Ctrl-D ends the chat.",
                self.partner.name()
            );
        }
        loop {
            let line = match self.input.read()? {
                Line::End => return Ok(()),
                Line::Cancelled => {
                    println!("Ctrl-D or /quit ends the chat.");
                    continue;
                }
                Line::Text(line) => line,
            };
            match Command::parse(&line) {
                Ok(None) if line.trim().is_empty() => {}
                Ok(None) => {
                    self.conversation.say(line.trim());
                    self.answer()?;
                }
                Ok(Some(Command::Quit)) => return Ok(()),
                Ok(Some(command)) => {
                    if let Err(error) = self.execute(command) {
                        self.complain(&format!("{error:#}"));
                    }
                }
                Err(error) => self.complain(&error.to_string()),
            }
        }
    }

    fn execute(&mut self, command: Command) -> Result<()> {
        match command {
            Command::Quit => {}
            Command::Help => println!("{}", help(self.input.columns())),
            Command::Clear => {
                self.conversation.clear();
                println!("The conversation is forgotten.");
            }
            Command::System(text) => {
                self.conversation.set_system(&text);
                println!("The conversation begins anew with this system message.");
            }
            Command::Regenerate => {
                anyhow::ensure!(
                    self.conversation.take_back_answer(),
                    "there is no answer to give again"
                );
                self.answer()?;
            }
            Command::Save(path) => {
                self.conversation.save(&path)?;
                println!("Saved {}.", path.display());
            }
            Command::Set(setting) => {
                setting.apply(&mut self.options);
                println!("{}", commands::settings(&self.options));
            }
            Command::ShowSettings => println!("{}", commands::settings(&self.options)),
        }
        Ok(())
    }

    /// Writes an error, in a terminal with line breaks between words.
    fn complain(&self, error: &str) {
        let text = format!("error: {error}");
        match std::io::stderr().is_terminal() {
            true => eprint!("{}", wrapped(&text, 2, self.input.columns())),
            false => eprintln!("{text}"),
        }
    }

    /// Shows the answer to the conversation as it comes. Ctrl-C ends the answer and not the chat.
    fn answer(&mut self) -> Result<()> {
        let is_terminal = std::io::stdout().is_terminal();
        let columns = self.input.columns();
        let mut out = std::io::stdout().lock();
        let mut markdown = Markdown::new(is_terminal.then_some(columns));
        let mut reply = Reply::default();
        let begin = Instant::now();
        let interactive = self.input.is_interactive();
        let outcome = self.runtime.block_on(async {
            let mut show = |text: &str| -> std::io::Result<()> {
                out.write_all(markdown.push(text).as_bytes())?;
                out.flush()
            };
            let messages = &self.conversation.messages;
            let answer = self
                .partner
                .answer(messages, &self.options, &mut reply, &mut show);
            // Without a line editor Ctrl-C ends the program, as it ends others.
            tokio::select! {
                outcome = answer => Some(outcome),
                _ = tokio::signal::ctrl_c(), if interactive => None,
            }
        });
        writeln!(out, "{}", markdown.end())?;
        let took = begin.elapsed().as_secs_f64();
        match outcome {
            Some(Err(error)) => {
                self.complain(&format!("{error:#}"));
                // A message without an answer would spoil the next one's prompt.
                self.conversation.unsay();
                return Ok(());
            }
            Some(Ok(())) => {}
            None => writeln!(out, "{}", dim("(stopped)"))?,
        }
        if interactive && let Some(tokens) = reply.tokens.filter(|_| took > 0.0) {
            let rate = tokens as f64 / took;
            writeln!(
                out,
                "{}",
                dim(&format!("{tokens} tokens, {rate:.1} tokens/s"))
            )?;
        }
        match reply.text.is_empty() {
            true => self.conversation.unsay(),
            false => self.conversation.hear(reply.text),
        }
        Ok(())
    }
}

/// Text for a terminal that matters less.
fn dim(text: &str) -> String {
    match std::io::stdout().is_terminal() {
        true => format!("\x1b[2m{text}\x1b[0m"),
        false => text.to_owned(),
    }
}
