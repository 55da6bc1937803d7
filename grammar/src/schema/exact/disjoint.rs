//! Proofs that two schemas have no value in common.

use serde_json::{Map, Value};

use super::context::Exact;
use super::negate::TYPES;
use super::values::type_of;

/// The most schemas that are looked at for one proof, and the most levels of them.
const MAX_SCHEMAS: usize = 64;
const MAX_DEPTH: usize = 6;
/// The most values of an `enum` that are looked at one by one.
const MAX_VALUES: usize = 300;

/// Schemas that hold together.
type All<'s> = Vec<&'s Map<String, Value>>;

impl<'a> Exact<'a> {
    /// True if no value is in all schemas of `a` and in all of `b`. Without a proof, the answer is
    /// no.
    pub fn disjoint(&mut self, a: &[&Value], b: &[&Value]) -> bool {
        self.disjoint_within(a, b, 0)
    }

    fn disjoint_within(&mut self, a: &[&Value], b: &[&Value], depth: usize) -> bool {
        if depth > MAX_DEPTH {
            return false;
        }
        let definitions = self.definitions;
        let (Some(left), Some(right)) = (flat(a, definitions), flat(b, definitions)) else {
            return true;
        };
        let shared = |kind: &&str| may_be(&left, kind) && may_be(&right, kind);
        let shared: Vec<&str> = TYPES.into_iter().filter(shared).collect();
        if self.values_rejected(&left, b) || self.values_rejected(&right, a) {
            return true;
        }
        if shared
            .iter()
            .all(|kind| self.disjoint_type(kind, &left, &right, depth))
        {
            return true;
        }
        self.branches_disjoint(&left, a, b, depth) || self.branches_disjoint(&right, b, a, depth)
    }

    /// True if `a` lists its values, and `b` refuses all of them.
    fn values_rejected(&mut self, a: &All<'_>, b: &[&Value]) -> bool {
        let lists = a
            .iter()
            .filter_map(|map| match (map.get("enum"), map.get("const")) {
                (Some(Value::Array(values)), _) => Some(values.as_slice()),
                (_, Some(value)) => Some(std::slice::from_ref(value)),
                _ => None,
            });
        let lists: Vec<&[Value]> = lists.collect();
        lists.into_iter().any(|values| {
            values.len() <= MAX_VALUES
                && values
                    .iter()
                    .all(|value| b.iter().any(|schema| self.rejects(schema, value)))
        })
    }

    /// True if one of `left` is a choice of schemas, each of which is disjoint from `b`.
    fn branches_disjoint(
        &mut self,
        left: &All<'_>,
        a: &[&Value],
        b: &[&Value],
        depth: usize,
    ) -> bool {
        let choices = left
            .iter()
            .flat_map(|map| ["anyOf", "oneOf"].map(|key| map.get(key)));
        let choices: Vec<&Vec<Value>> = choices.flatten().filter_map(Value::as_array).collect();
        choices.into_iter().any(|branches| {
            branches.iter().all(|branch| {
                // A branch takes the place of the choice: the rest of `a` was looked at before.
                let mut with: Vec<&Value> = vec![branch];
                with.extend(a.iter().filter(|schema| {
                    schema.get("anyOf").is_none() && schema.get("oneOf").is_none()
                }));
                self.disjoint_within(&with, b, depth + 2)
            })
        })
    }

    fn disjoint_type(&mut self, kind: &str, a: &All<'_>, b: &All<'_>, depth: usize) -> bool {
        let both = || a.iter().chain(b.iter()).copied();
        match kind {
            "number" => {
                let least = both().filter_map(|map| bound(map, "minimum", "exclusiveMinimum"));
                let most = both().filter_map(|map| bound(map, "maximum", "exclusiveMaximum"));
                let least = least.max_by(|x, y| x.0.total_cmp(&y.0).then(x.1.cmp(&y.1)));
                let most = most.min_by(|x, y| x.0.total_cmp(&y.0).then(y.1.cmp(&x.1)));
                match (least, most) {
                    (Some((least, open)), Some((most, open_too))) => {
                        least > most || least == most && (open || open_too)
                    }
                    _ => false,
                }
            }
            "string" => {
                let mut all = crate::language::Languages::ALL;
                for map in both() {
                    let own = [
                        "pattern",
                        "format",
                        "minLength",
                        "maxLength",
                        "enum",
                        "const",
                    ];
                    let own = own
                        .iter()
                        .filter_map(|key| Some(((*key).to_owned(), map.get(*key)?.clone())));
                    let own: Map<String, Value> = own.collect();
                    if !own.is_empty() {
                        let language = self.language_around(&own.into());
                        all = self.languages.both(all, language);
                    }
                }
                self.languages.is_empty(all) == Ok(true)
            }
            "array" => {
                let least = both()
                    .filter_map(|map| map.get("minItems")?.as_u64())
                    .max()
                    .unwrap_or(0);
                let most = both().filter_map(|map| map.get("maxItems")?.as_u64()).min();
                let items = (0..least.min(8) as usize).any(|index| {
                    let (left, right) = (items_at(a, index), items_at(b, index));
                    self.disjoint_within(&left, &right, depth + 1)
                });
                items || most.is_some_and(|most| most < least)
            }
            "object" => {
                let least = both()
                    .filter_map(|map| map.get("minProperties")?.as_u64())
                    .max()
                    .unwrap_or(0);
                let most = both()
                    .filter_map(|map| map.get("maxProperties")?.as_u64())
                    .min();
                let required = both()
                    .filter_map(|map| map.get("required")?.as_array())
                    .flatten();
                let mut names: Vec<&str> = required.filter_map(Value::as_str).collect();
                names.sort_unstable();
                names.dedup();
                let names = names.into_iter().take(MAX_SCHEMAS).any(|name| {
                    let (left, right) = (self.property(a, name), self.property(b, name));
                    self.disjoint_within(&left, &right, depth + 1)
                });
                names || most.is_some_and(|most| most < least)
            }
            _ => false,
        }
    }

