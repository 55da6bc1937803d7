//! The JSON that goes back, streamed and not.

use serde::Serialize;

/// Names this server and its version: the same fingerprint and seed give the same tokens.
pub const SYSTEM_FINGERPRINT: &str = concat!("hearth-", env!("CARGO_PKG_VERSION"));

/// OpenAI's usage object, summed over all choices of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
    pub total_tokens: usize,
    pub prompt_tokens_details: PromptTokensDetails,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromptTokensDetails {
    /// Prompt tokens whose KV was taken from the prefix cache.
    pub cached_tokens: usize,
}

impl Usage {
    pub fn new(prompt_tokens: usize, cached_tokens: usize, completion_tokens: usize) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
        }
    }
}

/// The fields every response and chunk begins with.
#[derive(Clone, Debug, Serialize)]
pub struct Head {
    pub id: String,
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    pub model: String,
    pub system_fingerprint: &'static str,
    /// As the request gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
}

/// What ended a choice, beside OpenAI's word for it (SGLang's field).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum MatchedStop {
    Token(u32),
    Text(String),
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
    /// Null where there are only calls, or nothing but reasoning.
    pub content: Option<String>,
    /// OpenAI's clients expect the key; this server never refuses.
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
    /// JSON, in a string.
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

/// A call's beginning, or the next of its arguments.
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
}

#[derive(Debug, PartialEq, Serialize)]
pub struct Alternative {
    pub token: String,
    pub logprob: f32,
    /// A token can be part of a character: only its bytes are exact.
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
    /// Null for a prompt's first token, which follows nothing.
    pub token_logprobs: Vec<Option<f32>>,
    pub top_logprobs: Vec<Option<serde_json::Map<String, serde_json::Value>>>,
    /// Where each token begins, in characters of the choice's text.
    pub text_offset: Vec<usize>,
}
