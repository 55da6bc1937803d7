//! `hearth chat`: a conversation in the terminal, with a running server or with a model in this
//! process.

use std::io::{BufRead, IsTerminal, Write};

use anyhow::{Context, Result};
use futures_util::StreamExt;
use hearth_api::generate::{Job, Update, submit};
use hearth_api::prompt;
use hearth_api::served::{ChatPrompt, Served};
use hearth_client::{ChatOptions, Client, Events, Message, Role};
use hearth_engine::SamplingParams;
use hearth_engine::output::TextOptions;
use serde_json::{Map, json};

use crate::cli::ChatArgs;
use crate::config::Config;
use crate::load;

const HELP: &str = "/clear forgets the conversation, /quit or Ctrl-D ends it.";

/// The receiver that answers the messages.
pub enum Partner {
    Remote { client: Client, model: String },
    Local(Box<Served>),
}

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
            let client = Client::new(url)?;
            let model = runtime
                .block_on(client.first_model())
                .context("cannot get the model's name from the server")?;
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
    };
    let interactive = std::io::stdin().is_terminal();
    if interactive {
        println!("Talking to {}. {HELP}", partner.name());
    }
    let mut conversation = Conversation::new(args.system.as_deref());
    let mut out = std::io::stdout();
    loop {
        if interactive {
            print!("\n> ");
            out.flush()?;
        }
        let mut line = String::new();
        if std::io::stdin().lock().read_line(&mut line)? == 0 {
            return Ok(());
        }
        match line.trim() {
            "" => {}
            "/quit" | "/exit" => return Ok(()),
            "/clear" => conversation.clear(),
            text => {
                conversation.say(text);
                let answer = partner.answer(&conversation.messages, &options, &mut out);
                match runtime.block_on(answer) {
                    Ok(answer) => conversation.hear(answer),
                    Err(error) => {
                        eprintln!("\nerror: {error:#}");
                        conversation.unsay();
                    }
                }
            }
        }
    }
}

/// The messages of the conversation so far.
#[derive(Debug, Default)]
pub struct Conversation {
    pub messages: Vec<Message>,
    /// Number of system messages at the start: 0 or 1.
    system: usize,
}

impl Conversation {
    pub fn new(system: Option<&str>) -> Self {
        let message = |content: &str| Message {
            role: Role::System,
            content: content.to_owned(),
        };
        let messages: Vec<Message> = system.map(message).into_iter().collect();
        Self {
            system: messages.len(),
            messages,
        }
    }

    /// Adds a message of the user.
    pub fn say(&mut self, text: &str) {
        self.messages.push(Message {
            role: Role::User,
            content: text.to_owned(),
        });
    }

    /// Adds an answer of the model.
    pub fn hear(&mut self, text: String) {
        self.messages.push(Message {
            role: Role::Assistant,
            content: text,
        });
    }

    /// Removes the last message, which was not answered.
    pub fn unsay(&mut self) {
        self.messages.pop();
    }

    /// Removes all messages but the system message.
    pub fn clear(&mut self) {
        self.messages.truncate(self.system);
    }
}

impl Partner {
    fn name(&self) -> &str {
        match self {
            Self::Remote { model, .. } => model,
            Self::Local(served) => &served.id,
        }
    }

    /// Writes the answer to `out` as it is generated, and returns it.
    ///
    /// # Errors
    /// The request was refused, or the answer was interrupted.
    pub async fn answer(
        &self,
        messages: &[Message],
        options: &ChatOptions,
        out: &mut impl Write,
    ) -> Result<String> {
        let mut answer = String::new();
        let mut show = |text: &str| -> std::io::Result<()> {
            answer.push_str(text);
            out.write_all(text.as_bytes())?;
            out.flush()
        };
        match self {
            Self::Remote { client, model } => {
                let mut events = client.chat(model, messages, options).await?;
                while let Some(chunk) = events.next().await? {
                    show(Events::text_of(&chunk))?;
                }
            }
            Self::Local(served) => {
                let mut updates = submit(served, job(served, messages, options)?)?;
                while let Some((_, update)) = updates.next().await {
                    match update {
                        Update::Text(piece) => show(&piece.text)?,
                        Update::Failed(error) => return Err(error.into()),
                        _ => {}
                    }
                }
            }
        }
        writeln!(out)?;
        Ok(answer)
    }
}

/// The request for a model in this process.
fn job(served: &Served, messages: &[Message], options: &ChatOptions) -> Result<Job> {
    let chat = ChatPrompt {
        messages: &json!(messages),
        tools: None,
        add_generation_prompt: true,
        kwargs: &Map::new(),
    };
    let text = served.text.render_chat(&chat).map_err(anyhow::Error::msg)?;
    let prompt = prompt::encode_chat(served, "messages", &text, false)?;
    let max_tokens = prompt::output_limit(
        served,
        "messages",
        prompt.len(),
        "max_tokens",
        options.max_tokens,
    )?;
    let defaults = served.defaults.params();
    Ok(Job {
        prompts: vec![prompt],
        copies: 1,
        params: SamplingParams {
            max_tokens,
            temperature: options.temperature.unwrap_or(defaults.temperature),
            seed: options.seed,
            ..defaults
        },
        text: TextOptions::default(),
        prompt_field: "messages",
        ..Job::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clear_keeps_the_system_message_and_unsay_removes_the_last_one() {
        let mut conversation = Conversation::new(Some("Be brief."));
        conversation.say("one");
        conversation.hear("two".to_owned());
        conversation.say("three");
        conversation.unsay();
        assert_eq!(conversation.messages.len(), 3);
        conversation.clear();
        assert_eq!(conversation.messages.len(), 1);
        assert_eq!(conversation.messages[0].role, Role::System);
        let mut plain = Conversation::new(None);
        plain.say("one");
        plain.clear();
        assert!(plain.messages.is_empty());
    }
}