    /// The schemas that a property must meet.
    fn property<'s>(&mut self, all: &All<'s>, name: &str) -> Vec<&'s Value> {
        let mut found = Vec::new();
        for map in all {
            let before = found.len();
            let named = map.get("properties").and_then(|entries| entries.get(name));
            found.extend(named);
            let patterns = map.get("patternProperties").and_then(Value::as_object);
            let mut unsure = false;
            for (pattern, schema) in patterns.into_iter().flatten() {
                let language = self.languages.matching(pattern);
                match language.and_then(|language| self.languages.has(language, name)) {
                    Ok(true) => found.push(schema),
                    Ok(false) => {}
                    Err(_) => unsure = true,
                }
            }
            if found.len() == before && !unsure {
                found.extend(map.get("additionalProperties"));
            }
        }
        found
    }
}

/// All schemas that hold where those of `schemas` do: they, what they refer to, and their `allOf`.
/// `None` if one of them has no values.
fn flat<'s, 'd: 's>(schemas: &[&'s Value], definitions: &'d Map<String, Value>) -> Option<All<'s>> {
    let mut waiting: Vec<&Value> = schemas.to_vec();
    let mut all: All<'s> = Vec::new();
    while let Some(schema) = waiting.pop() {
        let map = match schema {
            Value::Object(map) => map,
            Value::Bool(false) => return None,
            _ => continue,
        };
        if all.len() >= MAX_SCHEMAS || all.iter().any(|other| std::ptr::eq(*other, map)) {
            continue;
        }
        all.push(map);
        let reference = map.get("$ref").and_then(Value::as_str);
        waiting.extend(
            reference.and_then(|name| definitions.get(name.trim_start_matches("#/$defs/"))),
        );
        waiting.extend(
            map.get("allOf")
                .and_then(Value::as_array)
                .into_iter()
                .flatten(),
        );
    }
    Some(all)
}

/// True if a value of the type `kind` may be in all schemas.
fn may_be(all: &All<'_>, kind: &str) -> bool {
    let is_kind = |other: &str| other == kind || kind == "number" && other == "integer";
    all.iter().all(|map| {
        let by_type = match map.get("type") {
            Some(Value::String(only)) => is_kind(only),
            Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).any(is_kind),
            _ => true,
        };
        let by_value = match (map.get("enum"), map.get("const")) {
            (Some(Value::Array(values)), _) => values.iter().any(|value| type_of(value) == kind),
            (_, Some(value)) => type_of(value) == kind,
            _ => true,
        };
        by_type && by_value
    })
}

/// A bound of numbers, and whether it is excluded.
fn bound(map: &Map<String, Value>, inclusive: &str, exclusive: &str) -> Option<(f64, bool)> {
    let exclusive = map.get(exclusive).and_then(Value::as_f64);
    let inclusive = map.get(inclusive).and_then(Value::as_f64);
    exclusive
        .map(|bound| (bound, true))
        .or(inclusive.map(|bound| (bound, false)))
}

/// The schemas that the item at `index` must meet.
fn items_at<'s>(all: &All<'s>, index: usize) -> Vec<&'s Value> {
    let item = |map: &&'s Map<String, Value>| {
        let prefix = map.get("prefixItems").and_then(Value::as_array);
        prefix.and_then(|list| list.get(index)).or(map.get("items"))
    };
    all.iter().filter_map(item).collect()
}
