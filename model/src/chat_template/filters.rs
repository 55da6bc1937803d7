//! Filters and methods of strings that make a large value of small ones: they are refused before
//! they begin. The result of any other filter is not much larger than its input, and is measured
//! afterwards.

use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value, filters};
use minijinja_contrib::pycompat;

use super::budget::{self, NODE};
use super::operators;

/// Finds the bytes that a call will make, from its arguments.
type Estimate = fn(&[Value]) -> usize;

/// Names by which rewritten templates call the bounded operators. No template can name them,
/// because they are no identifiers.
pub(super) const CONCATENATE: &str = "~";
pub(super) const ADD: &str = "+";
pub(super) const MULTIPLY: &str = "*";
pub(super) const MADE: &str = "=";
pub(super) const STORED: &str = ".=";

/// Puts the bounded filters and methods into `environment`.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.add_filter(CONCATENATE, operators::concatenate);
    environment.add_filter(ADD, operators::add);
    environment.add_filter(MULTIPLY, operators::multiply);
    environment.add_filter(MADE, budget::made);
    environment.add_filter(STORED, budget::stored);
    let bounded: [(&'static str, Value, Estimate); 9] = [
        ("replace", Value::from_function(filters::replace), replaced),
        ("join", Value::from_function(filters::join), joined),
        ("indent", Value::from_function(filters::indent), indented),
        ("format", Value::from_function(filters::format), formatted),
        ("batch", Value::from_function(filters::batch), counted),
        ("slice", Value::from_function(filters::slice), counted),
        ("list", Value::from_function(filters::list), listed),
        ("split", Value::from_function(filters::split), divided),
        ("lines", Value::from_function(filters::lines), lines),
    ];
    for (name, filter, estimate) in bounded {
        environment.add_filter(
            name,
            move |state: &mut State, arguments: Rest<ValueOrKwargs>| {
                let arguments = arguments.into_values();
                budget::make(estimate(&arguments))?;
                filter.call(state, &arguments)
            },
        );
    }
    // Indents every level of a value by four more spaces, and is for debugging.
    environment.remove_filter("pprint");
    // Writes down all variables.
    environment.remove_global("debug");
    environment.set_unknown_method_callback(method);
}

/// Python's methods, such as `.strip()` and `.items()`.
fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let estimate: Option<Estimate> = match name {
        "replace" => Some(replaced),
        "format" => Some(formatted),
        "split" => Some(divided),
        "splitlines" => Some(lines),
        "join" => Some(|arguments| {
            let reversed: Vec<Value> = arguments.iter().take(2).rev().cloned().collect();
            joined(&reversed)
        }),
        _ => None,
    };
    if let Some(estimate) = estimate
        && value.as_str().is_some()
    {
        let all: Vec<Value> = [value].into_iter().chain(arguments).cloned().collect();
        budget::make(estimate(&all))?;
    }
    pycompat::unknown_method_callback(state, value, name, arguments)
}

/// The argument at `index`, or the one that is given as `name`.
fn argument(arguments: &[Value], index: usize, name: &str) -> Option<Value> {
    let last = arguments.last().filter(|last| last.is_kwargs());
    let named = last.and_then(|last| last.get_attr(name).ok());
    named.filter(|value| !value.is_undefined()).or_else(|| {
        let at = arguments.get(index)?;
        (!at.is_kwargs()).then(|| at.clone())
    })
}

fn bytes(value: &Value) -> usize {
    value.as_bytes().map_or(0, <[u8]>::len)
}

fn number(value: Option<Value>) -> usize {
    value.and_then(|value| value.as_usize()).unwrap_or(0)
}

fn items(value: &Value) -> usize {
    match value.as_str() {
        Some(text) => text.len(),
        None => value.len().unwrap_or_else(|| {
            value
                .try_iter()
                .map_or(0, |items| items.take(budget::largest()).count())
        }),
    }
}

fn occurrences(text: &str, pattern: &str) -> usize {
    match pattern {
        "" => text.len() + 1,
        pattern => text.matches(pattern).count(),
    }
}

