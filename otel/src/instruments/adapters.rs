//! Adapters (LoRA): the instrument of their use, and their names as attributes of other instruments.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;

use super::build::observed;
use crate::catalog::ADAPTER;

/// Adapters that are attributes by their names. An instrument keeps each attribute that it was ever
/// recorded with, while adapters may come and go for ever.
const MAX_NAMES: usize = 64;
/// The name of all further ones.
const OTHER: &str = "_OTHER";

/// The names that were attributes so far.
#[derive(Debug, Default)]
pub(super) struct AdapterNames(Mutex<HashSet<String>>);

impl AdapterNames {
    /// The attribute of a request with an adapter; `None` for one of the base model.
    pub fn attribute(&self, name: Option<&str>) -> Option<KeyValue> {
        let name = name?;
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !seen.contains(name) {
            if seen.len() >= MAX_NAMES {
                return Some(KeyValue::new(ADAPTER, OTHER));
            }
            seen.insert(name.to_owned());
        }
        Some(KeyValue::new(ADAPTER, name.to_owned()))
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_the_bound_share_one_attribute() {
        let names = AdapterNames::default();
        let value = |name: &str| {
            let attribute = names.attribute(Some(name));
            attribute.map(|attribute| attribute.value.to_string())
        };
        assert_eq!(names.attribute(None), None);
        for index in 0..1000 {
            let name = format!("n{index}");
            let want = if index < MAX_NAMES { &name } else { OTHER };
            assert_eq!(value(&name).as_deref(), Some(want));
        }
        assert_eq!(value("n0").as_deref(), Some("n0"));
    }
}
