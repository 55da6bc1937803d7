//! What a schema would cost to compile beyond its size. llguidance compares every two
//! patterns of names, counts out remainders, and multiplies the states of what must hold
//! at once; none of it can be interrupted, so it is bounded before.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value};

use super::parts::{Step, joined_pointer, parts};
use super::{below, too_many};
use crate::error::GrammarError;

/// Schemas that `$ref`s name: the compiler goes down from each to the next.
const MAX_REFERENCES: usize = 1_000;
/// `multipleOf` as a whole number, its decimal point aside: a state for each remainder.
const MAX_MULTIPLE: u64 = 10_000;
/// All of them together.
const MAX_MULTIPLES: u64 = 20_000;
/// Pairs of `patternProperties`, each to be proven disjoint: those of 64.
const MAX_PAIRS: usize = 2_016;
/// Patterns that one text must match at once.
const MAX_JOINED_PATTERNS: usize = 8;
/// Schemas visited to see what `allOf` and `$ref` join.
const MAX_JOINED: usize = 100_000;

/// What was met so far.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    references: HashSet<String>,
    multiples: u64,
    pairs: usize,
}

impl Costs {
    /// Adds what one schema has itself.
    pub(super) fn add(
        &mut self,
        schema: &Map<String, Value>,
        pointer: &str,
    ) -> Result<(), GrammarError> {
        if let Some(target) = schema.get("$ref").and_then(Value::as_str)
            && self.references.insert(target.to_owned())
            && self.references.len() > MAX_REFERENCES
        {
            let pointer = below(pointer, "$ref");
            let given = self.references.len();
            let what = "the schemas that `$ref`s name";
            return Err(too_many(&pointer, what, MAX_REFERENCES, given));
        }
        if let Some(multiple) = multiple_of(schema) {
            let pointer = below(pointer, "multipleOf");
            self.multiples += multiple.min(MAX_MULTIPLES + 1);
            if multiple > MAX_MULTIPLE {
                let message = format!(
                    "`multipleOf` must have digits that make at most {MAX_MULTIPLE}, got {multiple}"
                );
                return Err(GrammarError::too_complex(message).at(pointer));
            }
            if self.multiples > MAX_MULTIPLES {
                let message = format!(
                    "all `multipleOf` together must have digits that add up to at most \
                     {MAX_MULTIPLES}, got {}",
                    self.multiples
                );
                return Err(GrammarError::too_complex(message).at(pointer));
            }
        }
        let patterns = patterns_of_names(schema);
        self.add_pairs(patterns, &below(pointer, "patternProperties"))
    }

    fn add_pairs(&mut self, patterns: usize, pointer: &str) -> Result<(), GrammarError> {
        self.pairs += patterns * patterns.saturating_sub(1) / 2;
        if self.pairs > MAX_PAIRS {
            let what = "the pairs of `patternProperties`, all to be disjoint,";
            return Err(too_many(pointer, what, MAX_PAIRS, self.pairs));
        }
        Ok(())
    }

    /// Adds what is joined by `allOf`, and by `$ref` beside other keywords, anywhere in
    /// `root`, of which all has been added before.
    pub(super) fn add_joined(&mut self, root: &Value) -> Result<(), GrammarError> {
        let mut visits = 0;
        let mut waiting = vec![(root, "#".to_owned(), root)];
        while let Some((schema, pointer, base)) = waiting.pop() {
            let Value::Object(map) = schema else {
                continue;
            };
            let base = base_of(map, schema, base);
            if joins(map) {
                let mut joined = Joined {
                    visits: &mut visits,
                    open: Vec::new(),
                    places: HashMap::new(),
                    name_patterns: 0,
                    pointer: &pointer,
                };
                joined.add(schema, 0, base)?;
                let patterns = joined.name_patterns;
                self.add_pairs(patterns, &pointer)?;
            }
            let definitions = ["$defs", "definitions"].into_iter().flat_map(|key| {
                let entries = map.get(key).and_then(Value::as_object);
                let entries = entries.into_iter().flatten();
                entries.map(move |(name, inner)| (Step::Property(key, name), inner))
            });
            for (step, inner) in definitions.chain(parts(map)) {
                waiting.push((inner, joined_pointer(&pointer, &step), base));
            }
        }
        Ok(())
    }
}

/// What holds of one value, and of what is in it, at once.
struct Joined<'a, 'b> {
    visits: &'b mut usize,
    /// Schemas that are being visited, by address: a reference back adds nothing.
    open: Vec<*const Value>,
    /// By a hash of the way from the value to what is in it.
    places: HashMap<u64, Place>,
    name_patterns: usize,
    pointer: &'a str,
}

#[derive(Default)]
struct Place {
    patterns: usize,
    /// Of `multipleOf`, multiplied.
    multiple: u64,
}

