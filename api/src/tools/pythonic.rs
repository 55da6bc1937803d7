//! Calls of Llama 3.2 and 4: a list of Python calls at the beginning of the message.

use crate::tools::pythonic_values::Values;
use crate::tools::{Begin, Call, MAX_BLANK};

/// Llama 4 may put these special tokens around the list.
pub const MARK: &str = "<|python_start|>";
pub const TRAILER: &str = "<|python_end|>";

pub fn begin(text: &str, fresh: bool, tools: &[String]) -> Begin {
    let all = Begin::Text(text.len());
    let trimmed = text.trim_start();
    if !fresh || trimmed.is_empty() {
        return all;
    }
    let start = text.len() - trimmed.len();
    if MARK.starts_with(trimmed) {
        return Begin::Text(start);
    }
    let Some(list) = trimmed
        .strip_prefix(MARK)
        .unwrap_or(trimmed)
        .strip_prefix('[')
    else {
        return all;
    };
    let first = list.trim_start();
    if list.len() - first.len() > MAX_BLANK {
        return all;
    }
    let begins = |tool: &String| match first.strip_prefix(tool.as_str()) {
        Some(rest) => rest.is_empty() || rest.starts_with('('),
        None => tool.starts_with(first),
    };
    if !tools.iter().any(begins) {
        return all;
    }
    if tools.iter().any(|tool| {
        first
            .strip_prefix(tool.as_str())
            .is_some_and(|r| !r.is_empty())
    }) {
        let body = text.len() - list.len() - 1;
        return Begin::At { start, body };
    }
    Begin::Text(start)
}

pub fn calls(body: &str, tools: &[String]) -> Option<Vec<Call>> {
    let mut values = Values::new(body);
    values.expect('[')?;
    let mut calls = Vec::new();
    loop {
        let name = values.name()?.to_owned();
        if !tools.contains(&name) {
            return None;
        }
        let arguments = values.keywords()?;
        calls.push(Call { name, arguments });
        if values.expect(',').is_some() {
            // A comma may also come after the last call.
            if values.expect(']').is_some() {
                break;
            }
        } else {
            values.expect(']')?;
            break;
        }
    }
    values.is_at_end().then_some(calls)
}
