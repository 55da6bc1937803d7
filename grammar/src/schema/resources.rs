//! Finds the schemas that references name: by JSON pointer, by `$id` and by anchor. Nothing is
//! ever fetched.

use std::collections::HashMap;

use fluent_uri::{Uri, UriRef};
use serde_json::{Map, Value};

use super::draft::Draft;
use super::parts::schemas_within;
use super::refusal::{below, wrong};
use crate::error::{GrammarError, first_words};

/// The URI of a document that names none.
const DEFAULT_URI: &str = "json-schema:///";

/// A place in a document.
#[derive(Clone, Debug)]
pub(super) struct Place<'a> {
    pub schema: &'a Value,
    /// The JSON pointer from the root of the whole document, with its `#`.
    pub pointer: String,
    /// The URI against which references are resolved.
    pub base: Uri<String>,
    pub draft: Option<Draft>,
}

/// The schemas of a document that can be named.
#[derive(Debug)]
pub(super) struct Resources<'a> {
    by_uri: HashMap<String, Place<'a>>,
    /// Anchors by the URI of their resource and their name.
    anchors: HashMap<(String, String), Place<'a>>,
    /// The places of each `$dynamicAnchor`.
    dynamic: HashMap<String, Vec<Place<'a>>>,
    has_recursive_anchor: bool,
}

impl<'a> Place<'a> {
    /// The root of a document.
    pub fn root(schema: &'a Value) -> Self {
        let base = Uri::parse(DEFAULT_URI.to_owned()).unwrap_or_else(|_| unreachable!());
        let root = Self {
            schema,
            pointer: "#".to_owned(),
            base,
            draft: None,
        };
        root.entered()
    }

    /// The place of the schema `schema`, whose pointer from here is `path`.
    pub fn at(&self, schema: &'a Value, pointer: String) -> Self {
        let inner = Self {
            schema,
            pointer,
            base: self.base.clone(),
            draft: self.draft,
        };
        inner.entered()
    }

    /// The same with the base and the draft that the schema itself names.
    fn entered(mut self) -> Self {
        let Value::Object(map) = self.schema else {
            return self;
        };
        self.draft = Draft::of(map).or(self.draft);
        if let Some(id) = own_id(map, self.draft)
            && let Ok(reference) = UriRef::parse(id)
            && let Ok(uri) = reference.resolve_against(&self.base)
        {
            self.base = without_fragment(&uri);
        }
        self
    }

    fn uri(&self) -> String {
        self.base.normalize().into_string()
    }
}

/// The URI that `schema` names itself with, unless it is only a fragment.
fn own_id(schema: &Map<String, Value>, draft: Option<Draft>) -> Option<&str> {
    let keys: &[&str] = match draft {
        Some(Draft::Four) => &["id"],
        Some(_) => &["$id"],
        None => &["$id", "id"],
    };
    let alone = draft.is_some_and(Draft::ref_stands_alone) && schema.contains_key("$ref");
    let id = keys.iter().find_map(|key| schema.get(*key)?.as_str());
    id.filter(|id| !id.starts_with('#') && !id.is_empty() && !alone)
}

fn without_fragment(uri: &Uri<String>) -> Uri<String> {
    let text = uri.as_str();
    let text = text.split('#').next().unwrap_or(text);
    Uri::parse(text.to_owned()).unwrap_or_else(|_| uri.clone())
}

impl<'a> Resources<'a> {
    pub fn new(document: &'a Value) -> Self {
        let root = Place::root(document);
        let mut resources = Self {
            by_uri: HashMap::from([(root.uri(), root.clone())]),
            anchors: HashMap::new(),
            dynamic: HashMap::new(),
            has_recursive_anchor: false,
        };
        let mut waiting = vec![root];
        while let Some(place) = waiting.pop() {
            let Value::Object(map) = place.schema else {
                continue;
            };
            resources.add(map, &place);
            for (path, inner) in schemas_within(map) {
                waiting.push(place.at(inner, format!("{}{path}", place.pointer)));
            }
        }
        resources
    }