impl Joined<'_, '_> {
    fn add(&mut self, schema: &Value, place: u64, base: &Value) -> Result<(), GrammarError> {
        let Value::Object(map) = schema else {
            return Ok(());
        };
        let address = std::ptr::from_ref(schema);
        if self.open.contains(&address) {
            return Ok(());
        }
        *self.visits += 1;
        if *self.visits > MAX_JOINED {
            let what = "the schemas that `allOf` and `$ref` join";
            return Err(too_many(self.pointer, what, MAX_JOINED, *self.visits));
        }
        let base = base_of(map, schema, base);
        self.add_values(map, place)?;
        self.open.push(address);
        for (step, inner) in parts(map) {
            let place = match step {
                // They are about the value itself.
                Step::Branch(..) => place,
                Step::Property(_, name) => hash(place, name),
                Step::Other(key) | Step::Item(key, _) => hash(place, key),
            };
            self.add(inner, place, base)?;
        }
        if let Some(target) = map.get("$ref").and_then(Value::as_str)
            && let Some(inner) = resolve(target, base)
        {
            self.add(inner, place, base)?;
        }
        self.open.pop();
        Ok(())
    }

    fn add_values(&mut self, map: &Map<String, Value>, place: u64) -> Result<(), GrammarError> {
        self.name_patterns += patterns_of_names(map);
        let place = self.places.entry(place).or_default();
        place.patterns += usize::from(map.contains_key("pattern"));
        place.patterns += usize::from(map.contains_key("format"));
        if place.patterns > MAX_JOINED_PATTERNS {
            let what = "the patterns that one text must match at once";
            return Err(too_many(
                self.pointer,
                what,
                MAX_JOINED_PATTERNS,
                place.patterns,
            ));
        }
        if let Some(multiple) = multiple_of(map) {
            place.multiple = place.multiple.max(1).saturating_mul(multiple);
            if place.multiple > MAX_MULTIPLE {
                let message = format!(
                    "the `multipleOf` of one number must multiply to at most {MAX_MULTIPLE}, \
                     got {}",
                    place.multiple
                );
                return Err(GrammarError::too_complex(message).at(self.pointer));
            }
        }
        Ok(())
    }
}

fn joins(map: &Map<String, Value>) -> bool {
    let is_note = |key: &str| matches!(key, "$defs" | "definitions" | "$schema" | "$id" | "title");
    let others = || map.keys().filter(|key| !is_note(key)).count();
    map.contains_key("allOf") || map.contains_key("$ref") && others() > 1
}

/// What references within `schema` start from: a schema with an `$id` is a document.
fn base_of<'a>(map: &Map<String, Value>, schema: &'a Value, base: &'a Value) -> &'a Value {
    let is_document = ["$id", "id"].into_iter().any(|key| {
        let id = map.get(key).and_then(Value::as_str);
        id.is_some_and(|id| !id.starts_with('#'))
    });
    if is_document { schema } else { base }
}

fn resolve<'a>(target: &str, base: &'a Value) -> Option<&'a Value> {
    let fragment = target.strip_prefix('#')?;
    match fragment.strip_prefix('/') {
        // Percent-encoded references are rare, and those that are not found cost nothing:
        // the compiler refuses them or follows them to schemas that are bounded alone.
        Some(_) => base.pointer(&percent_decoded(fragment)),
        None if fragment.is_empty() => Some(base),
        None => anchor(fragment, base),
    }
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

fn anchor<'a>(name: &str, root: &'a Value) -> Option<&'a Value> {
    let mut waiting = vec![root];
    while let Some(value) = waiting.pop() {
        match value {
            Value::Object(map) if map.get("$anchor").is_some_and(|own| own == name) => {
                return Some(value);
            }
            Value::Object(map) => waiting.extend(map.values()),
            Value::Array(list) => waiting.extend(list),
            _ => {}
        }
    }
    None
}

fn patterns_of_names(map: &Map<String, Value>) -> usize {
    let entries = map.get("patternProperties").and_then(Value::as_object);
    entries.map_or(0, Map::len)
}

/// The digits of `multipleOf` as one number: 0.25 is 25, and 1e30 as many as there can be.
fn multiple_of(map: &Map<String, Value>) -> Option<u64> {
    let value = map.get("multipleOf")?.as_f64()?.abs();
    let digits: String = value
        .to_string()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    Some(digits.parse().unwrap_or(u64::MAX))
}

