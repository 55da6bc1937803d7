//! Anthropic's Messages API.

mod content;
pub mod messages;
pub(super) mod request;
mod stream;
