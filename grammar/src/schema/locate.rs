//! Where in a schema lies what llguidance refuses: it does not say, so its parts are tried
//! alone.

use serde_json::{Map, Value};

use super::parts::{joined_pointer, parts};
use crate::error::GrammarError;

/// Parts that are tried at the most.
const MAX_TRIES: usize = 200;

/// The JSON pointer of the smallest part of `schema` that `compile` refuses as it refused
/// the whole with `refusal`.
pub(crate) fn locate(
    schema: &Value,
    refusal: &GrammarError,
    mut compile: impl FnMut(Value) -> Option<GrammarError>,
) -> String {
    let mut pointer = "#".to_owned();
    let (mut here, mut tries) = (schema, 0);
    // What references lead to, and how JSON is laid out, belongs to every part.
    let common: Map<String, Value> = ["$defs", "definitions", "x-guidance"]
        .into_iter()
        .filter_map(|key| Some((key.to_owned(), schema.get(key)?.clone())))
        .collect();
    'down: while let Value::Object(map) = here {
        for (step, part) in parts(map) {
            let Value::Object(inner) = part else {
                continue;
            };
            tries += 1;
            if tries > MAX_TRIES {
                break 'down;
            }
            let mut alone = common.clone();
            alone.extend(inner.clone());
            let same = compile(alone.into()).is_some_and(|error| {
                error.problem == refusal.problem && error.message == refusal.message
            });
            if same {
                pointer = joined_pointer(&pointer, &step);
                here = part;
                continue 'down;
            }
        }
        break;
    }
    pointer
}
