//! The listeners, and their end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::{Server, ServerHandle};
use actix_web::middleware::from_fn;
use actix_web::web::Data;
use actix_web::{App, HttpServer, rt};
use hearth_otel::Traces;
use prometheus::IntGauge;

use crate::config::{ConfigError, RouterConfig};
use crate::state::{Router, SetupError};
use crate::upstream::Upstream;
use crate::{control, middleware, routes};

/// Longer than clients keep idle connections, so that the client and not the router closes them.
const KEEP_ALIVE: Duration = Duration::from_secs(75);
/// For the head of a request, and for the TLS handshake before it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the router cannot start.
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
    Config(#[from] ConfigError),
    #[error(transparent)]
    Setup(#[from] SetupError),
}

/// A router that listens.
#[derive(Debug)]
pub struct Running {
    /// Where clients connect.
    pub addresses: Vec<SocketAddr>,
    /// Where `/metrics` is served alone, if it is.
    pub metrics_addresses: Vec<SocketAddr>,
    handles: Vec<ServerHandle>,
    router: Arc<Router>,
}

/// Counts a connection of a client while it lives.
struct Connection(IntGauge);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Opens the ports and starts serving. Must be called in an actix system, which has to live as long
/// as the router. With `tls`, clients speak HTTPS. With `traces`, each request gets its spans.
///
/// # Errors
/// A setting is out of bounds, or an address cannot be bound.
pub fn bind(
    config: RouterConfig,
    tls: Option<rustls::ServerConfig>,
    traces: Option<Traces>,
) -> Result<Running, BindError> {
    config.check()?;
    let router = Arc::new(Router::new(config, traces)?);
    let (server, addresses) = listen(&router, tls)?;
    let metrics = match router.config.prometheus_port {
        0 => None,
        port => Some(listen_for_scrapes(&router, port)?),
    };
    let mut handles = vec![server.handle()];
    rt::spawn(server);
    let mut metrics_addresses = Vec::new();
    if let Some((server, addresses)) = metrics {
        handles.push(server.handle());
        rt::spawn(server);
        metrics_addresses = addresses;
    }
    control::add_configured(&router)?;
    Ok(Running {
        addresses,
        metrics_addresses,
        handles,
        router,
    })
}

fn listen(
    router: &Arc<Router>,
    tls: Option<rustls::ServerConfig>,
) -> Result<(Server, Vec<SocketAddr>), BindError> {
    let config = &router.config;
    let (host, port) = (config.host.clone(), config.port);
    let timeout = Duration::from_secs_f64(config.request_timeout_secs);
    let upstream = Upstream::new(timeout).map_err(SetupError::Client)?;
    let data = Data::from(Arc::clone(router));
    let app = move || {
        // Each thread has connections of its own to the workers. A client whose setup succeeded
        // once does not fail later; if it does, the thread shares the first one.
        let upstream = Upstream::new(timeout).unwrap_or_else(|_| upstream.clone());
        let longest_body = data.config.max_payload_size;
        App::new()
            .app_data(data.clone())
            .app_data(Data::new(upstream))
            // The middleware that is added last is the first to see a request.
            .wrap(from_fn(middleware::auth))
            .wrap(from_fn(middleware::observe))
            .configure(|routes| routes::configure(routes, longest_body))
    };
    let connections = router.metrics.http_connections.clone();
    let server = HttpServer::new(app)
        .workers(config.http_workers)
        .keep_alive(KEEP_ALIVE)
        .client_request_timeout(HEAD_TIMEOUT)
        .tls_handshake_timeout(HEAD_TIMEOUT)
        // A client that closes its side of the connection is taken to be gone: its request to the
        // worker is cancelled at once.
        .h1_allow_half_closed(false)
        .tcp_nodelay(true)
        .on_connect(move |_, data| {
            connections.inc();
            data.insert(Connection(connections.clone()));
        })
        .disable_signals()
        .shutdown_timeout(config.shutdown_grace_period_secs.ceil() as u64);
    let address = (host.as_str(), port);
    let bound = match tls {
        Some(tls) => server.bind_rustls_0_23(address, tls),
        None => server.bind(address),
    };
    let server = bound.map_err(|source| BindError::Address { host, port, source })?;
    let addresses = server.addrs();
    Ok((server.run(), addresses))
}

/// A listener for scrapers, which serves the metrics and nothing else.
fn listen_for_scrapes(
    router: &Arc<Router>,
    port: u16,
) -> Result<(Server, Vec<SocketAddr>), BindError> {
    let host = router.config.prometheus_host.clone();
    let data = Data::from(Arc::clone(router));
    let app = move || {
        App::new()
            .app_data(data.clone())
            .configure(routes::configure_metrics)
    };
    let server = HttpServer::new(app)
        .workers(1)
        .client_request_timeout(HEAD_TIMEOUT)
        .disable_signals()
        .shutdown_timeout(0);
    let bound = server.bind((host.as_str(), port));
    let server = bound.map_err(|source| BindError::Address { host, port, source })?;
    let addresses = server.addrs();
    Ok((server.run(), addresses))
}

impl Running {
    /// Stops accepting connections, and waits until the requests that run have ended, for as long
    /// as the settings say.
    pub async fn stop(self) {
        self.router.start_stopping();
        for handle in &self.handles {
            handle.stop(true).await;
        }
    }
}
