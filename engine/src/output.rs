//! The text of a request: tokens in, text out, cut at stop strings and at matches of regular
//! expressions.
//!
//! This runs where the tokens are received, not on the engine thread: the engine knows tokens only.
//! When a stop string is found, the receiver drops the generation, which cancels the request.

mod detokenize;
mod stop;
mod stop_regex;
mod stream;

pub use detokenize::{Detokenize, IncrementalDecoder};
pub use stop_regex::{StopRegexError, StopRegexes};
pub use stream::{TextDelta, TextOptions, TextStream, token_text};
