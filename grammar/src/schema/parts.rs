//! Enumerates the schemas within a schema.

use serde_json::{Map, Value};

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
