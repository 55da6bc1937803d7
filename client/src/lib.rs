//! Talks to a Hearth server, or any other that speaks OpenAI's API.
//!
//! Today: what `hearth chat --url` and the load generator need. It is where the
//! front-end language will stand.
//!
//! Architecture invariant: this crate knows the wire and nothing of the server
//! behind it; it depends on no other crate of the workspace.

mod chat;
mod http;
mod sse;

pub use chat::{ChatOptions, Message, Role};
pub use http::{Client, ClientError, Events};
pub use sse::{Parser, sse_data};
