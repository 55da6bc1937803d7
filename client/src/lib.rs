//! A client of Hearth, or of any other server with OpenAI's API. It has what `hearth chat --url`,
//! the load generator and the end-to-end tests need.
//!
//! **Architecture Invariant.** This crate knows the wire format and not the server behind it; it
//! depends on no other crate of the workspace.

mod chat;
mod http;
mod sse;

pub use chat::{ChatOptions, Message, Role};
pub use http::{Client, ClientError, Events};
pub use sse::{Parser, sse_data};