fn replaced(arguments: &[Value]) -> usize {
    let [text, from, to, ..] = arguments else {
        return 0;
    };
    let pattern = from
        .as_str()
        .map_or_else(|| from.to_string(), str::to_owned);
    let count = text.as_str().map_or(0, |text| occurrences(text, &pattern));
    let length = to.as_str().map_or_else(|| to.to_string().len(), str::len);
    bytes(text).saturating_add(count.saturating_mul(length))
}

fn joined(arguments: &[Value]) -> usize {
    let Some(list) = arguments.first() else {
        return 0;
    };
    let joiner = argument(arguments, 1, "d").map_or(0, |joiner| bytes(&joiner));
    items(list).saturating_mul(joiner)
}

fn indented(arguments: &[Value]) -> usize {
    let width = number(argument(arguments, 1, "width")).max(4);
    let text = arguments.first().map_or(0, |text| {
        let lines = text.as_str().map_or(1, |text| occurrences(text, "\n") + 1);
        bytes(text).saturating_add(lines.saturating_mul(width))
    });
    text.max(width)
}

/// Each directive writes any of the arguments, padded to any number that is in sight.
fn formatted(arguments: &[Value]) -> usize {
    let Some((format, arguments)) = arguments.split_first() else {
        return 0;
    };
    let Some(format) = format.as_str() else {
        return 0;
    };
    let directives = occurrences(format, "%") + occurrences(format, "{");
    let digits = format.split(|c: char| !c.is_ascii_digit());
    let widths = digits
        .filter(|digits| !digits.is_empty())
        .map(|digits| digits.parse::<usize>().unwrap_or(usize::MAX));
    let widest = widths.max().unwrap_or(0);
    let sizes = arguments.iter().map(|value| {
        let number = value.as_i64().map_or(0, i64::unsigned_abs);
        let text = budget::text(&[value]).map_or(usize::MAX, |text| text.len());
        text.max(usize::try_from(number).unwrap_or(usize::MAX).min(1 << 20))
    });
    let largest = sizes.max().unwrap_or(0).max(widest);
    format
        .len()
        .saturating_add(directives.saturating_mul(largest))
}

/// `batch` and `slice` make lists of so many items, or so many lists.
fn counted(arguments: &[Value]) -> usize {
    let count = number(argument(arguments, 1, "count"));
    let list = arguments.first().map_or(0, items);
    list.saturating_add(count).saturating_mul(NODE)
}

fn listed(arguments: &[Value]) -> usize {
    arguments.first().map_or(0, items).saturating_mul(NODE)
}

fn divided(arguments: &[Value]) -> usize {
    let Some(text) = arguments.first().and_then(|text| text.as_str()) else {
        return 0;
    };
    let separator = argument(arguments, 1, "split");
    let parts = match separator.as_ref().and_then(|separator| separator.as_str()) {
        Some(separator) => occurrences(text, separator),
        None => text.split_whitespace().count(),
    };
    parts.saturating_mul(NODE).saturating_add(text.len())
}

fn lines(arguments: &[Value]) -> usize {
    let text = arguments.first().and_then(|text| text.as_str());
    text.map_or(0, |text| {
        occurrences(text, "\n")
            .saturating_mul(NODE)
            .saturating_add(text.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_at_least_the_results() {
        let text = |text: &str| Value::from(text);
        assert_eq!(replaced(&[text("aaa"), text("a"), text("0123")]), 3 + 12);
        assert!(replaced(&[text("aaa"), text(""), text("0123")]) >= 4 * 4 + 3);
        assert_eq!(joined(&[Value::from(vec![1, 2, 3]), text(", ")]), 6);
        assert_eq!(
            indented(&[text("a\nb"), Value::from(10_000)]),
            3 + 2 * 10_000
        );
        assert!(formatted(&[text("%1000000d"), Value::from(1)]) >= 1_000_000);
        assert!(formatted(&[text("{0}{0}{0}"), text("abcd")]) >= 12);
        assert!(counted(&[text(""), Value::from(1_000_000_000)]) >= 1_000_000_000);
        assert_eq!(divided(&[text("a b c"), text(" ")]), 5 + 2 * NODE);
    }
}
