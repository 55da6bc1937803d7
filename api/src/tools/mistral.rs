//! Mistral's calls: a mark, and then a list of objects, or a name and its arguments.

use crate::tools::{Begin, Call, Found, begin_after, find, scan};

/// The mark, a special token.
pub const MARK: &str = "[TOOL_CALLS]";
/// Special tokens that the newer form has between the name and the arguments.
const ID: &str = "[CALL_ID]";
const ARGS: &str = "[ARGS]";
pub const MARKS: [&str; 3] = [MARK, ID, ARGS];

pub fn begin(text: &str, tools: &[String]) -> Begin {
    let Found::At(start) = find(text, MARK) else {
        return begin_after(text, MARK, |_| false);
    };
    let after = start + MARK.len();
    let rest = &text[after..];
    match name_and_body(rest, tools) {
        Named::Body(at) => Begin::At {
            start,
            body: after + at,
        },
        Named::More => Begin::Text(start),
        Named::No => begin_after(text, MARK, |first| first == '[' || first == '{'),
    }
}

enum Named {
    /// The arguments begin here.
    Body(usize),
    More,
    No,
}

/// Looks for the name of a tool at the beginning of `text`, and for its arguments after it.
fn name_and_body(text: &str, tools: &[String]) -> Named {
    let word = |text: &str| text.len() - text.trim_start_matches(super::is_name).len();
    let name = word(text);
    if name == 0 {
        return Named::No;
    }
    if name == text.len() {
        let begun = tools.iter().any(|tool| tool.starts_with(text));
        return if begun { Named::More } else { Named::No };
    }
    if !tools.iter().any(|tool| *tool == text[..name]) {
        return Named::No;
    }
    let mut rest = &text[name..];
    if let Some(id) = rest.strip_prefix(ID) {
        rest = &id[word(id)..];
    }
    rest = rest.strip_prefix(ARGS).unwrap_or(rest);
    if rest.starts_with('{') {
        Named::Body(text.len() - rest.len())
    } else if rest.is_empty() || ID.starts_with(rest) || ARGS.starts_with(rest) {
        Named::More
    } else {
        Named::No
    }
}

pub fn calls(lead: &str, body: &str, tools: &[String]) -> Option<Vec<Call>> {
    let one = |json| Call::from_json(json, &["arguments"], tools);
    if body.starts_with('[') {
        let calls: Vec<Call> = scan::elements(body)?
            .into_iter()
            .map(one)
            .collect::<Option<_>>()?;
        return (!calls.is_empty()).then_some(calls);
    }
    let name = lead.strip_prefix(MARK)?.split('[').next()?;
    if name.trim_start().is_empty() {
        return Some(vec![one(body)?]);
    }
    scan::members(body)?;
    Some(vec![Call {
        name: name.to_owned(),
        arguments: body.to_owned(),
    }])
}
