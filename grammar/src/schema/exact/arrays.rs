//! Arrays: items that must be there, and items that must differ.

use serde_json::{Map, Value, json};

use super::context::{Exact, any_of};
use super::negate::not_an_array;
use super::objects::Rewritten;
use crate::error::GrammarError;

/// The most items of an array that `contains` is written out for.
const MAX_CONTAINED: u64 = 16;
/// The most values of items that must differ, when all their orders are written out.
const MAX_DIFFERENT: usize = 4;

impl Exact<'_> {
    /// The conditions of `map` on the items of arrays.
    pub fn array(&mut self, map: &Map<String, Value>) -> Result<Rewritten, GrammarError> {
        let mut own = Map::new();
        if let Some(Value::Array(list)) = map.get("prefixItems") {
            let list = self.assert_all(list)?;
            own.insert("prefixItems".to_owned(), list.into());
        }
        if let Some(schema) = map.get("items") {
            let schema = self.assert(schema)?;
            own.insert("items".to_owned(), schema);
        }
        for key in ["minItems", "maxItems"] {
            if let Some(count) = map.get(key) {
                own.insert(key.to_owned(), count.clone());
            }
        }
        let mut alternatives = Vec::new();
        if let Some(inner) = map.get("contains") {
            match self.contains(map, inner) {
                Ok(contains) => alternatives.push(contains),
                Err(error) => self.ignore_or(error, map, "contains")?,
            }
        }
        if map.get("uniqueItems") == Some(&Value::Bool(true)) {
            match self.unique(map)? {
                Some(unique) => alternatives.push(unique),
                None if self.unique_beside => {}
                None => {
                    let error = GrammarError::unsupported(format!(
                        "`uniqueItems` within a `not`, an `if` or a larger grammar is supported only for at \
                         most 1 item, or for items of at most {MAX_DIFFERENT} different values"
                    ));
                    self.ignore_or(error, map, "uniqueItems")?;
                }
            }
        }
        Ok(Rewritten { own, alternatives })
    }

    fn contains(&mut self, map: &Map<String, Value>, inner: &Value) -> Result<Value, GrammarError> {
        let count = |key: &str| map.get(key).and_then(Value::as_u64);
        let (min, max) = (count("minContains").unwrap_or(1), count("maxContains"));
        if max == Some(0) && min == 0 {
            return Ok(json!({"items": self.negate(inner)?}));
        }
        if max.is_some() || min > 1 {
            return Err(GrammarError::unsupported(
                "`minContains` above 1 and `maxContains` above 0 are not supported",
            ));
        }
        if min == 0 {
            return Ok(Value::Bool(true));
        }
        let one = self.assert(inner)?;
        if one == Value::Bool(true) {
            return Ok(json!({"minItems": 1}));
        }
        let Some(most) = count("maxItems").filter(|&most| most <= MAX_CONTAINED) else {
            return Err(GrammarError::unsupported(format!(
                "`contains` is supported only beside a `maxItems` of at most {MAX_CONTAINED}"
            )));
        };
        let mut ways = vec![not_an_array()];
        for index in 0..most as usize {
            let mut items = vec![Value::Bool(true); index];
            items.push(one.clone());
            ways.push(json!({"type": "array", "minItems": index + 1, "prefixItems": items}));
        }
        Ok(any_of(ways))
    }

    /// The arrays without equal items, if they can be written out.
    fn unique(&mut self, map: &Map<String, Value>) -> Result<Option<Value>, GrammarError> {
        let count = |key: &str| {
            map.get(key)
                .and_then(Value::as_u64)
                .map(|count| count as usize)
        };
        let (min, max) = (count("minItems").unwrap_or(0), count("maxItems"));
        let has_prefix = map.contains_key("prefixItems");
        if max.is_some_and(|max| max <= 1)
            || has_prefix && map.get("items") == Some(&false.into()) && is_short(map)
        {
            return Ok(Some(Value::Bool(true)));
        }
        let values = match map.get("items") {
            Some(items) if !has_prefix => self.values_of(items, 0),
            _ => None,
        };
        let Some(values) = values.filter(|values| values.len() <= MAX_DIFFERENT) else {
            return Ok(None);
        };
        let mut ways = vec![not_an_array()];
        let most = max.unwrap_or(values.len()).min(values.len());
        for order in orders(&values, most)
            .into_iter()
            .filter(|order| order.len() >= min)
        {
            ways.push(json!({"const": order}));
        }
        Ok(Some(any_of(ways)))
    }

    /// The values of a schema that lists them.
    fn values_of(&self, schema: &Value, depth: usize) -> Option<Vec<Value>> {
        let map = schema.as_object()?;
        let mut values = match (
            map.get("enum"),
            map.get("const"),
            map.get("type"),
            map.get("$ref"),
        ) {
            (Some(Value::Array(values)), ..) => values.clone(),
            (_, Some(value), ..) => vec![value.clone()],
            (_, _, Some(Value::String(kind)), _) if kind == "boolean" => {
                vec![json!(true), json!(false)]
            }
            (_, _, Some(Value::String(kind)), _) if kind == "null" => vec![Value::Null],
            (.., Some(Value::String(reference))) if depth < 8 => {
                self.values_of(self.definition(reference)?, depth + 1)?
            }
            _ => return None,
        };
        let is_scalar = |value: &Value| !value.is_array() && !value.is_object();
        let is_decimal = |value: &Value| value.is_f64();
        values.dedup();
        let plain = values
            .iter()
            .all(|value| is_scalar(value) && !is_decimal(value));
        plain.then_some(values)
    }
}

/// True if an array with `prefixItems` and nothing behind has at most one item.
fn is_short(map: &Map<String, Value>) -> bool {
    map.get("prefixItems")
        .and_then(Value::as_array)
        .is_some_and(|list| list.len() <= 1)
}

/// All lists of at most `most` different ones of `values`.
fn orders(values: &[Value], most: usize) -> Vec<Vec<Value>> {
    let mut all = vec![Vec::new()];
    let mut from = 0;
    for _ in 0..most {
        let to = all.len();
        for index in from..to {
            for value in values {
                if !all[index].contains(value) {
                    let mut longer = all[index].clone();
                    longer.push(value.clone());
                    all.push(longer);
                }
            }
        }
        from = to;
    }
    all
}
