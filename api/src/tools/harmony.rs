//! GPT-OSS's calls in the harmony format: a message on the channel `commentary` to a function. Its
//! messages are cut apart by [`Channels`](crate::channels::Channels), because reasoning and text are
//! messages as well.

use crate::tools::{Call, scan};

/// The special tokens of the format.
pub const START: &str = "<|start|>";
pub const CHANNEL: &str = "<|channel|>";
pub const MESSAGE: &str = "<|message|>";
/// Comes before the type of the message's text.
pub const CONSTRAIN: &str = "<|constrain|>";
/// The three ends of a message: another follows, a call, and the end of the answer.
pub const END: &str = "<|end|>";
pub const CALL: &str = "<|call|>";
pub const RETURN: &str = "<|return|>";

pub const MARKS: [&str; 7] = [START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN];

/// Precedes the name of a function where a message names who it is for.
pub const FUNCTIONS: &str = "functions.";

/// The call of `name` with the arguments in `body`, if it is one of `tools` and they are an object.
pub fn call(name: &str, body: &str, tools: &[String]) -> Option<Call> {
    if !tools.iter().any(|tool| tool == name) {
        return None;
    }
    let body = body.trim();
    // A function without parameters is called without text by some models.
    let arguments = if body.is_empty() { "{}" } else { body };
    scan::members(arguments)?;
    Some(Call {
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    })
}
