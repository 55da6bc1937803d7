//! Finds the part of a schema that llguidance refuses. llguidance does not report the place,
//! so the parts are compiled one by one. A rewritten schema has its place as `$comment`.

use serde_json::{Map, Value};

use super::parts::parts;
use crate::error::GrammarError;

/// The most parts that are compiled.
const MAX_TRIES: usize = 200;

/// The JSON pointer of the smallest part of the rewritten `schema` that `compile` refuses with the
/// same error `refusal` as the whole schema.
pub(crate) fn located(
    schema: &Value,
    refusal: &GrammarError,
    mut compile: impl FnMut(Value) -> Option<GrammarError>,
) -> String {
    let mut place = "#".to_owned();
    let (mut here, mut tries) = (schema, 0);
    // Every part needs the definitions that references name, and the layout of JSON.
    let common: Map<String, Value> = ["$defs", "x-guidance"]
        .into_iter()
        .filter_map(|key| Some((key.to_owned(), schema.get(key)?.clone())))
        .collect();
    'down: while let Value::Object(map) = here {
        let reference = map.get("$ref").and_then(Value::as_str);
        let target =
            reference.and_then(|reference| schema.pointer(reference.trim_start_matches('#')));
        for part in parts(map).map(|(_, part)| part).chain(target) {
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
                if let Some(named) = inner.get("$comment").and_then(Value::as_str) {
                    named.clone_into(&mut place);
                }
                here = part;
                continue 'down;
            }
        }
        break;
    }
    place
}

/// The place in the given schema of what is at `pointer` in the rewritten `schema`.
pub(crate) fn place_of(schema: &Value, pointer: &str) -> String {
    let mut place = "#".to_owned();
    let mut here = Some(schema);
    for step in pointer.trim_start_matches('#').split('/').skip(1) {
        let name = step.replace("~1", "/").replace("~0", "~");
        here = match here {
            Some(Value::Object(map)) => map.get(&name),
            Some(Value::Array(list)) => name.parse().ok().and_then(|index: usize| list.get(index)),
            _ => None,
        };
        if let Some(named) = here.and_then(|value| value.get("$comment")?.as_str()) {
            named.clone_into(&mut place);
        }
    }
    place
}
