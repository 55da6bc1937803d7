//! Anthropic's Messages API.

pub mod messages;
pub(super) mod request;
mod stream;
