//! The listener and its worker threads.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use actix_web::dev::Server;
use actix_web::middleware::from_fn;
use actix_web::web::Data;
use actix_web::{App, HttpServer};

use super::abandoned;
use super::auth;
use super::cors;
use super::observe;
use super::request_id;
use super::routes;
use super::stall;
use super::state::AppState;
use crate::tls::{self, TlsError};

/// Longer than clients keep idle connections in their pools, so that they and
/// not the server close them.
const KEEP_ALIVE: Duration = Duration::from_secs(75);
/// For the head of a request, and for what TLS says before it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Beyond the engine's own bound, for the last bytes to leave.
const SHUTDOWN_MARGIN_SECONDS: u64 = 2;

/// Why nothing listens.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("cannot listen on {host}:{port}: {source}")]
    Address {
        host: String,
        port: u16,
        source: io::Error,
    },
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Starts listening. The server runs when it is polled.
///
/// # Errors
/// The address cannot be bound, or there is no speaking TLS with the files that are named.
pub fn bind(state: Data<AppState>) -> Result<(Server, Vec<SocketAddr>), BindError> {
    let config = &state.config;
    let tls = match (&config.tls_cert, &config.tls_key) {
        (Some(cert), Some(key)) => Some(tls::load(cert, key)?),
        _ => None,
    };
    let (host, port) = (config.host.clone(), config.port);
    let address = (config.host.clone(), config.port);
    let stall = Duration::from_secs(config.stall_timeout);
    let (workers, shutdown) = (config.http_workers, config.shutdown_timeout);
    let app = move || {
        App::new()
            .app_data(state.clone())
            // The last is the first to see a request.
            .wrap(from_fn(abandoned::watch))
            .wrap(from_fn(auth::check))
            .wrap(from_fn(observe::observe))
            .wrap(from_fn(cors::share))
            .wrap(from_fn(request_id::attach))
            .configure(routes::configure)
    };
    let server = HttpServer::new(app)
        .workers(workers)
        .keep_alive(KEEP_ALIVE)
        .client_request_timeout(HEAD_TIMEOUT)
        .tls_handshake_timeout(HEAD_TIMEOUT)
        // A client that closes its side is gone: its request is cancelled at
        // once, also where nothing would be written to it for a long time.
        .h1_allow_half_closed(false)
        // Tokens leave when they are there.
        .tcp_nodelay(true)
        .on_connect(move |io, _| stall::bound_writes(io, stall))
        .disable_signals()
        .shutdown_timeout(shutdown.saturating_add(SHUTDOWN_MARGIN_SECONDS));
    // HTTP/2 comes with TLS, by ALPN. Not without it: actix would wait for ever for the first
    // bytes of a connection to tell the two versions apart.
    let bound = match tls {
        Some(tls) => server.bind_rustls_0_23(address, tls),
        None => server.bind(address),
    };
    let server = bound.map_err(|source| BindError::Address { host, port, source })?;
    let addresses = server.addrs();
    Ok((server.run(), addresses))
}
