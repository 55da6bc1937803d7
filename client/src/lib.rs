//! A client of a Hearth server, or of any other server with OpenAI's API.
//!
//! It has the functions that `hearth chat --url` and the load generator need, and is meant to
//! become the base of the front-end language.
//!
//! **Architecture invariant.** This crate knows the protocol and nothing of the server behind
//! it; it depends on no other crate of the workspace.

mod chat;
mod http;
mod sse;

pub use chat::{ChatOptions, Message, Role};
pub use http::{Client, ClientError, Events};
pub use sse::{Parser, sse_data};
