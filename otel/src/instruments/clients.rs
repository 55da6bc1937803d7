//! Instruments of the clients: requests and tokens of each API key.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Meter};

use super::build::counter;
use crate::catalog::{CLIENT, MODEL};

/// Most clients with series of their own. Keys may change while the server runs, so that there is no
/// other bound; all further clients share one series.
const MAX_NAMES: usize = 1024;
const OTHERS: &str = "(others)";

#[derive(Debug)]
pub(super) struct ClientInstruments {
    model: String,
    requests: Counter<u64>,
    refusals: Counter<u64>,
    prompt_tokens: Counter<u64>,
    generation_tokens: Counter<u64>,
    names: Mutex<HashSet<String>>,
}

impl ClientInstruments {
    pub fn new(meter: &Meter, model: &str) -> Self {
        Self {
            model: model.to_owned(),
            requests: counter(meter, "llm.client.requests"),
            refusals: counter(meter, "llm.client.refusals"),
            prompt_tokens: counter(meter, "llm.client.prompt_tokens"),
            generation_tokens: counter(meter, "llm.client.generation_tokens"),
            names: Mutex::default(),
        }
    }

    pub fn ended(&self, name: &str, prompt_tokens: usize, generation_tokens: usize) {
        let attributes = self.attributes(name);
        self.requests.add(1, &attributes);
        self.prompt_tokens.add(prompt_tokens as u64, &attributes);
        self.generation_tokens
            .add(generation_tokens as u64, &attributes);
    }

    pub fn refused(&self, name: &str) {
        self.refusals.add(1, &self.attributes(name));
    }

    fn attributes(&self, name: &str) -> [KeyValue; 2] {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let known = names.contains(name);
        if !known && names.len() < MAX_NAMES {
            names.insert(name.to_owned());
        }
        let shown = match known || names.contains(name) {
            true => name.to_owned(),
            false => OTHERS.to_owned(),
        };
        [
            KeyValue::new(MODEL, self.model.clone()),
            KeyValue::new(CLIENT, shown),
        ]
    }
}
