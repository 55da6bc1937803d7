//! Rewrites a schema in the words that llguidance enforces, without a change of meaning: `not`,
//! `if`, `oneOf` and the other conditions become alternatives of positive schemas.
//!
//! Each schema is rewritten either as it is or negated, always from the given words, so that no
//! rewriting is negated again. A result may be narrower than the schema where the schema's values
//! cannot be described (`format: regex`), and it is never wider.

mod arrays;
mod assert;
mod conditions;
mod context;
mod counts;
mod disjoint;
mod negate;
mod objects;
mod rejects;
mod texts;
mod unevaluated;
mod values;

use serde_json::{Map, Value};

use self::context::Exact;
use super::modern::Ignored;
use crate::error::GrammarError;
use crate::spec::Strictness;

/// `schema`, which is in the vocabulary of draft 2020-12, in the words that llguidance enforces.
/// `unique_beside` says that `uniqueItems` is enforced beside them.
///
/// # Errors
/// If a condition cannot be enforced, with its place.
pub(super) fn exact(
    schema: &Value,
    strictness: Strictness,
    unique_beside: bool,
    ignored: &mut Ignored,
) -> Result<Map<String, Value>, GrammarError> {
    let none = Map::new();
    let definitions = schema.get("$defs").and_then(Value::as_object);
    let definitions = definitions.unwrap_or(&none);
    let mut exact = Exact::new(definitions, strictness, unique_beside, ignored);
    let mut root = match exact.assert(schema)? {
        Value::Object(root) => root,
        Value::Bool(true) => Map::new(),
        _ => return Err(GrammarError::unsatisfiable().at("#")),
    };
    while let Some((number, negated)) = exact.waiting.pop() {
        let Some(given) = definitions.get(&number) else {
            continue;
        };
        let (name, made) = match negated {
            true => (format!("not{number}"), exact.negate(given)?),
            false => (number, exact.assert(given)?),
        };
        exact.made.insert(name, Some(made));
    }
    let made = std::mem::take(&mut exact.made);
    if !made.is_empty() {
        let made = made
            .into_iter()
            .map(|(name, schema)| (name, schema.unwrap_or(Value::Bool(true))));
        root.insert("$defs".to_owned(), Value::Object(made.collect()));
    }
    Ok(root)
}
