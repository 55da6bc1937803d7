//! Instruments of constrained decoding.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;

use super::build::observed;
use crate::catalog::{MODEL, REFUSAL};

/// Totals of constrained decoding since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GrammarSnapshot {
    pub compilations: u64,
    pub compile_time: Duration,
    pub cache_hits: u64,
    pub cache_misses: u64,
    pub masks: u64,
    pub mask_time: Duration,
    pub forced_tokens: u64,
    pub forced_bytes: u64,
    pub fallbacks: u64,
    /// Refused requests by the API's error code.
    pub refusals: [(&'static str, u64); 3],
}

/// Builds the instruments; `read` is called at each collection.
pub fn observe_grammars(
    meter: &Meter,
    model: &str,
    read: impl Fn() -> GrammarSnapshot + Send + Sync + 'static,
) {
    let read = Arc::new(read);
    let model = KeyValue::new(MODEL, model.to_owned());
    let total = |name, value: fn(&GrammarSnapshot) -> f64| {
        let (read, model) = (Arc::clone(&read), model.clone());
        observed(meter, name, move || {
            vec![(vec![model.clone()], value(&read()))]
        });
    };
    total("llm.grammar.compilations", |now| now.compilations as f64);
    total("llm.grammar.compile_time", |now| {
        now.compile_time.as_secs_f64()
    });
    total("llm.grammar.cache_hits", |now| now.cache_hits as f64);
    total("llm.grammar.cache_misses", |now| now.cache_misses as f64);
    total("llm.grammar.masks", |now| now.masks as f64);
    total("llm.grammar.mask_time", |now| now.mask_time.as_secs_f64());
    total("llm.grammar.forced_tokens", |now| now.forced_tokens as f64);
    total("llm.grammar.forced_bytes", |now| now.forced_bytes as f64);
    total("llm.grammar.fallbacks", |now| now.fallbacks as f64);
    observed(meter, "llm.grammar.refusals", move || {
        let refusals = read().refusals.into_iter();
        let point = |(reason, count)| {
            let reason = KeyValue::new(REFUSAL, reason);
            (vec![model.clone(), reason], count as f64)
        };
        refusals.map(point).collect()
    });
}
