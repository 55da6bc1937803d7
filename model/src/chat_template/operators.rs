//! `~`, `+` and `*` with bounds: the operators that make large values of small ones.

use minijinja::value::{ObjectRepr, Tuple};
use minijinja::{Error, ErrorKind, Value};

use super::budget::{self, NODE};

/// `a ~ b`
pub(super) fn concatenate(left: Value, right: Value) -> Result<Value, Error> {
    budget::text(&[&left, &right]).map(Value::from)
}

/// `a + b`
pub(super) fn add(left: Value, right: Value) -> Result<Value, Error> {
    if let (Some(first), Some(second)) = (left.as_str(), right.as_str()) {
        budget::make(first.len() + second.len())?;
        return Ok(Value::from([first, second].concat()));
    }
    if is_sequence(&left) && is_sequence(&right) && is_tuple(&left) == is_tuple(&right) {
        let items = left.try_iter()?.chain(right.try_iter()?);
        return sequence(items, is_tuple(&left)).and_then(budget::made);
    }
    numbers("+", &left, &right, i128::checked_add, |a, b| a + b)
}

/// `a * b`
pub(super) fn multiply(left: Value, right: Value) -> Result<Value, Error> {
    for (value, times) in [(&left, &right), (&right, &left)] {
        let text = value.as_str();
        if text.is_none() && !is_sequence(value) {
            continue;
        }
        let Some(times) = times.as_usize() else {
            return Err(unsupported("*", &left, &right));
        };
        if let Some(text) = text {
            budget::make(text.len().saturating_mul(times))?;
            return Ok(Value::from(text.repeat(times)));
        }
        let length = match value.len() {
            Some(length) => length,
            None => value.try_iter()?.count(),
        };
        budget::make(length.saturating_mul(times).saturating_mul(NODE))?;
        let mut items = Vec::new();
        for _ in 0..if length == 0 { 0 } else { times } {
            items.extend(value.try_iter()?);
        }
        return sequence(items.into_iter(), is_tuple(value)).and_then(budget::made);
    }
    numbers("*", &left, &right, i128::checked_mul, |a, b| a * b)
}

fn is_sequence(value: &Value) -> bool {
    value
        .as_object()
        .is_some_and(|object| matches!(object.repr(), ObjectRepr::Seq | ObjectRepr::Iterable))
}

fn is_tuple(value: &Value) -> bool {
    value.downcast_object_ref::<Tuple>().is_some()
}

fn sequence(items: impl Iterator<Item = Value>, tuple: bool) -> Result<Value, Error> {
    let items = budget::items(items)?;
    Ok(match tuple {
        true => Value::from(Tuple::from(items)),
        false => Value::from(items),
    })
}

/// Integers stay integers, and a float on either side makes floats of both.
fn numbers(
    operator: &str,
    left: &Value,
    right: &Value,
    integers: impl Fn(i128, i128) -> Option<i128>,
    floats: impl Fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    let both = |value: &Value| i128::try_from(value.clone()).ok();
    let is_float = |value: &Value| value.is_number() && !value.is_integer();
    if is_float(left) || is_float(right) {
        let both = |value: &Value| f64::try_from(value.clone()).ok();
        return match (both(left), both(right)) {
            (Some(left), Some(right)) => Ok(Value::from(floats(left, right))),
            _ => Err(unsupported(operator, left, right)),
        };
    }
    let (Some(a), Some(b)) = (both(left), both(right)) else {
        return Err(unsupported(operator, left, right));
    };
    let Some(result) = integers(a, b) else {
        let message = format!("unable to calculate {left} {operator} {right}");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    };
    Ok(match i64::try_from(result) {
        Ok(small) => Value::from(small),
        Err(_) => Value::from(result),
    })
}

fn unsupported(operator: &str, left: &Value, right: &Value) -> Error {
    let (left, right) = (left.kind(), right.kind());
    let message =
        format!("tried to use {operator} operator on unsupported types {left} and {right}");
    Error::new(ErrorKind::InvalidOperation, message)
}
