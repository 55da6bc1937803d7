//! Keys and values on their way from a prefill server to a decode server.
//!
//! In prefill/decode disaggregation one server computes the prompt and another one generates the
//! output. A router sends the same request to both, with the address of the prefill server's
//! bootstrap server and a room, a random number that both sides know the request by.
//!
//! ```text
//! decode server                                  prefill server
//!   GET /route            ──────────────────▶      bootstrap server: where is the KV port?
//!   hello, challenge      ◀─────────────────▶      KV port: same model, same secret?
//!   pull(room, from)      ──────────────────▶      waits for the request with this room
//!                         ◀── pages, pages ──      chunk by chunk, while it computes
//!                         ◀──── output ──────      the first token, log-probabilities
//!   done                  ──────────────────▶      frees the slots
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | [`bootstrap`] | the HTTP server that tells where the KV port is, and its client |
//! | [`identity`] | what both sides must have in common |
//! | [`digest`] | digests of prompts and models |
//! | `frame` | a message on the wire: its length, kind, checksum and payload |
//! | `message` | the messages |
//! | `handshake` | version, identity, and the proof of the secret |
//! | [`rooms`] | where a request and the peer that pulls it meet, whichever comes first |
//! | [`listener`] | the KV port of a prefill server |
//! | [`offer`] | the prefill server's end of a room |
//! | [`pull`] | the decode server's end of a room |
//!
//! **Architecture Invariant.** This crate moves bytes. It knows no engine, no tensor and no
//! request; it never holds more than one frame of a room, so a slow peer holds back its own room
//! and nothing else.

pub mod bootstrap;
pub mod digest;
mod error;
mod frame;
#[cfg(test)]
mod fuzz;
mod handshake;
pub mod identity;
pub mod listener;
mod message;
pub mod offer;
pub mod pull;
pub mod rooms;
pub mod secret;

pub use error::WireError;
pub use message::{MAX_PAGES_BYTES, Pages, PullRequest};
