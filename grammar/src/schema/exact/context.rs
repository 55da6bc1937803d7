//! The state of one rewriting.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::modern::Ignored;
use crate::error::{GrammarError, Problem};
use crate::language::Languages;
use crate::spec::Strictness;

/// The most schemas that a rewriting makes.
const MAX_SCHEMAS: usize = 30_000;

/// Rewrites schemas in the words that llguidance enforces.
pub(in super::super) struct Exact<'a> {
    /// The definitions as they are given.
    pub definitions: &'a Map<String, Value>,
    pub languages: Languages,
    pub strictness: Strictness,
    /// True if `uniqueItems` is enforced beside the grammar.
    pub unique_beside: bool,
    pub ignored: &'a mut Ignored,
    /// The rewritten definitions by name; `None` for those that are to be rewritten.
    pub made: BTreeMap<String, Option<Value>>,
    /// The definitions to be rewritten, and whether they are to be negated.
    pub waiting: Vec<(String, bool)>,
    schemas: usize,
}

impl<'a> Exact<'a> {
    pub fn new(
        definitions: &'a Map<String, Value>,
        strictness: Strictness,
        unique_beside: bool,
        ignored: &'a mut Ignored,
    ) -> Self {
        Self {
            definitions,
            languages: Languages::new(),
            strictness,
            unique_beside,
            ignored,
            made: BTreeMap::new(),
            waiting: Vec::new(),
            schemas: 0,
        }
    }

    /// Counts a schema.
    ///
    /// # Errors
    /// If there are too many.
    pub fn count(&mut self) -> Result<(), GrammarError> {
        self.schemas += 1;
        if self.schemas > MAX_SCHEMAS {
            return Err(GrammarError::too_complex(format!(
                "the conditions of a schema must be at most {MAX_SCHEMAS} when they are written out"
            )));
        }
        Ok(())
    }

    /// A reference to the definition that `reference` names, or to its negation.
    pub fn refer(&mut self, reference: &str, negated: bool) -> Value {
        let number = reference.trim_start_matches("#/$defs/");
        let name = if negated {
            format!("not{number}")
        } else {
            number.to_owned()
        };
        if !self.made.contains_key(&name) {
            self.made.insert(name.clone(), None);
            self.waiting.push((number.to_owned(), negated));
        }
        json!({"$ref": format!("#/$defs/{name}")})
    }

    /// The definition that `reference` names, as it is given.
    pub fn definition(&self, reference: &str) -> Option<&'a Value> {
        self.definitions
            .get(reference.trim_start_matches("#/$defs/"))
    }

    /// Adds the place of a keyword to an error without one. An error that the rules of strictness
    /// allow to be ignored is remembered instead.
    ///
    /// # Errors
    /// The error, if it is not to be ignored.
    pub fn ignore_or(
        &mut self,
        error: GrammarError,
        schema: &Map<String, Value>,
        key: &str,
    ) -> Result<(), GrammarError> {
        if self.strictness == Strictness::Lenient && error.problem == Problem::Unsupported {
            self.ignored.add(key);
            return Ok(());
        }
        Err(placed(error, schema, key))
    }
}

/// `error` with the place of the keyword `key` of `schema`, if it has no place yet.
pub(super) fn placed(error: GrammarError, schema: &Map<String, Value>, key: &str) -> GrammarError {
    if error.pointer.is_some() {
        return error;
    }
    let place = schema
        .get("$comment")
        .and_then(Value::as_str)
        .unwrap_or("#");
    error.at(format!("{place}/{key}"))
}

/// A schema for the values of any of `list`.
pub(super) fn any_of(list: Vec<Value>) -> Value {
    let mut list: Vec<Value> = list
        .into_iter()
        .filter(|s| *s != Value::Bool(false))
        .collect();
    if list.contains(&Value::Bool(true)) {
        return Value::Bool(true);
    }
    match list.len() {
        0 => Value::Bool(false),
        1 => list.swap_remove(0),
        _ => json!({"anyOf": list}),
    }
}

/// A schema for the values of all of `list`.
pub(super) fn all_of(list: Vec<Value>) -> Value {
    let mut list: Vec<Value> = list
        .into_iter()
        .filter(|s| *s != Value::Bool(true))
        .collect();
    if list.contains(&Value::Bool(false)) {
        return Value::Bool(false);
    }
    match list.len() {
        0 => Value::Bool(true),
        1 => list.swap_remove(0),
        _ => json!({"allOf": list}),
    }
}
