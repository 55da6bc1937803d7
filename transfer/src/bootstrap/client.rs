//! Asks bootstrap servers for KV ports.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Rank;
use crate::error::WireError;

/// The longest answer that is read.
const MAX_ANSWER: usize = 4096;

/// Finds the KV ports of prefill servers, and remembers them.
#[derive(Debug)]
pub struct BootstrapClient {
    http: reqwest::Client,
    known: Mutex<HashMap<(String, u16), String>>,
}

impl BootstrapClient {
    /// # Errors
    /// TLS cannot be set up.
    pub(crate) fn new(patience: Duration) -> Result<Self, WireError> {
        let http = reqwest::Client::builder()
            .timeout(patience)
            // The servers of a cluster are reached directly.
            .no_proxy()
            .build()
            .map_err(WireError::malformed)?;
        Ok(Self {
            http,
            known: Mutex::default(),
        })
    }

    fn known(&self) -> MutexGuard<'_, HashMap<(String, u16), String>> {
        // Every critical section is one change of the map.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address `ip:port` of the KV port of the prefill server whose bootstrap server is at
    /// `host:port`.
    ///
    /// # Errors
    /// There is no bootstrap server, or it answers something else.
    pub(crate) async fn kv_port(&self, host: &str, port: u16) -> Result<String, WireError> {
        let key = (host.to_owned(), port);
        if let Some(address) = self.known().get(&key) {
            return Ok(address.clone());
        }
        let address = self.ask(host, port).await?;
        self.known().insert(key, address.clone());
        Ok(address)
    }

    /// The KV port of this server did not answer: it is asked for again the next time.
    pub(crate) fn forget(&self, host: &str, port: u16) {
        self.known().remove(&(host.to_owned(), port));
    }

    async fn ask(&self, host: &str, port: u16) -> Result<String, WireError> {
        let bracketed = match host.contains(':') && !host.starts_with('[') {
            true => format!("[{host}]"),
            false => host.to_owned(),
        };
        let address = format!("{bracketed}:{port}");
        let failed = |reason: String| WireError::Bootstrap {
            address: address.clone(),
            reason,
        };
        let ranks = "prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0";
        let url = format!("http://{address}/route?{ranks}");
        let asked = self.http.get(url).send().await;
        let mut answer = asked.map_err(|error| failed(root_cause(&error)))?;
        if !answer.status().is_success() {
            return Err(failed(format!("status {}", answer.status().as_u16())));
        }
        let mut body = Vec::new();
        while let Some(chunk) = answer
            .chunk()
            .await
            .map_err(|error| failed(root_cause(&error)))?
        {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_ANSWER {
                return Err(failed("the answer is too long".to_owned()));
            }
        }
        let rank: Rank =
            serde_json::from_slice(&body).map_err(|error| failed(error.to_string()))?;
        Ok(match rank.rank_ip.contains(':') {
            true => format!("[{}]:{}", rank.rank_ip, rank.rank_port),
            false => format!("{}:{}", rank.rank_ip, rank.rank_port),
        })
    }
}

/// The innermost reason; the outer ones repeat the URL.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