    fn add(&mut self, map: &Map<String, Value>, place: &Place<'a>) {
        if own_id(map, place.draft).is_some() {
            self.by_uri
                .entry(place.uri())
                .or_insert_with(|| place.clone());
        }
        let text = |key: &str| map.get(key).and_then(Value::as_str);
        let from_id = ["$id", "id"]
            .into_iter()
            .filter_map(|key| text(key)?.strip_prefix('#'));
        let named = ["$anchor", "$dynamicAnchor"].into_iter().filter_map(text);
        for name in from_id.chain(named) {
            let key = (place.uri(), name.to_owned());
            self.anchors.entry(key).or_insert_with(|| place.clone());
        }
        if let Some(name) = text("$dynamicAnchor") {
            let places = self.dynamic.entry(name.to_owned()).or_default();
            places.push(place.clone());
        }
        self.has_recursive_anchor |= map.get("$recursiveAnchor") == Some(&Value::Bool(true));
    }

    /// The place that the `$ref` `reference` at `from` names.
    ///
    /// # Errors
    /// If there is none, or it is in another document.
    pub fn resolve(&self, reference: &str, from: &Place<'a>) -> Result<Place<'a>, GrammarError> {
        let pointer = below(&from.pointer, "$ref");
        let unresolved = |what: &str| {
            let message = format!("`$ref` {:?} {what}", first_words(reference));
            GrammarError::unsupported(message).at(&pointer)
        };
        let uri = UriRef::parse(reference)
            .ok()
            .and_then(|reference| reference.resolve_against(&from.base).ok());
        // Names of definitions may have characters that URIs have not.
        let (document, fragment) = match &uri {
            Some(uri) => {
                let uri = uri.normalize().into_string();
                let (document, fragment) = uri.split_once('#').unwrap_or((&uri, ""));
                (document.to_owned(), fragment.to_owned())
            }
            None => match reference.strip_prefix('#') {
                Some(fragment) => (from.uri(), fragment.to_owned()),
                None => return Err(unresolved("is not a URI reference")),
            },
        };
        let document = document.trim_end_matches('#');
        let Some(resource) = self.by_uri.get(document) else {
            return Err(unresolved(
                "names another document: `$ref` must be local (#/...), because nothing is fetched",
            ));
        };
        let fragment = percent_decoded(&fragment);
        if fragment.is_empty() {
            return Ok(resource.clone());
        }
        let found = match fragment.strip_prefix('/') {
            Some(path) => follow(resource, path),
            None => self.anchors.get(&(document.to_owned(), fragment)).cloned(),
        };
        let found = found.ok_or_else(|| unresolved("names nothing in the schema"))?;
        match found.schema {
            Value::Object(_) | Value::Bool(_) => Ok(found),
            _ => Err(wrong(&pointer, "`$ref` must name a schema")),
        }
    }

    /// The place that the `$dynamicRef` `reference` at `from` names, if it is the same for every
    /// way to it.
    ///
    /// # Errors
    /// If it is not, or there is no such place.
    pub fn resolve_dynamic(
        &self,
        reference: &str,
        from: &Place<'a>,
    ) -> Result<Place<'a>, GrammarError> {
        let place = self.resolve(reference, from)?;
        let name = reference.split_once('#').map_or("", |(_, name)| name);
        match self.dynamic.get(name) {
            Some(places) if places.len() > 1 => Err(GrammarError::unsupported(
                "`$dynamicRef` is supported only where one `$dynamicAnchor` has its name",
            )
            .at(below(&from.pointer, "$dynamicRef"))),
            _ => Ok(place),
        }
    }

    /// The place that a `$recursiveRef` names.
    ///
    /// # Errors
    /// If it depends on the way to it.
    pub fn resolve_recursive(&self, from: &Place<'a>) -> Result<Place<'a>, GrammarError> {
        if self.has_recursive_anchor && self.by_uri.len() > 1 {
            let message = "`$recursiveRef` is supported only in a schema of one document";
            let pointer = below(&from.pointer, "$recursiveRef");
            return Err(GrammarError::unsupported(message).at(pointer));
        }
        self.resolve("#", from)
    }
}

/// The place behind the JSON pointer `path`, without its first slash, from `resource`.
fn follow<'a>(resource: &Place<'a>, path: &str) -> Option<Place<'a>> {
    let mut place = resource.clone();
    for step in path.split('/') {
        let name = step.replace("~1", "/").replace("~0", "~");
        let inner = match place.schema {
            Value::Object(map) => map.get(&name)?,
            Value::Array(list) => list.get(name.parse::<usize>().ok()?)?,
            _ => return None,
        };
        let pointer = below(&place.pointer, &name);
        place = place.at(inner, pointer);
    }
    Some(place)
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| byte == b'%');
        let code = code.and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(code) => {
                bytes.push(code);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
