//! Llama 3.1: an object that the message begins with, or that follows a mark.

use super::{Begin, begin_after};

/// A special token of theirs.
pub const MARK: &str = "<|python_tag|>";
/// What several calls are written with between them.
pub const TRAILER: &str = ";";

pub fn begin(text: &str, fresh: bool) -> Begin {
    let rest = text.trim_start();
    if fresh && rest.starts_with('{') {
        let start = text.len() - rest.len();
        return Begin::At { start, body: start };
    }
    begin_after(text, MARK, |first| first == '{')
}
