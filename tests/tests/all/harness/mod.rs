//! Shared by all tests: a server process, a model for it, and ways to talk to it.

mod binary;
mod enlarged;
mod model;
mod prometheus;
mod python;
mod random;
mod server;
mod socket;

pub use binary::{hearth, workspace};
pub use enlarged::enlarged;
pub use model::assemble;
pub use prometheus::{Collector, Prometheus, free_port, prometheus};
pub use python::{python_with, telemetry_python};
pub use random::Random;
pub use server::{Answer, Server};
pub use socket::{post_bytes, raw_socket};

pub const CHAT: &str = "/v1/chat/completions";
pub const COMPLETIONS: &str = "/v1/completions";
/// The checkpoint of tests that need no particular one.
pub const MODEL: &str = "llama-llama3-tied";
/// Token ids of the assembled models are bytes. Bytes that never occur in UTF-8 serve as special
/// tokens.
pub const VOCABULARY: u32 = 256;
