//! Hermes, Qwen 2.5 and 3: an object between two marks.

use crate::tools::{Begin, begin_after};

pub const MARK: &str = "<tool_call>";
pub const TRAILER: &str = "</tool_call>";

pub fn begin(text: &str) -> Begin {
    begin_after(text, MARK, |first| first == '{')
}
