//! Counts of properties, where some properties are optional: llguidance counts only those that are
//! not named.

use serde_json::{Map, Value, json};

use super::context::{Exact, any_of};
use crate::error::GrammarError;

/// The most choices of optional properties.
const MAX_CHOICES: usize = 200;

impl Exact<'_> {
    /// The alternatives by which properties are there, where `own` has counts and optional
    /// properties; `None` where llguidance counts itself.
    pub fn counted(
        &mut self,
        own: &Map<String, Value>,
        required: &[Value],
    ) -> Result<Option<Value>, GrammarError> {
        let count = |key: &str| {
            own.get(key)
                .and_then(Value::as_u64)
                .map(|count| count as usize)
        };
        let (min, max) = (count("minProperties").unwrap_or(0), count("maxProperties"));
        let Some(Value::Object(named)) = own.get("properties") else {
            return Ok(None);
        };
        let optional: Vec<&String> = named
            .iter()
            .filter(|(name, schema)| {
                **schema != Value::Bool(false) && !required.contains(&Value::from(name.as_str()))
            })
            .map(|(name, _)| name)
            .collect();
        if min == 0 && max.is_none() || optional.is_empty() {
            return Ok(None);
        }
        if min <= required.len() && max.is_none() {
            // The required properties are enough.
            return Ok(Some(Value::Bool(true)));
        }
        let is_closed = own.get("additionalProperties") == Some(&Value::Bool(false))
            && !own.contains_key("patternProperties");
        let least = min.saturating_sub(required.len());
        let most = max.map(|max| max.saturating_sub(required.len()));
        let mut alternatives =
            vec![json!({"type": ["null", "boolean", "number", "string", "array"]})];
        for size in 0..=optional.len() {
            if most.is_some_and(|most| size > most) || is_closed && size < least {
                continue;
            }
            // Without a maximum, more of them may follow.
            let exactly = most.is_some() || size < least;
            for choice in choices(optional.len(), size) {
                if alternatives.len() == MAX_CHOICES {
                    return Err(GrammarError::too_complex(format!(
                        "`minProperties` and `maxProperties` must leave at most {MAX_CHOICES} \
                         choices of optional properties"
                    )));
                }
                self.count()?;
                let names: Vec<&String> = choice.iter().map(|&index| optional[index]).collect();
                alternatives.push(alternative(own, required, &optional, &names, exactly));
            }
            if !exactly {
                break;
            }
        }
        Ok(Some(any_of(alternatives)))
    }
}

/// `own` with the properties `names`, and if `exactly`, with no other one of `optional`.
fn alternative(
    own: &Map<String, Value>,
    required: &[Value],
    optional: &[&String],
    names: &[&String],
    exactly: bool,
) -> Value {
    let mut own = own.clone();
    own.insert("type".to_owned(), json!("object"));
    let mut required = required.to_vec();
    required.extend(names.iter().map(|name| Value::from(name.as_str())));
    own.insert("required".to_owned(), required.into());
    if !exactly {
        own.remove("minProperties");
    } else if let Some(Value::Object(named)) = own.get_mut("properties") {
        for name in optional.iter().filter(|name| !names.contains(name)) {
            named.insert((*name).clone(), false.into());
        }
    }
    own.into()
}

/// The ways to choose `size` of `count` things.
fn choices(count: usize, size: usize) -> impl Iterator<Item = Vec<usize>> {
    let mut next = (size <= count).then(|| (0..size).collect::<Vec<_>>());
    std::iter::from_fn(move || {
        let current = next.clone()?;
        let step = (0..size)
            .rev()
            .find(|&place| current[place] < count - size + place);
        next = step.map(|place| {
            let mut following = current.clone();
            following[place] += 1;
            for after in place + 1..size {
                following[after] = following[after - 1] + 1;
            }
            following
        });
        Some(current)
    })
}
