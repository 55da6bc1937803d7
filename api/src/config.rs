//! The operator's choices about HTTP.

use std::path::PathBuf;

use serde_json::Value;

use crate::secret::Secret;

/// The settings of the HTTP server. `hearth` builds them out of its own configuration.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// Address to listen on.
    pub host: String,
    /// TCP port; 0 selects a free one.
    pub port: u16,
    /// Number of threads that serve HTTP.
    pub http_workers: usize,
    /// The files for HTTPS; `None` for plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Largest request body in bytes; larger ones get status 413.
    pub max_body_bytes: usize,
    /// The key that clients must send on every route that is not open; `None` if no key is needed.
    pub api_key: Option<Secret>,
    /// The key for the routes that change the server for all clients; `None` for `api_key`.
    pub admin_api_key: Option<Secret>,
    /// A file with several keys and their limits.
    pub api_keys_file: Option<PathBuf>,
    /// True if requests with different keys share no cached prefixes.
    pub isolate_caches: bool,
    /// Names and addresses by which clients may call the server, as a comma-separated list, or `*`
    /// for all; `None` for local ones if `host` is one, else all.
    pub allowed_hosts: Option<String>,
    /// Origins of web pages that may read responses, as a comma-separated list, or `*` for all;
    /// `None` for no pages.
    pub cors: Option<String>,
    /// Seconds after which a client that reads nothing of its stream is disconnected.
    pub stall_timeout: u64,
    /// Seconds that running requests may take to finish after SIGINT or SIGTERM.
    pub shutdown_timeout: u64,
    /// The whole configuration of the process, without its keys, as `/server_info` shows it.
    pub shown: Value,
}

/// The two files of `--tls-cert` and `--tls-key`.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// PEM file with the certificate chain, the server's own certificate first.
    pub cert: PathBuf,
    /// PEM file with the private key of `cert`.
    pub key: PathBuf,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 8000,
            http_workers: 2,
            tls: None,
            max_body_bytes: 16 * 1024 * 1024,
            api_key: None,
            admin_api_key: None,
            api_keys_file: None,
            isolate_caches: false,
            allowed_hosts: None,
            cors: None,
            stall_timeout: 60,
            shutdown_timeout: 30,
            shown: Value::Null,
        }
    }
}
