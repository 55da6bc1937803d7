//! Finds the part of a schema that llguidance refuses. llguidance does not report the place,
//! so the parts are compiled one by one.

use serde_json::{Map, Value};

use super::parts::{joined_pointer, parts};
use crate::error::GrammarError;

/// The most parts that are compiled.
const MAX_TRIES: usize = 200;

/// The JSON pointer of the smallest part of `schema` that `compile` refuses with the same error
/// `refusal` as the whole schema.
pub(crate) fn locate(
    schema: &Value,
    refusal: &GrammarError,
    mut compile: impl FnMut(Value) -> Option<GrammarError>,
) -> String {
    let mut pointer = "#".to_owned();
    let (mut here, mut tries) = (schema, 0);
    // Every part needs the definitions that references name, and the layout of JSON.
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
