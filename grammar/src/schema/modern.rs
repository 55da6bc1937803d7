//! Rewrites a schema of any draft in the vocabulary of draft 2020-12: references name entries of
//! one `$defs`, words without meaning are gone, and each schema has its place as `$comment`.

use std::collections::{HashMap, VecDeque};

use serde_json::{Map, Value, json};

use super::draft::{Draft, Word, meaning, nearest, nearest_keyword};
use super::formats;
use super::parts::{LISTS, SINGLE};
use super::refusal::{below, wrong};
use super::resources::{Place, Resources};
use crate::error::{GrammarError, first_words};
use crate::spec::Strictness;

/// Words that a schema has and that were ignored, without repetition.
#[derive(Debug, Default)]
pub(crate) struct Ignored(Vec<String>);

/// The most different words that are remembered.
const MAX_IGNORED: usize = 64;

impl Ignored {
    pub fn add(&mut self, word: &str) {
        let word = first_words(word);
        if self.0.len() < MAX_IGNORED && !self.0.contains(&word) {
            self.0.push(word);
        }
    }

    pub fn into_words(self) -> Vec<String> {
        self.0
    }
}

/// `schema` in the vocabulary of draft 2020-12.
///
/// # Errors
/// If a reference names nothing, a keyword has a value of the wrong type, or `strictness` refuses a
/// word.
pub(super) fn modernised(
    schema: &Value,
    strictness: Strictness,
    ignored: &mut Ignored,
) -> Result<Value, GrammarError> {
    let resources = Resources::new(schema);
    let mut modern = Modern {
        resources: &resources,
        strictness,
        ignored,
        numbers: HashMap::new(),
        waiting: VecDeque::new(),
    };
    let root = Place::root(schema);
    let mut result = match modern.schema(&root)? {
        Value::Object(map) => map,
        Value::Bool(true) => Map::new(),
        _ => return Err(GrammarError::unsatisfiable().at("#")),
    };
    let mut definitions = Map::new();
    while let Some((number, place)) = modern.waiting.pop_front() {
        let definition = modern.schema(&place)?;
        definitions.insert(number.to_string(), definition);
    }
    if !definitions.is_empty() {
        result.insert("$defs".to_owned(), definitions.into());
    }
    Ok(result.into())
}

struct Modern<'a, 'b> {
    resources: &'b Resources<'a>,
    strictness: Strictness,
    ignored: &'b mut Ignored,
    /// The numbers of definitions by the places of their schemas.
    numbers: HashMap<String, usize>,
    /// The definitions that are not rewritten yet.
    waiting: VecDeque<(usize, Place<'a>)>,
}

impl<'a> Modern<'a, '_> {
    fn schema(&mut self, place: &Place<'a>) -> Result<Value, GrammarError> {
        let map = match place.schema {
            Value::Bool(all) => return Ok(Value::Bool(*all)),
            Value::Object(map) => map,
            _ => {
                return Err(wrong(
                    &place.pointer,
                    "a schema must be an object or a boolean",
                ));
            }
        };
        let mut out = Map::new();
        let alone = place.draft.is_some_and(Draft::ref_stands_alone) && map.contains_key("$ref");
        for (key, value) in map {
            if alone && key != "$ref" {
                if meaning(key, place.draft) == Word::Constraint && !is_container(key) {
                    self.ignore(place, key, "beside a `$ref`")?;
                }
                continue;
            }
            self.keyword(place, map, key, value, &mut out)?;
        }
        out.insert("$comment".to_owned(), place.pointer.clone().into());
        Ok(out.into())
    }

