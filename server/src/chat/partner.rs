//! The receiver that answers: a server, or a model in this process.

use std::io;

use anyhow::Result;
use futures_util::StreamExt;
use hearth_api::generate::{Job, Update, submit};
use hearth_api::prompt;
use hearth_api::served::{ChatPrompt, Served};
use hearth_client::{ChatOptions, Client, Events, Message};
use hearth_engine::SamplingParams;
use hearth_engine::output::TextOptions;
use serde_json::{Map, json};

/// The receiver that answers the messages.
pub enum Partner {
    Remote { client: Client, model: String },
    Local(Box<Served>),
}

/// An answer, as far as it has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    pub text: String,
    /// Its tokens, once it is complete; `None` from a server that does not count them.
    pub tokens: Option<usize>,
}

impl Partner {
    pub fn name(&self) -> &str {
        match self {
            Self::Remote { model, .. } => model,
            Self::Local(served) => &served.id,
        }
    }

    /// Adds the answer to `reply` and shows it as it is generated. A caller that drops the future
    /// has the text so far, and the model stops.
    ///
    /// # Errors
    /// The request was refused, or the answer was interrupted.
    pub async fn answer(
        &self,
        messages: &[Message],
        options: &ChatOptions,
        reply: &mut Reply,
        show: &mut dyn FnMut(&str) -> io::Result<()>,
    ) -> Result<()> {
        let mut add = |reply: &mut Reply, text: &str| {
            reply.text.push_str(text);
            show(text)
        };
        match self {
            Self::Remote { client, model } => {
                let mut events = client.chat(model, messages, options).await?;
                while let Some(chunk) = events.next().await? {
                    add(reply, Events::text_of(&chunk))?;
                    let tokens = chunk["usage"]["completion_tokens"].as_u64();
                    reply.tokens = tokens.map(|tokens| tokens as usize).or(reply.tokens);
                }
            }
            Self::Local(served) => {
                let mut updates = submit(served, job(served, messages, options)?)?;
                while let Some((_, update)) = updates.next().await {
                    match update {
                        Update::Text(piece) => add(reply, &piece.text)?,
                        Update::Finished(finish) => reply.tokens = Some(finish.completion_tokens),
                        Update::Failed(error) => return Err(error.into()),
                        _ => {}
                    }
                }
            }
        }
        Ok(())
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
    let top_k = match options.top_k {
        None => defaults.top_k,
        // As in the APIs, 0 and -1 are all tokens.
        Some(all) if all <= 0 => None,
        Some(top_k) => Some(u32::try_from(top_k)?),
    };
    Ok(Job {
        prompts: vec![prompt],
        copies: 1,
        params: SamplingParams {
            max_tokens,
            temperature: given(options.temperature, defaults.temperature),
            top_p: given(options.top_p, defaults.top_p),
            min_p: given(options.min_p, defaults.min_p),
            top_k,
            seed: options.seed,
            ..defaults
        },
        text: TextOptions::default(),
        prompt_field: "messages",
        ..Job::default()
    })
}

/// A sampling field in the engine's precision.
fn given(value: Option<f64>, default: f32) -> f32 {
    value.map_or(default, |value| value as f32)
}
