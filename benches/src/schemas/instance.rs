//! Instances as outputs that follow a grammar.

use std::time::Duration;

use hearth_grammar::{Compiled, VocabularySource};
use serde_json::{Map, Value};

use super::clock;
use super::vocabulary::Words;

/// `value` with a space after each comma and colon, and with properties in the instance's order.
pub fn text_of(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(text_of).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(entries) => {
            let entry = |(name, value): (&String, &Value)| {
                format!("{}: {}", Value::from(name.as_str()), text_of(value))
            };
            let entries: Vec<_> = entries.iter().map(entry).collect();
            format!("{{{}}}", entries.join(", "))
        }
        other => other.to_string(),
    }
}

/// `value` with the properties of each object in the order of that `properties` of the schema which
/// names most of them. Other properties follow in the instance's order.
pub fn in_order(value: &Value, orders: &[&Map<String, Value>]) -> Value {
    match value {
        Value::Array(items) => items.iter().map(|item| in_order(item, orders)).collect(),
        Value::Object(entries) => {
            let named = |order: &&&Map<String, Value>| {
                entries
                    .keys()
                    .filter(|name| order.contains_key(*name))
                    .count()
            };
            let best = orders.iter().max_by_key(named);
            let rank = |name: &str| best.and_then(|order| order.keys().position(|own| own == name));
            let mut sorted: Vec<_> = entries.iter().collect();
            sorted.sort_by_key(|(name, _)| rank(name).unwrap_or(usize::MAX));
            let entry = |(name, value): (&String, &Value)| (name.clone(), in_order(value, orders));
            Value::Object(sorted.into_iter().map(entry).collect())
        }
        other => other.clone(),
    }
}

/// Every `properties` in `schema`.
pub fn orders(schema: &Value) -> Vec<&Map<String, Value>> {
    let mut found = Vec::new();
    let mut waiting = vec![schema];
    while let Some(value) = waiting.pop() {
        match value {
            Value::Object(map) => {
                found.extend(map.get("properties").and_then(Value::as_object));
                waiting.extend(map.values());
            }
            Value::Array(list) => waiting.extend(list),
            _ => {}
        }
    }
    found
}

/// True if the grammar accepts the tokens of `text` as a whole output. The time of each mask on the
/// way is added to `masks`, if that is given.
pub fn follow(
    compiled: &Compiled,
    words: &Words,
    text: &str,
    mut masks: Option<&mut Vec<Duration>>,
) -> bool {
    let mut matcher = compiled.matcher();
    let tokens = words.encode(text).unwrap_or_default();
    for token in tokens.into_iter().chain([words.end()]) {
        if let Some(masks) = &mut masks {
            let (failed, took) = clock::timed(|| !matcher.is_complete() && matcher.mask().is_err());
            if failed {
                return false;
            }
            masks.push(took);
        }
        if matcher.consume(token).is_err() {
            return false;
        }
    }
    true
}