    fn keyword(
        &mut self,
        place: &Place<'a>,
        map: &'a Map<String, Value>,
        key: &'a str,
        value: &'a Value,
        out: &mut Map<String, Value>,
    ) -> Result<(), GrammarError> {
        if key == "x-guidance" || key == "nullable" && *value == Value::Bool(true) {
            return self.ignore(place, key, "");
        }
        if key == "nullable" {
            return Ok(());
        }
        match meaning(key, place.draft) {
            Word::Note => return Ok(()),
            Word::Unknown => return self.ignore(place, key, ""),
            Word::Constraint if is_container(key) => return Ok(()),
            Word::Constraint => {}
        }
        let pointer = below(&place.pointer, key);
        match (key, value) {
            ("$ref", _) => {
                let target = self.resources.resolve(text(value, key, &pointer)?, place)?;
                self.refer(target, out);
            }
            ("$dynamicRef", _) => {
                let reference = text(value, key, &pointer)?;
                let target = self.resources.resolve_dynamic(reference, place)?;
                self.refer(target, out);
            }
            ("$recursiveRef", _) => {
                let target = self.resources.resolve_recursive(place)?;
                self.refer(target, out);
            }
            // Before draft 2020-12, a list of schemas by position.
            ("items", Value::Array(list)) => {
                let list = self.list(place, list, &pointer)?;
                out.insert("prefixItems".to_owned(), list);
                if let Some(others) = map.get("additionalItems") {
                    let pointer = below(&place.pointer, "additionalItems");
                    let others = self.schema(&place.at(others, pointer))?;
                    out.insert("items".to_owned(), others);
                }
            }
            ("additionalItems", _) => {}
            ("exclusiveMinimum" | "exclusiveMaximum", Value::Bool(exclusive)) => {
                let inclusive = if key == "exclusiveMinimum" {
                    "minimum"
                } else {
                    "maximum"
                };
                if let Some(bound) = map.get(inclusive).filter(|_| *exclusive) {
                    out.insert(key.to_owned(), bound.clone());
                }
            }
            ("dependencies", Value::Object(entries)) => {
                self.dependencies(place, entries, &pointer, out)?;
            }
            ("properties" | "patternProperties" | "dependentSchemas", Value::Object(entries)) => {
                let mut schemas = Map::new();
                for (name, inner) in entries {
                    let inner = place.at(inner, below(&pointer, name));
                    schemas.insert(name.clone(), self.schema(&inner)?);
                }
                add_entries(out, key, schemas);
            }
            ("properties" | "patternProperties" | "dependentSchemas" | "dependencies", _) => {
                return Err(wrong(&pointer, format!("`{key}` must be an object")));
            }
            ("format", _) => {
                let format = text(value, key, &pointer)?;
                if format == "regex"
                    && formats::may_be_string(map)
                    && self.strictness != Strictness::Lenient
                {
                    let message = "the format \"regex\" is not regular and cannot be enforced";
                    return Err(GrammarError::unsupported(message).at(pointer));
                }
                if formats::pattern(format).is_some() {
                    out.insert(key.to_owned(), value.clone());
                } else if formats::may_be_string(map) {
                    self.ignore_format(place, format)?;
                }
            }
            (_, Value::Array(list)) if LISTS.contains(&key) => {
                let list = self.list(place, list, &pointer)?;
                out.insert(key.to_owned(), list);
            }
            (_, _) if SINGLE.contains(&key) => {
                let inner = self.schema(&place.at(value, pointer))?;
                out.insert(key.to_owned(), inner);
            }
            (_, _) if LISTS.contains(&key) => {
                return Err(wrong(&pointer, format!("`{key}` must be a list")));
            }
            _ => {
                out.insert(key.to_owned(), whole(value));
            }
        }
        Ok(())
    }

    fn list(
        &mut self,
        place: &Place<'a>,
        list: &'a [Value],
        pointer: &str,
    ) -> Result<Value, GrammarError> {
        let schemas = list
            .iter()
            .enumerate()
            .map(|(index, inner)| self.schema(&place.at(inner, format!("{pointer}/{index}"))));
        Ok(Value::Array(schemas.collect::<Result<_, _>>()?))
    }

