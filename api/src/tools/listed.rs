//! Calls of Granite 3 and Phi-4-mini: a mark, and then a list of objects.

use crate::tools::{Begin, Call, begin_after, scan};

/// Granite 3.0 and 3.3 and Phi-4-mini have this special token.
pub const MARK: &str = "<|tool_call|>";
/// The text that Granite 3.1 and 3.2 have in its place.
pub const PLAIN_MARK: &str = "<tool_call>";
/// The special token after the list of Phi-4-mini.
pub const TRAILER: &str = "<|/tool_call|>";

/// Looks for a list after the first of `marks`.
pub fn begin(text: &str, marks: &[&str]) -> Begin {
    let found = marks
        .iter()
        .map(|mark| begin_after(text, mark, |first| first == '[' || first == '{'));
    let first = found.min_by_key(|begin| match begin {
        Begin::Text(text) => *text,
        Begin::At { start, .. } => *start,
    });
    first.unwrap_or(Begin::Text(text.len()))
}

pub fn calls(body: &str, tools: &[String]) -> Option<Vec<Call>> {
    let one = |json| Call::from_json(json, &["arguments", "parameters"], tools);
    if body.starts_with('{') {
        return Some(vec![one(body)?]);
    }
    let calls: Vec<Call> = scan::elements(body)?
        .into_iter()
        .map(one)
        .collect::<Option<_>>()?;
    (!calls.is_empty()).then_some(calls)
}
