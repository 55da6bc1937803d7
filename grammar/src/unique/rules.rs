//! The arrays of a schema whose items must differ.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

/// The keywords whose schemas hold for the value itself, for some values at least.
const SAME: [&str; 5] = ["allOf", "anyOf", "oneOf", "then", "else"];
/// The keywords whose schemas are negated, so that what holds within them is not followed.
const HIDDEN: [&str; 2] = ["not", "if"];

/// A schema by its number.
pub(crate) type Id = u32;

#[derive(Debug, Default)]
struct Node {
    unique: bool,
    /// True if every item that is begun can still become a new one: see [`Rules::is_open`].
    open: bool,
    same: Vec<Id>,
    properties: HashMap<String, Id>,
    /// The schemas of properties that are not named.
    others: Vec<Id>,
    prefix: Vec<Id>,
    items: Option<Id>,
}

/// The rules of one schema. Where it depends on the value which schemas hold, all of them are
/// followed.
#[derive(Debug)]
pub(crate) struct Rules {
    nodes: Vec<Node>,
    root: Vec<Id>,
}

impl Rules {
    /// The rules of `schema`, which is in the vocabulary of draft 2020-12. `None` if no items must
    /// differ, or if that is asked where it cannot be followed.
    pub fn of(schema: &Value) -> Option<Self> {
        let mut has_unique = false;
        let mut hidden = Vec::new();
        each(schema, &mut |map| {
            has_unique |= map.get("uniqueItems") == Some(&Value::Bool(true));
            hidden.extend(HIDDEN.iter().filter_map(|key| map.get(*key)));
        });
        if !has_unique || is_asked_within(&hidden, schema) {
            return None;
        }
        let mut maker = Maker {
            root: schema,
            nodes: Vec::new(),
            numbers: HashMap::new(),
        };
        let root = maker.node(schema);
        let nodes = maker.nodes;
        let mut rules = Self {
            nodes,
            root: Vec::new(),
        };
        rules.root = rules.closed(vec![root]);
        Some(rules)
    }

    pub fn root(&self) -> Vec<Id> {
        self.root.clone()
    }

    /// The schemas of the property `name`.
    pub fn property(&self, schemas: &[Id], name: &str) -> Vec<Id> {
        let mut found = Vec::new();
        for &id in schemas {
            let node = &self.nodes[id as usize];
            match node.properties.get(name) {
                Some(&id) => found.push(id),
                None => found.extend(&node.others),
            }
        }
        self.closed(found)
    }

    /// The schemas of the item at `index`.
    pub fn item(&self, schemas: &[Id], index: usize) -> Vec<Id> {
        let item = |&id: &Id| {
            let node = &self.nodes[id as usize];
            node.prefix.get(index).copied().or(node.items)
        };
        self.closed(schemas.iter().filter_map(item).collect())
    }

    pub fn are_unique(&self, schemas: &[Id]) -> bool {
        schemas.iter().any(|&id| self.nodes[id as usize].unique)
    }

    /// True if a value of `schemas` that equals another one can always be made different as long as
    /// it is not complete: a string without a bound, an object that may have more properties.
    pub fn is_open(&self, schemas: &[Id]) -> bool {
        schemas.iter().all(|&id| self.nodes[id as usize].open)
    }

    fn closed(&self, mut schemas: Vec<Id>) -> Vec<Id> {
        let mut at = 0;
        while let Some(&id) = schemas.get(at) {
            for &same in &self.nodes[id as usize].same {
                if !schemas.contains(&same) {
                    schemas.push(same);
                }
            }
            at += 1;
        }
        schemas.sort_unstable();
        schemas.dedup();
        schemas
    }
}

/// Calls `call` with every schema within `schema`, and with maps that only look like schemas.
fn each<'a>(schema: &'a Value, call: &mut impl FnMut(&'a Map<String, Value>)) {
    let mut waiting = vec![schema];
    while let Some(value) = waiting.pop() {
        match value {
            Value::Object(map) => {
                call(map);
                waiting.extend(map.values());
            }
            Value::Array(list) => waiting.extend(list),
            _ => {}
        }
    }
}

/// True if one of `hidden`, or a schema that they refer to, asks for items that differ.
fn is_asked_within(hidden: &[&Value], root: &Value) -> bool {
    let (mut waiting, mut seen) = (hidden.to_vec(), HashSet::new());
    let mut asked = false;
    while let Some(schema) = waiting.pop() {
        let mut references = Vec::new();
        each(schema, &mut |map| {
            asked |= map.get("uniqueItems") == Some(&Value::Bool(true));
            references.extend(map.get("$ref").and_then(Value::as_str));
        });
        for reference in references {
            if seen.insert(reference) {
                waiting.extend(target(root, reference));
            }
        }
    }
    asked
}

fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.get("$defs")?
        .get(reference.trim_start_matches("#/$defs/"))
}

struct Maker<'a> {
    root: &'a Value,
    nodes: Vec<Node>,
    /// The numbers of schemas that were begun, by address.
    numbers: HashMap<*const Value, Id>,
}

impl<'a> Maker<'a> {
    fn node(&mut self, schema: &'a Value) -> Id {
        let address = std::ptr::from_ref(schema);
        if let Some(&id) = self.numbers.get(&address) {
            return id;
        }
        let id = self.nodes.len() as Id;
        self.numbers.insert(address, id);
        self.nodes.push(Node {
            open: true,
            ..Node::default()
        });
        let Some(map) = schema.as_object() else {
            return id;
        };
        let mut node = Node {
            unique: map.get("uniqueItems") == Some(&Value::Bool(true)),
            open: is_open(map),
            ..Node::default()
        };
        for (key, value) in map {
            match (key.as_str(), value) {
                ("$ref", Value::String(reference)) => {
                    let target = target(self.root, reference);
                    node.same.extend(target.map(|target| self.node(target)));
                }
                ("properties", Value::Object(entries)) => {
                    for (name, inner) in entries {
                        let inner = self.node(inner);
                        node.properties.insert(name.clone(), inner);
                    }
                }
                ("patternProperties", Value::Object(entries)) => {
                    let inner = entries.values().map(|inner| self.node(inner));
                    node.others.extend(inner);
                }
                ("dependentSchemas", Value::Object(entries)) => {
                    let inner = entries.values().map(|inner| self.node(inner));
                    node.same.extend(inner);
                }
                ("additionalProperties" | "unevaluatedProperties", inner) => {
                    node.others.push(self.node(inner));
                }
                ("prefixItems", Value::Array(list)) => {
                    node.prefix = list.iter().map(|inner| self.node(inner)).collect();
                }
                ("items" | "unevaluatedItems", inner) => node.items = Some(self.node(inner)),
                (key, Value::Array(list)) if SAME.contains(&key) => {
                    let inner = list.iter().map(|inner| self.node(inner));
                    node.same.extend(inner);
                }
                (key, inner) if SAME.contains(&key) => node.same.push(self.node(inner)),
                _ => {}
            }
        }
        // A property may be named and match a pattern, too.
        if map.contains_key("patternProperties") {
            let others = node.others.clone();
            let wrap = |id: Id, nodes: &mut Vec<Node>| {
                let same = std::iter::once(id).chain(others.iter().copied()).collect();
                nodes.push(Node {
                    same,
                    open: true,
                    ..Node::default()
                });
                nodes.len() as Id - 1
            };
            for inner in node.properties.values_mut() {
                *inner = wrap(*inner, &mut self.nodes);
            }
        }
        self.nodes[id as usize] = node;
        id
    }
}

fn is_open(map: &Map<String, Value>) -> bool {
    let bounds = [
        "const",
        "enum",
        "format",
        "items",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "exclusiveMaximum",
        "pattern",
        "prefixItems",
        "propertyNames",
        "patternProperties",
        "unevaluatedProperties",
        "additionalProperties",
    ];
    let closed = ["boolean", "null"];
    let is_closed = |kind: &Value| kind.as_str().is_some_and(|kind| closed.contains(&kind));
    let by_type = match map.get("type") {
        Some(Value::Array(kinds)) => !kinds.iter().any(is_closed),
        Some(kind) => !is_closed(kind),
        None => true,
    };
    by_type && !map.keys().any(|key| bounds.contains(&key.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn arrays_are_found_wherever_references_and_branches_lead() {
        let schema = json!({
            "properties": {"tags": {"$ref": "#/$defs/0"}, "rows": {"items": {"anyOf": [{"$ref": "#/$defs/0"}, {}]}}},
            "additionalProperties": {"type": "array"},
            "$defs": {"0": {"type": "array", "uniqueItems": true, "items": {"type": "string"}}},
        });
        let rules = Rules::of(&schema).unwrap();
        let root = rules.root();
        let tags = rules.property(&root, "tags");
        assert!(rules.are_unique(&tags) && rules.is_open(&rules.item(&tags, 3)));
        let rows = rules.property(&root, "rows");
        assert!(!rules.are_unique(&rows) && rules.are_unique(&rules.item(&rows, 0)));
        assert!(!rules.are_unique(&rules.property(&root, "other")));
    }

    #[test]
    fn what_is_negated_is_not_followed() {
        let defs = json!({"0": {"uniqueItems": true}});
        assert!(Rules::of(&json!({"not": {"$ref": "#/$defs/0"}, "$defs": defs})).is_none());
        assert!(Rules::of(&json!({"if": {"items": {"uniqueItems": true}}, "then": {}})).is_none());
        assert!(Rules::of(&json!({"uniqueItems": false})).is_none());
    }
}
