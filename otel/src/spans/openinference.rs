//! The attributes of OpenInference, by which Phoenix and Langfuse show a continuation.

use opentelemetry::KeyValue;
use serde_json::{Map, json};

use super::attributes::{count, decimal};
use crate::catalog::PROVIDER_NAME;
use crate::records::RequestRecord;

/// The attributes of a continuation. The content of messages is among them only if the operator asks for
/// it, in the same JSON as under OpenTelemetry's names.
pub(super) fn openinference_attributes(model: &str, record: &RequestRecord) -> Vec<KeyValue> {
    let total = record.prompt_tokens + record.completion_tokens;
    let mut attributes = vec![count("llm.token_count.prompt", record.prompt_tokens)];
    if record.operation == "embeddings" {
        attributes.extend([
            KeyValue::new("openinference.span.kind", "EMBEDDING"),
            KeyValue::new("embedding.model_name", model.to_owned()),
            count("llm.token_count.total", total),
        ]);
        return attributes;
    }
    let mut parameters = Map::from_iter([
        ("max_tokens".to_owned(), json!(record.max_tokens)),
        ("temperature".to_owned(), json!(decimal(record.temperature))),
        ("top_p".to_owned(), json!(decimal(record.top_p))),
        ("n".to_owned(), json!(record.copies)),
    ]);
    if let Some(top_k) = record.top_k {
        parameters.insert("top_k".to_owned(), json!(top_k));
    }
    if let Some(seed) = record.seed {
        parameters.insert("seed".to_owned(), json!(seed));
    }
    for (name, penalty) in [
        ("frequency_penalty", record.frequency_penalty),
        ("presence_penalty", record.presence_penalty),
    ] {
        if penalty != 0.0 {
            parameters.insert(name.to_owned(), json!(decimal(penalty)));
        }
    }
    attributes.extend([
        KeyValue::new("openinference.span.kind", "LLM"),
        KeyValue::new("llm.model_name", model.to_owned()),
        KeyValue::new("llm.provider", PROVIDER_NAME),
        KeyValue::new("llm.finish_reason", record.ending.as_str()),
        KeyValue::new(
            "llm.invocation_parameters",
            serde_json::Value::from(parameters).to_string(),
        ),
        count("llm.token_count.completion", record.completion_tokens),
        count("llm.token_count.total", total),
        count(
            "llm.token_count.prompt_details.cache_read",
            record.cached_tokens,
        ),
    ]);
    if let Some(content) = &record.content {
        for (value, kind, content) in [
            ("input.value", "input.mime_type", Some(&content.input)),
            ("output.value", "output.mime_type", content.output.as_ref()),
        ] {
            if let Some(content) = content {
                attributes.push(KeyValue::new(value, content.clone()));
                attributes.push(KeyValue::new(kind, "application/json"));
            }
        }
    }
    attributes
}
