//! Literals and regexes in the syntax of Lark.

use serde_json::Value;

/// A literal of Lark, which has the syntax of JSON strings except for DEL.
pub(super) fn literal(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// A regex that matches each of `texts`, to be written between slashes.
pub(super) fn either(texts: &[&str]) -> String {
    let texts: Vec<String> = texts
        .iter()
        .map(|text| regex_syntax::escape(text))
        .collect();
    slashed(&format!("(?:{})", texts.join("|")))
}

/// A terminal expression for text that contains none of `texts`.
pub(super) fn lacking(texts: &[&str]) -> String {
    format!("~/(?s:.*){}(?s:.*)/", either(texts))
}

/// `regex` with its slashes escaped, to be written between slashes.
pub(super) fn slashed(regex: &str) -> String {
    let mut out = String::with_capacity(regex.len());
    let mut escaped = false;
    for c in regex.chars() {
        if c == '/' && !escaped {
            out.push('\\');
        }
        escaped = c == '\\' && !escaped;
        out.push(c);
    }
    out
}