fn hash(place: u64, step: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (place, step).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use crate::compile::Whitespace;
    use crate::error::Problem;
    use crate::schema::prepare;
    use serde_json::{Map, Value, json};

    fn refusal(schema: &Value) -> String {
        let error = prepare(schema, Whitespace::Natural).expect_err("it is refused");
        assert_eq!(error.problem, Problem::TooComplex, "{error}");
        error.to_string()
    }

    fn fine(schema: &Value) {
        prepare(schema, Whitespace::Natural).expect("it is within the bounds");
    }

    fn chain(links: usize) -> Value {
        let link = |i: usize| {
            (
                format!("d{i}"),
                json!({"$ref": format!("#/$defs/d{}", i + 1)}),
            )
        };
        let mut defs: Map<String, Value> = (0..links).map(link).collect();
        defs.insert(format!("d{links}"), json!({"type": "null"}));
        json!({"$ref": "#/$defs/d0", "$defs": defs})
    }

    #[test]
    fn chained_references_are_bounded() {
        fine(&chain(900));
        let message = refusal(&chain(1_400));
        assert!(
            message.starts_with("the schemas that `$ref`s name must be at most 1000, got 1001"),
            "{message}"
        );
    }

    #[test]
    fn multiples_are_bounded_alone_added_and_multiplied() {
        fine(&json!({"type": "number", "multipleOf": 0.25}));
        let message = refusal(&json!({"items": {"type": "integer", "multipleOf": 999_999}}));
        assert!(
            message.contains("at most 10000, got 999999 (at #/items/multipleOf)"),
            "{message}"
        );
        refusal(&json!({"type": "number", "multipleOf": 1e300}));
        refusal(&json!({"type": "number", "multipleOf": 0.123456}));
        let many: Vec<Value> = (0..100).map(|i| json!({"multipleOf": 9_000 + i})).collect();
        assert!(refusal(&json!({"prefixItems": many})).contains("at most 20000, got 27003"));
        let joined =
            json!({"allOf": [{"multipleOf": 97}, {"multipleOf": 101}, {"multipleOf": 103}]});
        assert!(refusal(&joined).contains("multiply to at most 10000, got 1009091"));
    }

    #[test]
    fn patterns_of_names_are_bounded_by_their_pairs() {
        let names = |n: usize| -> Value {
            let entries = (0..n).map(|i| (format!("^p{i}_"), json!({})));
            json!({"patternProperties": entries.collect::<Map<_, _>>()})
        };
        fine(&names(64));
        assert!(refusal(&names(65)).contains("at most 2016, got 2080"));
        refusal(&json!({"allOf": [names(40), names(40)]}));
        refusal(&json!({"items": names(50), "additionalProperties": names(50)}));
    }

    #[test]
    fn patterns_that_must_hold_at_once_are_bounded_wherever_they_come_from() {
        let patterns = |n: usize, wrap: fn(Value) -> Value| -> Value {
            let list = (0..n).map(|i| wrap(json!({"pattern": format!("a{i}.*b")})));
            json!({"allOf": list.collect::<Vec<_>>()})
        };
        fine(&patterns(8, |inner| inner));
        let expected = "the patterns that one text must match at once must be at most 8, got 9";
        assert!(refusal(&patterns(9, |inner| inner)).starts_with(expected));
        for wrap in [
            (|inner| json!({"properties": {"x": {"items": inner}}})) as fn(Value) -> Value,
            |inner| json!({"additionalProperties": inner}),
            |inner| json!({"anyOf": [inner]}),
            |inner| json!({"allOf": [{"type": "string"}, inner]}),
        ] {
            refusal(&patterns(30, wrap));
        }
        // Of different properties, and of branches alone, they are not joined.
        let apart: Vec<Value> = (0..30)
            .map(|i| json!({"properties": {format!("p{i}"): {"pattern": "a"}}}))
            .collect();
        fine(&json!({"allOf": apart}));
        let either: Vec<Value> = (0..30)
            .map(|i| json!({"pattern": format!("a{i}")}))
            .collect();
        fine(&json!({"anyOf": either}));
        // By references, each of which adds one.
        let link = |i: usize| {
            let next = format!("#/$defs/d{}", i + 1);
            (
                format!("d{i}"),
                json!({"$ref": next, "pattern": format!("a{i}")}),
            )
        };
        let mut defs: Map<String, Value> = (0..30).map(link).collect();
        defs.insert("d30".to_owned(), json!({"type": "string"}));
        refusal(&json!({"$ref": "#/$defs/d0", "$defs": defs.clone()}));
        let document = json!({"$id": "http://x/", "$ref": "#/$defs/d0", "$defs": defs});
        refusal(&json!({"items": document}));
    }

    #[test]
    fn what_is_joined_is_looked_at_only_so_far() {
        let twice = |i: usize| {
            let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
            (format!("d{i}"), json!({"allOf": [next, next]}))
        };
        let mut defs: Map<String, Value> = (0..30).map(twice).collect();
        defs.insert("d30".to_owned(), json!({"type": "string"}));
        let message = refusal(&json!({"$ref": "#/$defs/d0", "$defs": defs}));
        assert!(message.contains("at most 100000, got 100001"), "{message}");
    }
}
