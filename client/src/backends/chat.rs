//! OpenAI's chat completions, of any server that has them.

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::backends::wire::{field, finish, openai_sampling, refuse, usage};
use crate::http::{Client, Events};
use crate::lang::Error;
use crate::lang::backend::{Backend, Call, Completion, Prompt, Sink};
use crate::message::Message;

const PATH: &str = "/v1/chat/completions";

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
        if call.tokens {
            body["logprobs"] = json!(true);
        }
        if !call.stream {
            let answer = self.client.post(PATH, &body).await?;
            let message = answer.pointer("/choices/0/message/content");
            let tokens = answer.pointer("/choices/0/logprobs/content");
            let tokens = tokens.and_then(Value::as_array).map(|tokens| {
                let texts = tokens.iter().map(|token| token["token"].as_str());
                texts
                    .map(|text| text.unwrap_or_default().to_owned())
                    .collect()
            });
            return Ok(Completion {
                text: message
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned(),
                finish: finish(field(&answer, "/choices/0/finish_reason")?),
                usage: usage(&answer["usage"]),
                tokens,
            });
        }
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let mut events = self.client.stream(PATH, &body).await?;
        let mut whole = Completion::default();
        while let Some(event) = events.next().await? {
            let news = Events::text_of(&event);
            if !news.is_empty() {
                sink(news);
                whole.text.push_str(news);
            }
            if let Some(reason @ Value::String(_)) = event.pointer("/choices/0/finish_reason") {
                whole.finish = finish(reason);
            }
            if event["usage"].is_object() {
                whole.usage = usage(&event["usage"]);
            }
        }
        Ok(whole)
    }
}
