//! OpenAI's API: its types, and the translation to and from the internal request.

mod capped;
pub mod chat;
mod chat_request;
mod completion_request;
pub mod completions;
mod logprobs;
pub mod response;
pub mod sampling;
pub mod wire;
