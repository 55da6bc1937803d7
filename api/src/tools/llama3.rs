//! Llama 3.1's calls: an object at the beginning of the message, or after a mark.

use crate::tools::{Begin, begin_after};

/// The mark, a special token.
pub const MARK: &str = "<|python_tag|>";
/// The text between two calls.
pub const TRAILER: &str = ";";

pub fn begin(text: &str, fresh: bool) -> Begin {
    let rest = text.trim_start();
    if fresh && rest.starts_with('{') {
        let start = text.len() - rest.len();
        return Begin::At { start, body: start };
    }
    begin_after(text, MARK, |first| first == '{')
}
