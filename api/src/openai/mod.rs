//! OpenAI's API: chats, text completions, embeddings and responses. Each file with a `POST` route
//! has its handler; the `_request` files have what it reads, [`response`] what it writes.

pub mod adapters;
pub mod chat;
mod chat_chunks;
pub(super) mod chat_request;
mod chunk;
pub(super) mod completion_request;
pub mod completions;
pub mod embeddings;
mod generation_request;
mod hints;
mod logprobs;
mod response;
pub mod responses;
