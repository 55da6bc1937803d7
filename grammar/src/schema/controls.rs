//! Keeps llguidance from allowing `\"` and `\\` where a pattern forbids these characters.
//!
//! llguidance writes a class of characters as JSON text. Where a class has all control characters,
//! or all but the newline, it allows every escape of one letter, those of the quotation mark and of
//! the backslash among them, whether the class has these two or not: `^[^"]+$` would accept
//! `"a\"b"`. A class without U+0000 is written character by character and is right, so that
//! character is taken out of classes that may be affected. Texts that need it there are not
//! generated, and no text is wrong.

use serde_json::{Map, Value};

/// Words whose values are data and not schemas.
const DATA: [&str; 4] = ["const", "default", "enum", "examples"];
/// Words whose values have a schema for each of several names.
const NAMED: [&str; 4] = ["$defs", "definitions", "dependentSchemas", "properties"];

/// Rewrites all patterns of `schema`.
pub fn without_nul(schema: &mut Value) {
    match schema {
        Value::Array(list) => list.iter_mut().for_each(without_nul),
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                match value {
                    Value::String(pattern) if key == "pattern" => *pattern = rewritten(pattern),
                    _ if DATA.contains(&key.as_str()) => {}
                    Value::Object(patterns) if key == "patternProperties" => {
                        *patterns = names(patterns);
                    }
                    Value::Object(named) if NAMED.contains(&key.as_str()) => {
                        named.values_mut().for_each(without_nul);
                    }
                    value => without_nul(value),
                }
            }
        }
        _ => {}
    }
}

/// The same patterns of names, rewritten, with their schemas.
fn names(patterns: &mut Map<String, Value>) -> Map<String, Value> {
    let patterns = std::mem::take(patterns).into_iter();
    let rewritten = patterns.map(|(pattern, mut schema)| {
        without_nul(&mut schema);
        (rewritten(&pattern), schema)
    });
    rewritten.collect()
}

/// `pattern` with U+0000 taken out of the classes that may have all control characters but not
/// both the quotation mark and the backslash.
fn rewritten(pattern: &str) -> String {
    let mut text = String::with_capacity(pattern.len() + 8);
    let mut rest = pattern;
    while let Some(letter) = rest.chars().next() {
        let length = match letter {
            // An escape is copied with the letter after it.
            '\\' => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            '[' => {
                let class = class_of(rest);
                write_class(class, &mut text);
                rest = &rest[class.len()..];
                continue;
            }
            letter => letter.len_utf8(),
        };
        text.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    text
}

/// The class that `rest` begins with, brackets included. A class within it is part of it.
fn class_of(rest: &str) -> &str {
    let mut depth = 0;
    let mut letters = rest.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => drop(letters.next()),
            '[' => depth += 1,
            ']' => {
                depth -= 1;
                // A bracket right after the beginning is a member of the class.
                let before = &rest[..at];
                if depth == 0 && before != "[" && before != "[^" {
                    return &rest[..=at];
                }
                depth = depth.max(1);
            }
            _ => {}
        }
    }
    rest
}

fn write_class(class: &str, text: &mut String) {
    match class.strip_prefix("[^") {
        Some(members) if ["\"", "\\", "-"].iter().any(|part| members.contains(part)) => {
            text.push_str("[^\\x00");
            text.push_str(members);
        }
        Some(_) => text.push_str(class),
        // A range from U+0000 begins after it.
        None => {
            let class = ["\\x{0}-", "\\x00-", "\\u0000-", "\\u{0}-"]
                .iter()
                .fold(class.to_owned(), |class, from| {
                    class.replace(from, "\\x01-")
                });
            text.push_str(&class);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_classes_that_may_be_affected_are_rewritten() {
        for (pattern, expected) in [
            (r"^[^\\]+$", r"^[^\x00\\]+$"),
            ("^[^\"\n]*$", "^[^\\x00\"\n]*$"),
            ("[^!-~]", "[^\\x00!-~]"),
            ("[^a]", "[^a]"),
            (r"\[^\\]", r"\[^\\]"),
            (
                r"[\x{0}-\x{21}\x{23}-\x{10FFFF}]",
                r"[\x01-\x{21}\x{23}-\x{10FFFF}]",
            ),
            ("[]\"]x[^]\"]", "[]\"]x[^\\x00]\"]"),
            (r"[a-z&&[^\]-]][b]", r"[a-z&&[^\]-]][b]"),
            ("é[^\\", "é[^\\x00\\"),
            ("", ""),
        ] {
            assert_eq!(rewritten(pattern), expected, "{pattern}");
        }
    }

    #[test]
    fn data_is_left_alone() {
        let mut schema = json!({
            "enum": [{"pattern": "[^\"]"}],
            "const": {"pattern": "[^\"]"},
            "properties": {"const": {"pattern": "[^\"]"}},
            "patternProperties": {"^[^\"]$": {"type": "string"}},
        });
        without_nul(&mut schema);
        let expected = json!({
            "enum": [{"pattern": "[^\"]"}],
            "const": {"pattern": "[^\"]"},
            "properties": {"const": {"pattern": "[^\\x00\"]"}},
            "patternProperties": {"^[^\\x00\"]$": {"type": "string"}},
        });
        assert_eq!(schema, expected);
    }
}
