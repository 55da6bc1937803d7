//! Bounds the work of compiling a schema, beyond the bounds of its size. llguidance compares
//! all pairs of patterns of names, creates a state for each remainder of `multipleOf`, and
//! multiplies the states of conditions that must hold at once. None of this can be interrupted,
//! so it is bounded before.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value};

use super::parts::{Step, joined_pointer, parts};
use super::refusal::{below, too_many};
use crate::error::GrammarError;

/// The most schemas that `$ref`s name. The compiler recurses from each to the next.
const MAX_REFERENCES: usize = 1_000;
/// The largest `multipleOf`, as a whole number without its decimal point: there is a state for
/// each remainder.
const MAX_MULTIPLE: u64 = 10_000;
/// The largest sum of all `multipleOf`.
const MAX_MULTIPLES: u64 = 20_000;
/// The most pairs of `patternProperties`, each of which has to be proven disjoint. 64 patterns
/// have this many pairs.
const MAX_PAIRS: usize = 2_016;
/// The most patterns that one text must match at once.
const MAX_JOINED_PATTERNS: usize = 8;
/// The most schemas that are visited to find the conditions that `allOf` and `$ref` join.
const MAX_JOINED: usize = 100_000;

/// The costs of the schemas of one grammar so far.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    references: HashSet<String>,
    multiples: u64,
    pairs: usize,
}

impl Costs {
    /// Adds the costs of one schema, without those of the schemas within it.
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

    /// Adds the costs of conditions that are joined by `allOf`, or by `$ref` beside other
    /// keywords, anywhere in `root`. The schemas within `root` have been added before.
    pub(super) fn add_joined(&mut self, root: &Value) -> Result<(), GrammarError> {
        let mut visits = 0;
        let mut waiting = vec![(root, "#".to_owned())];
        while let Some((schema, pointer)) = waiting.pop() {
            let Value::Object(map) = schema else {
                continue;
            };
            if joins(map) {
                let mut joined = Joined {
                    root,
                    visits: &mut visits,
                    open: Vec::new(),
                    places: HashMap::new(),
                    name_patterns: 0,
                    pointer: &pointer,
                };
                joined.add(schema, 0)?;
                let patterns = joined.name_patterns;
                self.add_pairs(patterns, &pointer)?;
            }
            let definitions = ["$defs", "definitions"].into_iter().flat_map(|key| {
                let entries = map.get(key).and_then(Value::as_object);
                let entries = entries.into_iter().flatten();
                entries.map(move |(name, inner)| (Step::Property(key, name), inner))
            });
            for (step, inner) in definitions.chain(parts(map)) {
                waiting.push((inner, joined_pointer(&pointer, &step)));
            }
        }
        Ok(())
    }
}

/// The conditions that must hold at once for one value and for the values inside it.
struct Joined<'a, 'b> {
    root: &'a Value,
    visits: &'b mut usize,
    /// The schemas that are being visited, by address, so that a recursive reference ends.
    open: Vec<*const Value>,
    /// The conditions of each value inside, by a hash of the path to it.
    places: HashMap<u64, Place>,
    name_patterns: usize,
    pointer: &'a str,
}

#[derive(Default)]
struct Place {
    patterns: usize,
    /// The product of all `multipleOf`.
    multiple: u64,
}

impl Joined<'_, '_> {
    fn add(&mut self, schema: &Value, place: u64) -> Result<(), GrammarError> {
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
        self.add_values(map, place)?;
        self.open.push(address);
        let before = std::mem::take(&mut self.places);
        let mut most = HashMap::new();
        for branch in ["anyOf", "oneOf"]
            .iter()
            .filter_map(|key| map.get(*key)?.as_array())
            .flatten()
        {
            self.add(branch, place)?;
            // One of the branches holds, so the largest one counts.
            for (place, counts) in self.places.drain() {
                most.entry(place)
                    .or_insert_with(Place::default)
                    .widen(&counts);
            }
        }
        self.places = before;
        for (place, counts) in most {
            let known = self.places.entry(place).or_default();
            known.join(&counts);
            known.check(self.pointer)?;
        }
        for (step, inner) in parts(map) {
            let place = match step {
                Step::Branch("anyOf" | "oneOf", _) => continue,
                // The others constrain the value itself.
                Step::Branch(..) => place,
                Step::Property(_, name) => hash(place, name),
                Step::Other(key) | Step::Item(key, _) => hash(place, key),
            };
            self.add(inner, place)?;
        }
        if let Some(target) = map.get("$ref").and_then(Value::as_str)
            && let Some(inner) = resolve(target, self.root)
        {
            self.add(inner, place)?;
        }
        self.open.pop();
        Ok(())
    }

    fn add_values(&mut self, map: &Map<String, Value>, place: u64) -> Result<(), GrammarError> {
        self.name_patterns += patterns_of_names(map);
        let place = self.places.entry(place).or_default();
        place.patterns += usize::from(map.contains_key("pattern"));
        place.patterns += usize::from(map.contains_key("format"));
        if let Some(multiple) = multiple_of(map) {
            place.multiple = place.multiple.max(1).saturating_mul(multiple);
        }
        place.check(self.pointer)
    }
}

impl Place {
    /// The larger of both counts.
    fn widen(&mut self, other: &Self) {
        self.patterns = self.patterns.max(other.patterns);
        self.multiple = self.multiple.max(other.multiple);
    }

    /// The counts where both hold.
    fn join(&mut self, other: &Self) {
        self.patterns += other.patterns;
        self.multiple = self.multiple.max(1).saturating_mul(other.multiple.max(1));
    }

    fn check(&self, pointer: &str) -> Result<(), GrammarError> {
        if self.patterns > MAX_JOINED_PATTERNS {
            let what = "the patterns that one text must match at once";
            return Err(too_many(pointer, what, MAX_JOINED_PATTERNS, self.patterns));
        }
        if self.multiple > MAX_MULTIPLE {
            let message = format!(
                "the `multipleOf` of one number must multiply to at most {MAX_MULTIPLE}, got {}",
                self.multiple
            );
            return Err(GrammarError::too_complex(message).at(pointer));
        }
        Ok(())
    }
}

fn joins(map: &Map<String, Value>) -> bool {
    let is_note = |key: &str| matches!(key, "$defs" | "$comment" | "x-guidance");
    let others = || map.keys().filter(|key| !is_note(key)).count();
    map.contains_key("allOf") || map.contains_key("$ref") && others() > 1
}

/// The definition that a rewritten reference names.
fn resolve<'a>(reference: &str, root: &'a Value) -> Option<&'a Value> {
    root.get("$defs")?
        .get(reference.trim_start_matches("#/$defs/"))
}

fn patterns_of_names(map: &Map<String, Value>) -> usize {
    let entries = map.get("patternProperties").and_then(Value::as_object);
    entries.map_or(0, Map::len)
}

/// The digits of `multipleOf` as a whole number: 25 for 0.25, and the largest number for 1e30.
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
