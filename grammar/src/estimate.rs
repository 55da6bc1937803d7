//! How much work compiling a grammar may be, told from its text alone and in no time, so that grammars
//! which may take seconds do not keep all threads from those that take microseconds.

use serde_json::Value;

use crate::spec::{Source, Spec};

/// A grammar with a larger estimate is heavy. Compiling takes about a microsecond for each unit.
const HEAVY: u64 = 50_000;

/// The cost of a class of characters, beside that of one character.
const CLASS: u64 = 4;

/// True if compiling `spec` may take long.
pub(crate) fn is_heavy(spec: &Spec) -> bool {
    let work = match &spec.source {
        Source::Regex(pattern) => regex(pattern),
        Source::Choice(choices) => choices.iter().map(|choice| choice.len() as u64).sum(),
        Source::JsonSchema(schema) | Source::StructuralTag(schema) => json(schema),
        Source::JsonObject => 0,
        Source::Lark(text) | Source::Gbnf(text) => regex(text),
        Source::LarkWithSchemas { lark, schemas } => {
            let schemas = schemas.iter().map(|(_, schema)| json(schema));
            regex(lark).saturating_add(schemas.fold(0, u64::saturating_add))
        }
    };
    work > HEAVY
}

/// The atoms of a regular expression, or of the bodies of a grammar's rules, each as often as
/// repetitions with counts repeat it.
fn regex(text: &str) -> u64 {
    // The atoms of the groups around the current one, and of the current one.
    let mut outer: Vec<u64> = Vec::new();
    let mut sum = 0u64;
    let mut last = 0u64;
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'(' => outer.push(std::mem::take(&mut sum)),
            b')' => {
                last = sum;
                sum = outer.pop().unwrap_or(0).saturating_add(last);
            }
            b'{' => {
                let counts = take_until(&mut rest, b'}').split(|byte| *byte == b',');
                let most = counts.filter_map(number).max().unwrap_or(1).max(1);
                sum = sum.saturating_add(last.saturating_mul(most - 1));
                last = last.saturating_mul(most);
            }
            b'*' | b'+' | b'?' => {}
            _ => {
                last = match byte {
                    b'[' => {
                        take_until(&mut rest, b']');
                        CLASS
                    }
                    b'\\' => {
                        let escaped = rest.split_off_first();
                        match escaped.is_some_and(u8::is_ascii_alphabetic) {
                            true => CLASS,
                            false => 1,
                        }
                    }
                    b'.' => CLASS,
                    _ => 1,
                };
                sum = sum.saturating_add(last);
            }
        }
    }
    outer.into_iter().fold(sum, u64::saturating_add)
}

/// Takes the bytes before `mark`, and the mark, off the front of `rest`. Escaped bytes are no marks.
fn take_until<'a>(rest: &mut &'a [u8], mark: u8) -> &'a [u8] {
    let text = *rest;
    let mut end = 0;
    while end < text.len() && text[end] != mark {
        end += if text[end] == b'\\' { 2 } else { 1 };
    }
    let end = end.min(text.len());
    *rest = text.get(end + 1..).unwrap_or_default();
    &text[..end]
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.trim().parse().ok()
}

/// The size of a schema, and the work of its patterns.
fn json(schema: &Value) -> u64 {
    match schema {
        Value::Object(members) => {
            let of = |(name, value): (&String, &Value)| {
                let own = name.len() as u64;
                let patterns = match (name.as_str(), value) {
                    ("pattern", Value::String(pattern)) => regex(pattern),
                    ("patternProperties", Value::Object(named)) => named
                        .keys()
                        .map(|name| regex(name))
                        .fold(0, u64::saturating_add),
                    _ => 0,
                };
                own.saturating_add(patterns).saturating_add(json(value))
            };
            members.iter().map(of).fold(1, u64::saturating_add)
        }
        Value::Array(values) => values.iter().map(json).fold(1, u64::saturating_add),
        Value::String(text) => text.len() as u64,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn repetitions_multiply_and_classes_cost_more_than_characters() {
        for (pattern, atoms) in [
            ("", 0),
            ("abc", 3),
            ("a{10}", 10),
            ("[a-z]{2,5}", 20),
            (r"\d{3}", 12),
            (r"\{3}", 3),
            ("(ab{3}){4}c", 17),
            ("(a{100}){100}", 10_000),
            ("(((", 0),
            ("a)))}b{", 3),
            (r"[^\]]{3}", 12),
            ("a{99999999999999999999}", 1),
            ("(((((a{9999}){9999}){9999}){9999}){9999}){9999}", u64::MAX),
        ] {
            assert_eq!(regex(pattern), atoms, "{pattern}");
        }
    }

    #[test]
    fn large_repetitions_are_heavy_wherever_they_are() {
        let heavy = "(a{0,300}b{0,300}){200}";
        let is_heavy = |source| is_heavy(&Spec::new(source));
        assert!(is_heavy(Source::Regex(heavy.to_owned())));
        assert!(!is_heavy(Source::Regex("[a-z]{1,2000}".to_owned())));
        let schema = |pattern: &str| json!({"properties": {"a": {"pattern": pattern}}});
        assert!(is_heavy(Source::JsonSchema(schema(heavy))));
        assert!(!is_heavy(Source::JsonSchema(schema("^a{5}$"))));
        let named = json!({"patternProperties": {heavy: true}});
        assert!(is_heavy(Source::JsonSchema(named)));
        assert!(is_heavy(Source::Lark(format!("start: /{heavy}/"))));
        assert!(!is_heavy(Source::JsonObject));
    }
}
