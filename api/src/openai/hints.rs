//! Fields of OpenAI's APIs that advise a server. Their values are checked; most have no effect here.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// How much the model should reason. Chat templates that know the variable `reasoning_effort` see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
}

impl Effort {
    /// Adds the variable for the chat template unless the request gave it itself.
    pub fn add_to(self, variables: &mut Map<String, Value>) {
        variables
            .entry("reasoning_effort")
            .or_insert_with(|| json!(self));
    }
}

/// `reasoning` of a request to `/v1/responses`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReasoningFields {
    pub effort: Option<Effort>,
    /// Reasoning is given whole, so there is no summary.
    summary: Option<Summary>,
    #[serde(rename = "generate_summary")]
    _generate_summary: Option<Summary>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Summary {
    Auto,
    Concise,
    Detailed,
}

impl ReasoningFields {
    /// The object as the answer repeats it.
    pub fn repeated(&self) -> Value {
        json!({"effort": self.effort, "summary": self.summary})
    }
}

/// How long the answer should be.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verbosity {
    Low,
    Medium,
    High,
}

/// Which of OpenAI's queues the request should wait in.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceTier {
    Auto,
    Default,
    Flex,
    Scale,
    Priority,
}

/// `include` of a request to `/v1/responses`: more that the answer should have.
#[derive(Debug, Deserialize)]
pub struct Include(Vec<Included>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum Included {
    #[serde(rename = "message.output_text.logprobs")]
    Logprobs,
    /// Reasoning is given whole and in clear text, so that a client can send it back.
    #[serde(rename = "reasoning.encrypted_content")]
    EncryptedReasoning,
    // Parts of items that this server never makes.
    #[serde(rename = "file_search_call.results")]
    FileSearch,
    #[serde(rename = "web_search_call.results")]
    WebSearch,
    #[serde(rename = "web_search_call.action.sources")]
    WebSearchSources,
    #[serde(rename = "message.input_image.image_url")]
    InputImage,
    #[serde(rename = "computer_call_output.output.image_url")]
    ComputerImage,
    #[serde(rename = "code_interpreter_call.outputs")]
    CodeInterpreter,
}

impl Include {
    pub fn asks_for_logprobs(&self) -> bool {
        self.0.contains(&Included::Logprobs)
    }
}
