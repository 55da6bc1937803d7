//! Enumerates the schemas within a schema.

use serde_json::{Map, Value};

use super::refusal::below;

/// The place of a schema within another.
pub(super) enum Step<'a> {
    /// A branch of `anyOf`, `oneOf` or `allOf`.
    Branch(&'a str, usize),
    /// An entry of `properties` or `patternProperties`.
    Property(&'a str, &'a str),
    /// An entry of a list of items.
    Item(&'a str, usize),
    /// The schema of all other items or properties.
    Other(&'a str),
}

impl Step<'_> {
    fn pointer(&self) -> String {
        match self {
            Self::Branch(key, index) | Self::Item(key, index) => format!("{key}/{index}"),
            Self::Property(key, name) => {
                format!("{key}/{}", name.replace('~', "~0").replace('/', "~1"))
            }
            Self::Other(key) => (*key).to_owned(),
        }
    }
}

/// All schemas within `map`, with their paths as JSON pointers: `/properties/a`.
pub(super) fn schemas_within(map: &Map<String, Value>) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    for (key, value) in map {
        match (key.as_str(), value) {
            ("enum" | "const" | "default" | "examples" | "example" | "required", _) => {}
            (
                "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas"
                | "dependencies",
                Value::Object(entries),
            ) => {
                let entry = |(name, inner): (&String, _)| (below(&below("", key), name), inner);
                found.extend(entries.iter().map(entry));
            }
            (_, Value::Array(list)) if LISTS.contains(&key.as_str()) => {
                let item = |(index, inner)| (format!("/{key}/{index}"), inner);
                found.extend(list.iter().enumerate().map(item));
            }
            (_, inner) if SINGLE.contains(&key.as_str()) => found.push((format!("/{key}"), inner)),
            _ => {}
        }
    }
    found
}

/// Keywords with a list of schemas.
pub(super) const LISTS: [&str; 5] = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];
/// Keywords with one schema.
pub(super) const SINGLE: [&str; 12] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
];

/// The schemas within `map` that constrain the value itself or a value inside it.
pub(super) fn parts(map: &Map<String, Value>) -> impl Iterator<Item = (Step<'_>, &Value)> {
    map.iter().flat_map(|(key, value)| {
        let key = key.as_str();
        let found: Vec<(Step<'_>, &Value)> = match (key, value) {
            ("anyOf" | "oneOf" | "allOf", Value::Array(list)) => {
                let list = list.iter().enumerate();
                list.map(|(i, inner)| (Step::Branch(key, i), inner))
                    .collect()
            }
            ("prefixItems" | "items", Value::Array(list)) => {
                let list = list.iter().enumerate();
                list.map(|(i, inner)| (Step::Item(key, i), inner)).collect()
            }
            ("properties" | "patternProperties", Value::Object(entries)) => entries
                .iter()
                .map(|(name, inner)| (Step::Property(key, name), inner))
                .collect(),
            ("items" | "additionalItems" | "additionalProperties", inner) => {
                vec![(Step::Other(key), inner)]
            }
            _ => Vec::new(),
        };
        found
    })
}

/// `pointer` extended by `step`.
pub(super) fn joined_pointer(pointer: &str, step: &Step<'_>) -> String {
    format!("{pointer}/{}", step.pointer())
}
