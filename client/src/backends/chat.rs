//! OpenAI's chat completions, of any server that has them.

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::backends::chats::chat;
use crate::backends::wire::{openai_sampling, refuse};
use crate::http::Client;
use crate::lang::Error;
use crate::lang::backend::{Backend, Call, Completion, Prompt, Sink};
use crate::message::Message;

/// An API with OpenAI's `/v1/chat/completions`: conversations, JSON Schemas, and nothing that
/// OpenAI's API lacks. It cannot continue a message, so an assistant's message has one generation
/// and no text before it, unless the front end speculates.
#[derive(Clone, Debug)]
pub struct ChatApi {
    client: Client,
    model: String,
}

impl ChatApi {
    pub fn new(client: Client, model: &str) -> Self {
        let model = model.to_owned();
        Self { client, model }
    }

    fn messages<'a>(&self, prompt: &'a Prompt) -> Result<&'a [Message], Error> {
        match prompt {
            Prompt::Chat(messages) => Ok(messages),
            Prompt::Text(_) => Err(self.lacks("text without roles")),
        }
    }
}

#[async_trait]
impl Backend for ChatApi {
    fn name(&self) -> &str {
        "chat API"
    }

    fn continues_messages(&self) -> bool {
        false
    }

    async fn generate(&self, call: &Call, sink: Sink<'_>) -> Result<Completion, Error> {
        let messages = self.messages(&call.prompt)?;
        refuse(
            self,
            &[(call.format.regex.is_some(), "a regular expression")],
        )?;
        let mut body = Value::Object(openai_sampling(self, call)?);
        body["model"] = json!(self.model);
        body["messages"] = json!(messages);
        body["max_tokens"] = json!(call.sampling.limit());
        if let Some(schema) = &call.format.json_schema {
            body["response_format"] = json!({
                "type": "json_schema",
                "json_schema": {"name": "output", "schema": schema},
            });
        }
        chat(&self.client, body, call, sink).await
    }
}
