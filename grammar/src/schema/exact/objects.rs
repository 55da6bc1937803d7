//! Objects: names that must match, patterns of names that overlap, and counts of properties.

use serde_json::{Map, Value};

use super::context::{Exact, all_of};
use crate::error::GrammarError;
use crate::language::{Language, Languages};

/// The most overlapping patterns that are divided into disjoint ones.
const MAX_OVERLAPPING: usize = 5;

/// The conditions of one type in other words.
pub(super) struct Rewritten {
    /// Keywords of the schema itself.
    pub own: Map<String, Value>,
    /// Schemas that hold beside it.
    pub alternatives: Vec<Value>,
}

impl Exact<'_> {
    /// The conditions of `map` on the properties of objects.
    pub fn object(&mut self, map: &Map<String, Value>) -> Result<Rewritten, GrammarError> {
        let mut own = Map::new();
        for key in ["properties", "patternProperties"] {
            let Some(Value::Object(entries)) = map.get(key) else {
                continue;
            };
            let mut schemas = Map::new();
            for (name, schema) in entries {
                let schema = self.assert(schema)?;
                let name = match key {
                    "properties" => Some(name.clone()),
                    _ => self.languages.translated(name)?,
                };
                if let Some(name) = name {
                    let schema = match schemas.remove(&name) {
                        Some(other) => all_of(vec![other, schema]),
                        None => schema,
                    };
                    schemas.insert(name, schema);
                }
            }
            if !schemas.is_empty() {
                own.insert(key.to_owned(), schemas.into());
            }
        }
        if let Some(schema) = map.get("additionalProperties") {
            let schema = self.assert(schema)?;
            own.insert("additionalProperties".to_owned(), schema);
        }
        self.divide_patterns(&mut own)?;
        if let Some(names) = map.get("propertyNames") {
            let limited = self.limit_names(&mut own, names);
            limited.or_else(|error| self.ignore_or(error, map, "propertyNames"))?;
        }
        for key in ["minProperties", "maxProperties"] {
            if let Some(count) = map.get(key) {
                own.insert(key.to_owned(), count.clone());
            }
        }
        let required = map.get("required").and_then(Value::as_array);
        match self.counted(&own, required.map_or(&[], Vec::as_slice))? {
            Some(alternatives) => {
                own.remove("minProperties");
                own.remove("maxProperties");
                Ok(Rewritten {
                    own,
                    alternatives: vec![alternatives],
                })
            }
            None => Ok(Rewritten {
                own,
                alternatives: vec![],
            }),
        }
    }

    /// Makes the patterns of `patternProperties` disjoint, as llguidance needs them.
    fn divide_patterns(&mut self, own: &mut Map<String, Value>) -> Result<(), GrammarError> {
        let Some(Value::Object(entries)) = own.get("patternProperties") else {
            return Ok(());
        };
        if entries.len() < 2 || entries.len() > MAX_OVERLAPPING {
            return Ok(());
        }
        let mut parts: Vec<(Language, Value)> = Vec::new();
        let mut overlap = false;
        for (pattern, schema) in entries.clone() {
            let Ok(mut rest) = self.languages.matching(&pattern) else {
                return Ok(());
            };
            let mut divided = Vec::new();
            for (language, other) in parts {
                let both = self.languages.both(language, rest);
                // llguidance decides about patterns that are too large for this proof.
                let Ok(empty) = self.languages.is_empty(both) else {
                    return Ok(());
                };
                if empty {
                    divided.push((language, other));
                    continue;
                }
                overlap = true;
                let (no_rest, no_language) =
                    (self.languages.not(rest), self.languages.not(language));
                divided.push((both, all_of(vec![other.clone(), schema.clone()])));
                divided.push((self.languages.both(language, no_rest), other));
                rest = self.languages.both(rest, no_language);
            }
            divided.push((rest, schema));
            parts = divided;
        }
        if overlap {
            let mut patterns = Map::new();
            for (language, schema) in parts {
                if let Some(pattern) = self.languages.pattern(language)? {
                    patterns.insert(pattern, schema);
                }
            }
            own.insert("patternProperties".to_owned(), patterns.into());
        }
        Ok(())
    }

    /// Restricts all names to the strings of `names`.
    fn limit_names(
        &mut self,
        own: &mut Map<String, Value>,
        names: &Value,
    ) -> Result<(), GrammarError> {
        let allowed = self.language(names)?;
        if allowed == Languages::ALL {
            return Ok(());
        }
        if let Some(Value::Object(entries)) = own.get_mut("properties") {
            for (name, schema) in entries.iter_mut() {
                if !self.languages.has(allowed, name)? {
                    *schema = Value::Bool(false);
                }
            }
        }
        let mut rest = allowed;
        let mut patterns = Map::new();
        if let Some(Value::Object(entries)) = own.remove("patternProperties") {
            for (pattern, schema) in entries {
                let language = self.languages.matching(&pattern)?;
                let others = self.languages.not(language);
                rest = self.languages.both(rest, others);
                let both = self.languages.both(allowed, language);
                if let Some(pattern) = self.languages.pattern(both)? {
                    patterns.insert(pattern, schema);
                }
            }
        }
        let others = own.insert("additionalProperties".to_owned(), false.into());
        let others = others.unwrap_or(Value::Bool(true));
        if others != Value::Bool(false)
            && let Some(pattern) = self.languages.pattern(rest)?
        {
            patterns.insert(pattern, others);
        }
        if !patterns.is_empty() {
            own.insert("patternProperties".to_owned(), patterns.into());
        }
        Ok(())
    }
}
