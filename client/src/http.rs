//! An HTTP client of one server, for JSON routes and streams.

use std::collections::VecDeque;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use crate::sse::{Parser, TooLong};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Characters shown of an error response that is not JSON.
const SHOWN_ERROR_CHARS: usize = 300;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection could not be made, or it broke. The source says why.
    #[error("the request to {url} failed")]
    Transport { url: String, source: reqwest::Error },
    /// The server refused the request with this status and message.
    #[error("{status}: {message}")]
    Refused { status: u16, message: String },
    /// The server ended a stream with an error event.
    #[error("the server ended the stream with an error: {0}")]
    BrokenOff(String),
    /// The server sent something other than the expected JSON.
    #[error("the server sent invalid JSON: {0}")]
    NotJson(String),
    /// The server sent an event without an end.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// The name or the value of this header has characters that HTTP does not allow.
    #[error("the header {0:?} has characters that HTTP does not allow")]
    InvalidHeader(String),
}

impl ClientError {
    fn transport(url: &str, source: reqwest::Error) -> Self {
        Self::Transport {
            url: url.to_owned(),
            // The error names the URL already.
            source: source.without_url(),
        }
    }
}

/// A server at a base address such as `http://127.0.0.1:8000`. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: String,
}

impl Client {
    /// Creates a client for the server at `base`, with or without `/v1` at its end.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new(base: &str) -> Result<Self, ClientError> {
        Self::with_headers(base, &[])
    }

    /// [`new`](Self::new), with headers that every request has, as `("authorization", "Bearer ...")`.
    ///
    /// # Errors
    /// TLS cannot be set up, or a header has characters that HTTP does not allow.
    pub fn with_headers(base: &str, headers: &[(&str, &str)]) -> Result<Self, ClientError> {
        let mut all = HeaderMap::new();
        for &(name, value) in headers {
            let invalid = || ClientError::InvalidHeader(name.to_owned());
            let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
            let mut value = HeaderValue::from_str(value).map_err(|_| invalid())?;
            // Headers are often keys, which no debug output may show.
            value.set_sensitive(true);
            all.insert(parsed, value);
        }
        let base = base
            .trim_end_matches('/')
            .trim_end_matches("/v1")
            .to_owned();
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .default_headers(all)
            .build()
            .map_err(|source| ClientError::transport(&base, source))?;
        Ok(Self { http, base })
    }

    /// Gets the JSON at `path`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get(&self, path: &str) -> Result<Value, ClientError> {
        let url = format!("{}{path}", self.base);
        let response = self.checked(&url, self.http.get(&url)).await?;
        json_of(&url, response).await
    }

    /// Gets the text at `path`.
    ///
    /// # Errors
    /// The connection broke, or the server refused the request.
    pub async fn get_text(&self, path: &str) -> Result<String, ClientError> {
        let url = format!("{}{path}", self.base);
        let response = self.checked(&url, self.http.get(&url)).await?;
        let transport = |source| ClientError::transport(&url, source);
        response.text().await.map_err(transport)
    }

    /// Sends `body` to `path`, and returns the JSON of the response.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        let url = format!("{}{path}", self.base);
        let response = self.checked(&url, self.http.post(&url).json(body)).await?;
        json_of(&url, response).await
    }

    /// Sends `body` to `path`, and streams the events of the response up to `[DONE]`. Dropping the
    /// stream closes the connection, which cancels the request.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn stream(&self, path: &str, body: &Value) -> Result<Events, ClientError> {
        let url = format!("{}{path}", self.base);
        let response = self.checked(&url, self.http.post(&url).json(body)).await?;
        Ok(Events {
            url,
            response,
            parser: Parser::default(),
            ready: VecDeque::new(),
        })
    }

    async fn checked(
        &self,
        url: &str,
        request: reqwest::RequestBuilder,
    ) -> Result<reqwest::Response, ClientError> {
        let transport = |source| ClientError::transport(url, source);
        let response = request.send().await.map_err(transport)?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let text = response.text().await.map_err(transport)?;
        Err(ClientError::Refused {
            status,
            message: message_of(&text),
        })
    }
}

/// The message of an OpenAI error, or the beginning of any other text.
fn message_of(text: &str) -> String {
    let json = serde_json::from_str::<Value>(text).ok();
    let message = json
        .as_ref()
        .and_then(|json| json["error"]["message"].as_str());
    message.map_or_else(
        || text.chars().take(SHOWN_ERROR_CHARS).collect(),
        str::to_owned,
    )
}

async fn json_of(url: &str, response: reqwest::Response) -> Result<Value, ClientError> {
    let transport = |source| ClientError::transport(url, source);
    let text = response.text().await.map_err(transport)?;
    serde_json::from_str(&text).map_err(|error| ClientError::NotJson(error.to_string()))
}

/// The events of a streamed response; see [`Client::stream`].
#[derive(Debug)]
pub struct Events {
    url: String,
    response: reqwest::Response,
    parser: Parser,
    ready: VecDeque<String>,
}

impl Events {
    /// The next event; `None` after `[DONE]`, or if the response ended without it.
    ///
    /// # Errors
    /// The connection broke, or the server sent an error event, invalid JSON or an event that is too
    /// long.
    pub async fn next(&mut self) -> Result<Option<Value>, ClientError> {
        while self.ready.is_empty() {
            let transport = |source| ClientError::transport(&self.url, source);
            let Some(bytes) = self.response.chunk().await.map_err(transport)? else {
                return Ok(None);
            };
            let mut events = Vec::new();
            self.parser.push(&bytes, &mut events)?;
            self.ready.extend(events);
        }
        match self.ready.pop_front() {
            Some(event) if event != "[DONE]" => decode(&event).map(Some),
            _ => Ok(None),
        }
    }
}

fn decode(event: &str) -> Result<Value, ClientError> {
    let value: Value =
        serde_json::from_str(event).map_err(|error| ClientError::NotJson(error.to_string()))?;
    match value.get("error") {
        None | Some(Value::Null) => Ok(value),
        Some(error) => {
            let message = error["message"]
                .as_str()
                .map_or_else(|| error.to_string(), str::to_owned);
            Err(ClientError::BrokenOff(message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_message_of_an_openai_error_is_shown_and_other_text_unchanged() {
        assert_eq!(message_of(r#"{"error": {"message": "no"}}"#), "no");
        assert_eq!(message_of("<html>"), "<html>");
    }

    #[test]
    fn an_error_event_ends_the_stream_with_its_message() {
        assert_eq!(
            decode(r#"{"choices": []}"#).unwrap(),
            json!({"choices": []})
        );
        let error = decode(r#"{"error": {"message": "the model failed"}}"#).unwrap_err();
        let message = "the server ended the stream with an error: the model failed";
        assert_eq!(error.to_string(), message);
        assert!(matches!(decode("nonsense"), Err(ClientError::NotJson(_))));
    }

    #[test]
    fn the_base_may_end_in_a_slash_or_in_v1() {
        for base in [
            "http://h:1",
            "http://h:1/",
            "http://h:1/v1",
            "http://h:1/v1/",
        ] {
            assert_eq!(Client::new(base).unwrap().base, "http://h:1");
        }
    }
}
