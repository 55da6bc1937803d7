//! OpenAI's API: its types, and the translation to and from the internal request.

pub mod capped;
pub mod chat;
mod chat_chunks;
pub(super) mod chat_request;
mod chunk;
pub(super) mod completion_request;
pub mod completions;
pub mod embeddings;
pub mod logprobs;
pub mod response;
pub mod responses;
pub mod sampling;
pub mod structured;
mod structured_value;
pub mod tool_fields;
pub mod wire;
