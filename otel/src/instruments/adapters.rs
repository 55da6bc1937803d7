//! The instrument of adapters (LoRA).

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;

use super::build::observed;

/// Builds the instrument for a server with so many `slots` for adapters; `read` is called at each
/// collection and returns the names of the adapters of running and of waiting requests.
pub fn observe_adapters(
    meter: &Meter,
    slots: usize,
    read: impl Fn() -> [Vec<String>; 2] + Send + Sync + 'static,
) {
    observed(meter, "llm.lora_requests_info", move || {
        let [running, waiting] = read().map(|names| names.join(","));
        let labels = vec![
            KeyValue::new("max_lora", slots.to_string()),
            KeyValue::new("running_lora_adapters", running),
            KeyValue::new("waiting_lora_adapters", waiting),
        ];
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        vec![(labels, now.map_or(0.0, |now| now.as_secs_f64()))]
    });
}
