//! `if`, `oneOf`, and what a property asks of others.

use serde_json::{Map, Value, json};

use super::context::{Exact, all_of, any_of, placed};
use crate::error::GrammarError;

/// The most exclusions of one schema of a `oneOf` by another.
const MAX_EXCLUSIONS: usize = 300;

impl Exact<'_> {
    /// The values for which `then` holds if `if` holds, and `else` otherwise.
    pub fn conditional(
        &mut self,
        map: &Map<String, Value>,
        condition: &Value,
    ) -> Result<Value, GrammarError> {
        let all = Value::Bool(true);
        let (then, other) = (map.get("then"), map.get("else"));
        if then.is_none() && other.is_none() {
            return Ok(all);
        }
        let then = self.assert(then.unwrap_or(&all))?;
        let other = self.assert(other.unwrap_or(&all))?;
        let holds = match &then {
            Value::Bool(false) => Value::Bool(false),
            _ => self.assert(condition)?,
        };
        let fails = match &other {
            Value::Bool(false) => Value::Bool(false),
            _ => self.negate(condition)?,
        };
        Ok(any_of(vec![
            all_of(vec![fails, other]),
            all_of(vec![holds, then]),
        ]))
    }

    /// The values of exactly one schema of `list`, which is the `oneOf` of `map`.
    pub fn one_of(
        &mut self,
        map: &Map<String, Value>,
        list: &[Value],
    ) -> Result<Value, GrammarError> {
        let mut beside = map.clone();
        beside.remove("oneOf");
        let beside = Value::Object(beside);
        let mut exclusions = 0;
        let mut ways = Vec::new();
        for (index, schema) in list.iter().enumerate() {
            let mut all = vec![self.assert(schema)?];
            if all[0] == Value::Bool(false) {
                continue;
            }
            for (other_index, other) in list.iter().enumerate() {
                if other_index == index || self.disjoint(&[&beside, schema], &[&beside, other]) {
                    continue;
                }
                exclusions += 1;
                if exclusions > MAX_EXCLUSIONS {
                    return Err(GrammarError::too_complex(format!(
                        "the schemas of a `oneOf` must exclude each other at most {MAX_EXCLUSIONS} times"
                    )));
                }
                let without = self.negate(other).map_err(|error| {
                    let message = format!(
                        "the schemas of `oneOf` are not provably disjoint: {}",
                        error.message
                    );
                    let error = GrammarError::new(error.problem, message);
                    placed(error, map, "oneOf")
                })?;
                all.push(without);
            }
            ways.push(all_of(all));
        }
        Ok(any_of(ways))
    }

    /// Adds what the presence of properties asks for.
    pub fn dependents(
        &mut self,
        entries: &Map<String, Value>,
        more: &mut Vec<Value>,
    ) -> Result<(), GrammarError> {
        for (name, asked) in entries {
            let without = json!({"properties": {name: false}});
            let with = match asked {
                Value::Array(names) => {
                    if names.is_empty() {
                        continue;
                    }
                    let mut names = names.clone();
                    names.insert(0, name.as_str().into());
                    json!({"type": "object", "required": names})
                }
                schema => {
                    let there = json!({"type": "object", "required": [name]});
                    match self.assert(schema)? {
                        Value::Bool(true) => continue,
                        schema => all_of(vec![there, schema]),
                    }
                }
            };
            more.push(any_of(vec![without, with]));
        }
        Ok(())
    }
}
