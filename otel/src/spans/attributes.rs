//! Attributes of a continuation's span.

use std::time::Duration;

use opentelemetry::KeyValue;

use super::step_times::StepTimes;
use crate::catalog::{ADAPTER, ERROR, OPERATION, PROVIDER, PROVIDER_NAME};
use crate::records::{Ending, RequestRecord, RequestTimes};

/// Stop strings that a span has at the most, and characters of each: clients choose them.
const MAX_STOPS: usize = 16;
const MAX_STOP: usize = 64;

/// The attributes of `llm_request`: OpenTelemetry's, and unless `latest_only` also the
/// names that vLLM's span has.
pub(super) fn request_attributes(
    model: &str,
    record: &RequestRecord,
    steps: Option<&StepTimes>,
    latest_only: bool,
) -> Vec<KeyValue> {
    let mut attributes = vec![
        KeyValue::new(OPERATION, record.operation),
        KeyValue::new(PROVIDER, PROVIDER_NAME),
        KeyValue::new("gen_ai.request.model", model.to_owned()),
        KeyValue::new("gen_ai.response.model", model.to_owned()),
        KeyValue::new("gen_ai.response.id", record.request_id.clone()),
        KeyValue::new("gen_ai.request.stream", record.stream),
        count("gen_ai.request.max_tokens", record.max_tokens),
        KeyValue::new("gen_ai.request.temperature", decimal(record.temperature)),
        KeyValue::new("gen_ai.request.top_p", decimal(record.top_p)),
        count("gen_ai.usage.input_tokens", record.prompt_tokens),
        count("gen_ai.usage.output_tokens", record.completion_tokens),
        count("gen_ai.usage.cache_read.input_tokens", record.cached_tokens),
        KeyValue::new(
            "gen_ai.response.finish_reasons",
            opentelemetry::Value::Array(opentelemetry::Array::String(vec![
                record.ending.as_str().into(),
            ])),
        ),
    ];
    if let Some(top_k) = record.top_k {
        attributes.push(count("gen_ai.request.top_k", top_k));
    }
    if let Some(seed) = record.seed {
        attributes.push(KeyValue::new("gen_ai.request.seed", seed.cast_signed()));
    }
    for (name, penalty) in [
        ("gen_ai.request.frequency_penalty", record.frequency_penalty),
        ("gen_ai.request.presence_penalty", record.presence_penalty),
    ] {
        if penalty != 0.0 {
            attributes.push(KeyValue::new(name, decimal(penalty)));
        }
    }
    if !record.stop.is_empty() {
        let stop = record.stop.iter().take(MAX_STOPS);
        let stop = stop.map(|text| text.chars().take(MAX_STOP).collect::<String>().into());
        let stop = opentelemetry::Value::Array(opentelemetry::Array::String(stop.collect()));
        attributes.push(KeyValue::new("gen_ai.request.stop_sequences", stop));
    }
    if let (true, Some(waited)) = (record.stream, record.times.to_first_token()) {
        attributes.push(seconds("gen_ai.response.time_to_first_chunk", waited));
    }
    if record.copies != 1 {
        attributes.push(count("gen_ai.request.choice.count", record.copies));
    }
    if let Some(kind) = record.output_type {
        attributes.push(KeyValue::new("gen_ai.output.type", kind));
    }
    if let Some(server) = &record.server {
        attributes.extend(server.attributes());
    }
    if let Some(content) = &record.content {
        attributes.push(KeyValue::new(
            "gen_ai.input.messages",
            content.input.clone(),
        ));
        for (name, content) in [
            ("gen_ai.system_instructions", &content.system),
            ("gen_ai.tool.definitions", &content.tools),
            ("gen_ai.output.messages", &content.output),
        ] {
            attributes.extend(content.clone().map(|content| KeyValue::new(name, content)));
        }
    }
    if record.forced_tokens > 0 {
        attributes.push(count("llm.grammar.forced_tokens", record.forced_tokens));
    }
    if let Some(adapter) = &record.adapter {
        attributes.push(KeyValue::new(ADAPTER, adapter.clone()));
    }
    if record.drafted_tokens > 0 {
        attributes.push(count(
            "llm.speculation.drafted_tokens",
            record.drafted_tokens,
        ));
        attributes.push(count(
            "llm.speculation.accepted_tokens",
            record.accepted_tokens,
        ));
    }
    let labels = record.labels.iter().cloned();
    attributes.extend(labels.map(|(name, label)| KeyValue::new(name, label)));
    match record.ending {
        Ending::Stop | Ending::Length => {}
        Ending::Abort => attributes.push(KeyValue::new(ERROR, "client_disconnect")),
        Ending::Error => attributes.push(KeyValue::new(ERROR, "internal_error")),
    }
    if !latest_only {
        attributes.extend(vllm_attributes(record, steps));
    }
    attributes
}

/// The attributes that vLLM gives its own span.
fn vllm_attributes(record: &RequestRecord, steps: Option<&StepTimes>) -> Vec<KeyValue> {
    let times: &RequestTimes = &record.times;
    let mut attributes = vec![
        KeyValue::new("gen_ai.request.id", record.request_id.clone()),
        count("gen_ai.request.n", record.copies),
        count("gen_ai.usage.prompt_tokens", record.prompt_tokens),
        count("gen_ai.usage.completion_tokens", record.completion_tokens),
        count("gen_ai.usage.num_sequences", record.copies),
        seconds("gen_ai.latency.e2e", times.duration()),
    ];
    let latencies = [
        ("gen_ai.latency.time_to_first_token", times.to_first_token()),
        ("gen_ai.latency.time_in_queue", times.queue()),
        ("gen_ai.latency.time_in_model_prefill", times.prefill()),
        ("gen_ai.latency.time_in_model_decode", times.decode()),
        ("gen_ai.latency.time_in_model_inference", times.inference()),
        (
            "gen_ai.latency.time_in_scheduler",
            steps.map(|s| s.scheduler),
        ),
        (
            "gen_ai.latency.time_in_model_forward",
            steps.map(|s| s.forward),
        ),
        (
            "gen_ai.latency.time_in_model_execute",
            steps.map(|s| s.execute),
        ),
    ];
    for (name, latency) in latencies {
        attributes.extend(latency.map(|latency| seconds(name, latency)));
    }
    attributes
}

pub(super) fn count(name: &'static str, value: usize) -> KeyValue {
    KeyValue::new(name, i64::try_from(value).unwrap_or(i64::MAX))
}

/// The decimal number that `value` was written as: 0.7, rather than the nearest 32-bit
/// number.
pub(super) fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

pub(super) fn seconds(name: &'static str, value: Duration) -> KeyValue {
    KeyValue::new(name, value.as_secs_f64())
}
