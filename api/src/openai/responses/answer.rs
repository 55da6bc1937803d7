//! The response object.

use serde_json::{Map, Value, json};

use crate::generate::Finish;
use crate::openai::responses::output::Item;
use crate::tally::Counts;

/// The id of a response, and the fields that it repeats from its request.
#[derive(Clone, Debug)]
pub struct Answer {
    pub id: String,
    pub model: String,
    /// Seconds since 1970.
    pub created: u64,
    pub instructions: Option<String>,
    pub previous_response_id: Option<String>,
    pub max_output_tokens: Option<usize>,
    /// The request's value, or the server's default.
    pub temperature: f64,
    pub top_p: f64,
    /// `text`, `reasoning`, `tools`, `tool_choice` and `parallel_tool_calls` as OpenAI's answers
    /// repeat them.
    pub text: Value,
    pub reasoning: Value,
    pub tools: Value,
    pub tool_choice: Value,
    pub parallel_tool_calls: bool,
    pub store: bool,
    pub background: bool,
    pub metadata: Map<String, Value>,
    pub user: Option<String>,
}

impl Answer {
    /// The response while it has no output yet.
    pub fn pending(&self, status: &str) -> Value {
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": self.background,
            "error": null,
            "incomplete_details": null,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata,
            "model": self.model,
            "output": [],
            "parallel_tool_calls": self.parallel_tool_calls,
            "previous_response_id": self.previous_response_id,
            "reasoning": self.reasoning,
            "service_tier": "default",
            "store": self.store,
            "temperature": self.temperature,
            "text": self.text,
            "tool_choice": self.tool_choice,
            "tools": self.tools,
            "top_logprobs": 0,
            "top_p": self.top_p,
            "truncation": "disabled",
            "usage": null,
            "user": self.user,
        })
    }

    /// The response with all of its output.
    pub fn finished(&self, items: &[Item], finish: Option<&Finish>, counts: Counts) -> Value {
        let status = status(finish);
        let mut response = self.pending(status);
        let last = items.len().saturating_sub(1);
        let items = items.iter().enumerate();
        let output = items.map(|(index, item)| match index == last {
            true => item.json(status),
            false => item.json("completed"),
        });
        response["output"] = output.collect();
        response["usage"] = usage(counts);
        if status == "incomplete" {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        response
    }

    /// The response of a request that failed.
    pub fn failed(&self, message: &str) -> Value {
        let mut response = self.pending("failed");
        response["error"] = json!({"code": "server_error", "message": message});
        response
    }
}

/// The status of a response by its finish reason. An abort (SGLang's) counts as a cancellation.
pub fn status(finish: Option<&Finish>) -> &'static str {
    match finish.map(|finish| finish.reason) {
        Some("length") => "incomplete",
        Some("abort") => "cancelled",
        _ => "completed",
    }
}

fn usage(counts: Counts) -> Value {
    json!({
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": counts.cached},
        "output_tokens": counts.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts.prompt + counts.completion,
    })
}
