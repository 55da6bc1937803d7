//! Anthropic's messages, of any server that has them.

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::backends::wire::{given, own_sampling, refuse, stop};
use crate::http::Client;
use crate::lang::Error;
use crate::lang::backend::{Backend, Call, Completion, Finish, Prompt, Sink, Usage};
use crate::message::Role;

const PATH: &str = "/v1/messages";

/// An API with Anthropic's `/v1/messages`: conversations, and nothing that the API lacks. It
/// continues a message that the program began.
#[derive(Clone, Debug)]
pub struct AnthropicApi {
    client: Client,
    model: String,
}

impl AnthropicApi {
    /// `client` has the headers that the server asks for: Anthropic's wants `x-api-key` and
    /// `anthropic-version`.
    pub fn new(client: Client, model: &str) -> Self {
        let model = model.to_owned();
        Self { client, model }
    }

    fn body(&self, call: &Call) -> Result<Value, Error> {
        let Prompt::Chat(messages) = &call.prompt else {
            return Err(self.lacks("text without roles"));
        };
        let sampling = &call.sampling;
        let lacking = [
            (call.format.regex.is_some(), "a regular expression"),
            (call.format.json_schema.is_some(), "a JSON Schema"),
            (call.n > 1, "several outputs of one generation"),
            (call.logprobs.is_some(), "log-probabilities"),
            (sampling.seed.is_some(), "`seed`"),
            (sampling.frequency_penalty.is_some(), "`frequency_penalty`"),
            (sampling.presence_penalty.is_some(), "`presence_penalty`"),
        ];
        refuse(self, &own_sampling(sampling))?;
        refuse(self, &lacking)?;
        let (system, turns): (Vec<_>, Vec<_>) = messages
            .iter()
            .partition(|message| message.role == Role::System);
        let system: Vec<&str> = system.iter().map(|m| m.content.as_str()).collect();
        let mut body = Value::Object(given([
            ("temperature", json!(sampling.temperature)),
            ("top_p", json!(sampling.top_p)),
            ("top_k", json!(sampling.top_k)),
            ("stop_sequences", stop(&sampling.stop)),
        ]));
        if !system.is_empty() {
            body["system"] = json!(system.join("\n\n"));
        }
        body["model"] = json!(self.model);
        body["messages"] = json!(turns);
        body["max_tokens"] = json!(sampling.limit());
        Ok(body)
    }
}

fn finish(reason: &Value) -> Finish {
    match reason.as_str() {
        Some("max_tokens") => Finish::Length,
        _ => Finish::Stop,
    }
}

/// Adds the counts that an event or an answer has. Anthropic counts cached tokens apart from the
/// other tokens of the prompt.
fn count(usage: &Value, counts: &mut Usage) {
    let number = |name: &str| usage[name].as_u64();
    if let Some(input) = number("input_tokens") {
        counts.cached_tokens = number("cache_read_input_tokens").unwrap_or(0);
        let written = number("cache_creation_input_tokens").unwrap_or(0);
        counts.prompt_tokens = input + counts.cached_tokens + written;
    }
    if let Some(output) = number("output_tokens") {
        counts.completion_tokens = output;
    }
}

#[async_trait]
impl Backend for AnthropicApi {
    fn name(&self) -> &str {
        "Anthropic API"
    }

    async fn generate(&self, call: &Call, sink: Sink<'_>) -> Result<Completion, Error> {
        let mut body = self.body(call)?;
        let mut whole = Completion::default();
        if !call.stream {
            let answer = self.client.post(PATH, &body).await?;
            let parts = answer["content"].as_array().into_iter().flatten();
            whole.text = parts.filter_map(|part| part["text"].as_str()).collect();
            whole.finish = finish(&answer["stop_reason"]);
            count(&answer["usage"], &mut whole.usage);
            return Ok(whole);
        }
        body["stream"] = json!(true);
        let mut events = self.client.stream(PATH, &body).await?;
        while let Some(event) = events.next().await? {
            if let Some(news) = event["delta"]["text"].as_str() {
                sink(news);
                whole.text.push_str(news);
            }
            if event["delta"]["stop_reason"].is_string() {
                whole.finish = finish(&event["delta"]["stop_reason"]);
            }
            count(&event["message"]["usage"], &mut whole.usage);
            count(&event["usage"], &mut whole.usage);
        }
        Ok(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lang::{Format, Sampling};
    use crate::message::Message;

    #[test]
    fn system_messages_are_a_field_and_what_the_api_lacks_is_named() {
        let client = Client::new("http://localhost").unwrap();
        let api = AnthropicApi::new(client, "m");
        let message = |role, content: &str| Message {
            role,
            content: content.to_owned(),
        };
        let mut call = Call {
            prompt: Prompt::Chat(vec![message(Role::System, "s"), message(Role::User, "u")]),
            sampling: Sampling::default(),
            format: Format::default(),
            n: 1,
            logprobs: None,
            stream: false,
            tokens: false,
        };
        let expected = json!({
            "system": "s", "model": "m", "max_tokens": 128,
            "messages": [{"role": "user", "content": "u"}],
        });
        assert_eq!(api.body(&call), Ok(expected));
        call.sampling.seed = Some(1);
        let error = api.body(&call).unwrap_err().to_string();
        assert_eq!(
            error,
            "the back end `Anthropic API` does not support `seed`"
        );
    }
}
