//! The options of a generation.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The bound on output tokens of a generation that sets none, as in SGLang.
pub const DEFAULT_MAX_TOKENS: u32 = 128;

/// Sampling fields. The back end's server chooses those that are `None`, except `max_tokens`, which
/// is [`DEFAULT_MAX_TOKENS`] then.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Most output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// Tokens before which neither the end of the text nor a stop ends the output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_tokens: Option<u32>,
    /// Strings that end the output, without becoming part of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Tokens that end the output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop_token_ids: Vec<u32>,
    /// Regular expressions whose match ends the output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop_regex: Vec<String>,
    /// 0 is greedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f64>,
    /// Go on after the token that ends a text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_eos: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
}

impl Sampling {
    /// Most output tokens, by default too.
    pub fn limit(&self) -> u32 {
        self.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS)
    }
}

/// The form that an output must have.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Format {
    /// A regular expression that the whole output matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
    /// A JSON Schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json_schema: Option<Value>,
}
