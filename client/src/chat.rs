//! Streams of chat completions, for `hearth chat` and tests.

use serde::Serialize;
use serde_json::{Value, json};

use crate::http::{Client, ClientError, Events};
use crate::message::Message;

/// Sampling options. The server chooses those that are `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ChatOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// -1 and 0 take all tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl Client {
    /// The id of the first model that the server lists.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn first_model(&self) -> Result<String, ClientError> {
        let models = self.get("/v1/models").await?;
        let id = models["data"][0]["id"].as_str();
        id.map(str::to_owned)
            .ok_or_else(|| ClientError::NotJson("the list of models is empty".to_owned()))
    }

    /// Streams the answer to `messages`; [`text_of`](Events::text_of) gives the text of a chunk.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn chat(
        &self,
        model: &str,
        messages: &[Message],
        options: &ChatOptions,
    ) -> Result<Events, ClientError> {
        let mut body = json!(options);
        body["model"] = json!(model);
        body["messages"] = json!(messages);
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        self.stream("/v1/chat/completions", &body).await
    }
}

impl Events {
    /// The text that a chunk adds to the first choice.
    pub fn text_of(chunk: &Value) -> &str {
        chunk["choices"][0]["delta"]["content"]
            .as_str()
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Role;

    #[test]
    fn options_left_out_are_not_sent() {
        let options = ChatOptions {
            seed: Some(7),
            ..ChatOptions::default()
        };
        assert_eq!(json!(options), json!({"seed": 7}));
        let message = Message {
            role: Role::Assistant,
            content: "x".to_owned(),
        };
        assert_eq!(json!(message), json!({"role": "assistant", "content": "x"}));
    }

    #[test]
    fn chunks_without_text_add_nothing() {
        assert_eq!(Events::text_of(&json!({"choices": []})), "");
        let chunk = json!({"choices": [{"delta": {"content": "hi"}}]});
        assert_eq!(Events::text_of(&chunk), "hi");
    }
}
