//! The listener and its worker threads.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use actix_web::dev::Server;
use actix_web::middleware::from_fn;
use actix_web::web::Data;
use actix_web::{App, HttpServer};

use crate::middleware::{abandoned, auth, cors, hosts, observe, refusals, request_id};
use crate::state::AppState;
use crate::tls::{self, TlsError};
use crate::{routes, stall};

/// Longer than clients keep idle connections in their pools, so that the client and not the server
/// closes them.
const KEEP_ALIVE: Duration = Duration::from_secs(75);
/// For the head of a request, and for the TLS handshake before it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Added to the time that requests have to finish, so that their last bytes can be sent.
const SHUTDOWN_MARGIN_SECONDS: u64 = 2;

/// Why the server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    // The reason is the next error in the chain.
    #[error("cannot listen on {host}:{port}")]
    Address {
        host: String,
        port: u16,
        source: io::Error,
    },
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Opens the port. The server runs when the returned future is polled.
///
/// # Errors
/// The address cannot be bound, or the files for TLS cannot be used.
pub fn bind(state: Data<AppState>) -> Result<(Server, Vec<SocketAddr>), BindError> {
    let config = &state.config;
    let tls = match &config.tls {
        Some(files) => Some(tls::load(&files.cert, &files.key)?),
        None => None,
    };
    let (host, port) = (config.host.clone(), config.port);
    let address = (config.host.clone(), config.port);
    let stall = Duration::from_secs(config.stall_timeout);
    let (workers, shutdown) = (config.http_workers, config.shutdown_timeout);
    let app = move || {
        App::new()
            .app_data(state.clone())
            // The middleware that is added last is the first to see a request.
            .wrap(from_fn(refusals::translate))
            .wrap(from_fn(abandoned::watch))
            .wrap(from_fn(auth::check))
            .wrap(from_fn(hosts::check))
            .wrap(from_fn(observe::observe))
            .wrap(from_fn(cors::share))
            .wrap(from_fn(refusals::log))
            .wrap(from_fn(request_id::attach))
            .configure(routes::configure)
    };
    let server = HttpServer::new(app)
        .workers(workers)
        .keep_alive(KEEP_ALIVE)
        .client_request_timeout(HEAD_TIMEOUT)
        .tls_handshake_timeout(HEAD_TIMEOUT)
        // A client that closes its side of the connection is taken to be gone: its request is
        // cancelled at once, even if nothing would be written to it for a long time.
        .h1_allow_half_closed(false)
        // Each token is sent at once, instead of waiting for more bytes.
        .tcp_nodelay(true)
        .on_connect(move |io, _| stall::bound_writes(io, stall))
        .disable_signals()
        .shutdown_timeout(shutdown.saturating_add(SHUTDOWN_MARGIN_SECONDS));
    // HTTP/2 is negotiated with TLS, by ALPN. Without TLS there is none: actix would wait without a
    // limit for a connection's first bytes to tell the two versions apart.
    let bound = match tls {
        Some(tls) => server.bind_rustls_0_23(address, tls),
        None => server.bind(address),
    };
    let server = bound.map_err(|source| BindError::Address { host, port, source })?;
    let addresses = server.addrs();
    Ok((server.run(), addresses))
}