    /// Adds a reference to `target`, beside another one if there is one.
    fn refer(&mut self, target: Place<'a>, out: &mut Map<String, Value>) {
        let fresh = self.numbers.len();
        let number = *self.numbers.entry(target.pointer.clone()).or_insert(fresh);
        if number == fresh {
            self.waiting.push_back((number, target));
        }
        let reference = format!("#/$defs/{number}");
        if out.contains_key("$ref") {
            let all = out.entry("allOf").or_insert_with(|| json!([]));
            if let Value::Array(all) = all {
                all.push(json!({"$ref": reference}));
            }
        } else {
            out.insert("$ref".to_owned(), reference.into());
        }
    }

    fn dependencies(
        &mut self,
        place: &Place<'a>,
        entries: &'a Map<String, Value>,
        pointer: &str,
        out: &mut Map<String, Value>,
    ) -> Result<(), GrammarError> {
        let (mut names, mut schemas) = (Map::new(), Map::new());
        for (name, value) in entries {
            match value {
                Value::Array(_) => names.insert(name.clone(), value.clone()),
                // Draft 3 had a single name.
                Value::String(_) => names.insert(name.clone(), json!([value])),
                inner => {
                    let inner = place.at(inner, below(pointer, name));
                    schemas.insert(name.clone(), self.schema(&inner)?)
                }
            };
        }
        add_entries(out, "dependentRequired", names);
        add_entries(out, "dependentSchemas", schemas);
        Ok(())
    }

    /// Remembers that a word is ignored.
    ///
    /// # Errors
    /// If that is not wanted.
    fn ignore(&mut self, place: &Place<'_>, word: &str, why: &str) -> Result<(), GrammarError> {
        if self.strictness != Strictness::Strict {
            self.ignored.add(word);
            return Ok(());
        }
        let nearest = nearest_keyword(word).filter(|nearest| *nearest != word);
        let hint = nearest.map_or(String::new(), |word| format!(": did you mean \"{word}\"?"));
        let why = if why.is_empty() {
            ""
        } else {
            " beside a `$ref`"
        };
        let message = format!(
            "unsupported keyword(s) [\"{}\"]{why}{hint}",
            first_words(word)
        );
        Err(GrammarError::unsupported(message).at(&place.pointer))
    }

    fn ignore_format(&mut self, place: &Place<'_>, format: &str) -> Result<(), GrammarError> {
        if self.strictness != Strictness::Strict {
            self.ignored.add(&format!("format:{format}"));
            return Ok(());
        }
        let hint = match nearest(format, formats::NAMES) {
            Some(name) => format!("did you mean \"{name}\"?"),
            None => format!("it must be one of {}", formats::NAMES.join(", ")),
        };
        let message = format!("unknown format \"{}\": {hint}", first_words(format));
        Err(GrammarError::unsupported(message).at(below(&place.pointer, "format")))
    }
}

/// True if a keyword only says where schemas are.
fn is_container(key: &str) -> bool {
    matches!(key, "$defs" | "definitions" | "$id")
}

fn add_entries(out: &mut Map<String, Value>, key: &str, entries: Map<String, Value>) {
    if entries.is_empty() {
        return;
    }
    match out.entry(key).or_insert_with(|| json!({})) {
        Value::Object(all) => all.extend(entries),
        other => *other = entries.into(),
    }
}

fn text<'a>(value: &'a Value, key: &str, pointer: &str) -> Result<&'a str, GrammarError> {
    let text = value.as_str();
    text.ok_or_else(|| wrong(pointer, format!("`{key}` must be a string")))
}

/// A count such as 2.0 as a whole number; other values as they are.
fn whole(value: &Value) -> Value {
    match value.as_f64() {
        Some(number) if value.is_f64() && number.fract() == 0.0 && (0.0..1e9).contains(&number) => {
            Value::from(number as u64)
        }
        _ => value.clone(),
    }
}
