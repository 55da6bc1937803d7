//! Instruments of speculative decoding. They exist only where the engine drafts tokens.

use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;

use super::build::observed;
use super::engine::{EngineSnapshot, ReadEngine};
use crate::catalog::POSITION;

/// Builds the instruments for drafts of at most `positions` tokens; `read` is called at each
/// collection. `model` is the attribute that all of them have.
pub(super) fn observe(meter: &Meter, model: &KeyValue, positions: usize, read: &ReadEngine) {
    let single = |name, value: fn(&EngineSnapshot) -> f64| single(meter, model, read, name, value);
    single("llm.speculation.drafts", |s| s.drafts as f64);
    single("llm.speculation.drafted_tokens", |s| {
        s.drafted_tokens as f64
    });
    single("llm.speculation.accepted_tokens", |s| {
        s.accepted_tokens as f64
    });
    single("llm.speculation.accept_length", |s| {
        1.0 + ratio(s.accepted_tokens, s.drafts)
    });
    single("llm.speculation.accept_rate", |s| {
        ratio(s.accepted_tokens, s.drafted_tokens)
    });
    let (read, model) = (Arc::clone(read), model.clone());
    observed(
        meter,
        "llm.speculation.accepted_tokens_by_position",
        move || {
            let accepted = read().accepted_at;
            let of_position = |(position, &accepted): (usize, &u64)| {
                let position = KeyValue::new(POSITION, position.to_string());
                (vec![model.clone(), position], accepted as f64)
            };
            let each = accepted.iter().take(positions).enumerate();
            each.map(of_position).collect()
        },
    );
}

/// Builds the instruments of the draft model.
pub(super) fn observe_draft_model(meter: &Meter, model: &KeyValue, read: &ReadEngine) {
    let single = |name, value: fn(&EngineSnapshot) -> f64| single(meter, model, read, name, value);
    single("llm.speculation.draft_model.forwards", |s| {
        s.draft_forwards as f64
    });
    single("llm.speculation.draft_model.failures", |s| {
        s.draft_failures as f64
    });
    single("llm.speculation.draft_model.computed_tokens", |s| {
        s.draft_model_tokens as f64
    });
    single("llm.speculation.draft_model.time", |s| {
        s.draft_time.as_secs_f64()
    });
}

/// An instrument with one value.
fn single(
    meter: &Meter,
    model: &KeyValue,
    read: &ReadEngine,
    name: &'static str,
    value: fn(&EngineSnapshot) -> f64,
) {
    let (read, model) = (Arc::clone(read), model.clone());
    observed(meter, name, move || {
        vec![(vec![model.clone()], value(&read()))]
    });
}

fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}
