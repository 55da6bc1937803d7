//! The front-end language for programs over language models ([`lang`]), and clients of servers over
//! HTTP: Hearth's and any other with OpenAI's or Anthropic's API ([`backends`]).
//!
//! **Architecture Invariant.** This crate knows wire formats and not the server behind them; it
//! depends on no other crate of the workspace. Without the feature `http` it has the language alone,
//! for back ends in the same process.

#[cfg(feature = "http")]
pub mod backends;
#[cfg(feature = "http")]
mod chat;
#[cfg(feature = "http")]
mod http;
pub mod lang;
mod message;
mod sse;

#[cfg(feature = "http")]
pub use chat::ChatOptions;
#[cfg(feature = "http")]
pub use http::{Client, ClientError, Events};
pub use message::{Message, Role};
pub use sse::{MAX_EVENT_BYTES, Parser, TooLong, sse_data};

/// The manual, whose examples are compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/FRONTEND.md")]
struct Manual;
