//! The HTTP server of a prefill server that tells decode servers where the KV port is, in the
//! shape of SGLang's bootstrap server for a single rank, and its client.

mod client;
mod server;

pub use client::BootstrapClient;
pub use server::{BootstrapError, bind};

use serde::{Deserialize, Serialize};

/// The answer to `GET /route` for a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rank {
    pub rank_ip: String,
    pub rank_port: u16,
}
