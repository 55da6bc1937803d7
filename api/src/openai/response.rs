//! The JSON of answers, streamed and whole.

use serde::Serialize;

use crate::generate::MatchedStop;
use crate::tally::Usage;

/// Names this server and its version. The same fingerprint and the same seed give the same tokens.
pub const SYSTEM_FINGERPRINT: &str = concat!("hearth-", env!("CARGO_PKG_VERSION"));

/// The fields with which every response and every chunk begins.
#[derive(Clone, Debug, Serialize)]
pub struct Head {
    pub id: String,
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    pub model: String,
    pub system_fingerprint: &'static str,
    /// The request's own seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
}

#[derive(Debug, Serialize)]
pub struct Response<C> {
    #[serde(flatten)]
    pub head: Head,
    pub choices: Vec<C>,
    pub usage: Usage,
}

#[derive(Debug, Serialize)]
pub struct ChatChoice {
    pub index: usize,
    pub message: AssistantMessage,
    pub logprobs: Option<ChatLogprobs>,
    pub finish_reason: &'static str,
    pub matched_stop: Option<MatchedStop>,
}

#[derive(Debug, Serialize)]
pub struct AssistantMessage {
    pub role: &'static str,
    /// Null where the answer has only calls, or only reasoning.
    pub content: Option<String>,
    /// Always null. OpenAI's clients expect the key.
    pub refusal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

#[derive(Debug, Serialize)]
pub struct ToolCall {
    pub id: String,
    pub r#type: &'static str,
    pub function: CalledFunction,
}

#[derive(Debug, Serialize)]
pub struct CalledFunction {
    pub name: String,
    /// JSON in a string.
    pub arguments: String,
}

#[derive(Debug, Serialize)]
pub struct ChatChunkChoice {
    pub index: usize,
    pub delta: Delta,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<ChatLogprobs>,
    pub finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matched_stop: Option<MatchedStop>,
}

#[derive(Debug, Default, Serialize)]
pub struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<[ToolCallDelta; 1]>,
}

/// The beginning of a call, or the next piece of its arguments.
#[derive(Debug, Default, Serialize)]
pub struct ToolCallDelta {
    pub index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#type: Option<&'static str>,
    pub function: FunctionDelta,
}

#[derive(Debug, Default, Serialize)]
pub struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub arguments: String,
}

#[derive(Debug, Default, PartialEq, Serialize)]
pub struct ChatLogprobs {
    pub content: Vec<ChatLogprob>,
    pub refusal: Option<Vec<ChatLogprob>>,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct ChatLogprob {
    #[serde(flatten)]
    pub chosen: Alternative,
    pub top_logprobs: Vec<Alternative>,
    /// Hearth's own field: a grammar forced the token, so that it was not sampled.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub forced: bool,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct Alternative {
    pub token: String,
    pub logprob: f32,
    /// The token's bytes. Its text is not exact where the token is a part of a character.
    pub bytes: Vec<u8>,
}

#[derive(Debug, Serialize)]
pub struct CompletionChoice {
    pub index: usize,
    pub text: String,
    pub logprobs: Option<CompletionLogprobs>,
    pub finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matched_stop: Option<MatchedStop>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CompletionLogprobs {
    pub tokens: Vec<String>,
    /// Null for the first token of a prompt, which has no tokens before it.
    pub token_logprobs: Vec<Option<f32>>,
    pub top_logprobs: Vec<Option<serde_json::Map<String, serde_json::Value>>>,
    /// Where each token begins, in characters of the choice's text.
    pub text_offset: Vec<usize>,
}
