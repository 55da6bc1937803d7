//! `hearth serve`: starts the server, and shuts it down on a signal.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use actix_web::rt::{self, System};
use actix_web::web::Data;
use anyhow::{Result, anyhow, bail};
use hearth_api::served::Served;
use hearth_api::server;
use hearth_api::state::AppState;
use hearth_otel::Telemetry;
use tokio::sync::oneshot;

use crate::banner::banner;
use crate::config::{Config, LogFormat};
use crate::disaggregation;
use crate::kv_events;
use crate::load;
use crate::prefix_files::{self, Directory, PrefixFiles};
use crate::telemetry;

/// How often the server checks that its engine is running.
const ENGINE_WATCH: Duration = Duration::from_millis(250);
/// Time in which the last spans and metrics must reach a collector.
const TELEMETRY_TIMEOUT: Duration = Duration::from_secs(3);
/// Time in which connections must end after the engine has stopped unexpectedly.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves until a signal arrives.
///
/// # Errors
/// The server cannot listen on the address, the model does not load, or the engine stops
/// unexpectedly.
pub fn run(config: Config) -> Result<()> {
    let _logs = hearth_otel::init_logs(config.log_format.into(), &config.log_level)?;
    hearth_otel::log_panics();
    for (name, meant) in Config::unknown_environment() {
        tracing::warn!(
            name,
            meant,
            "ignored this environment variable, which is not a setting of hearth"
        );
    }
    let telemetry = telemetry::start(&config)?;
    let served = System::new().block_on(serve(config, telemetry.clone()));
    // Called outside the async runtime, and whether or not serving failed.
    telemetry.shutdown(TELEMETRY_TIMEOUT);
    served
}

async fn serve(config: Config, telemetry: Telemetry) -> Result<()> {
    let directory = prefix_files::open(&config)?;
    let state = Data::new(AppState::new(config.http(), telemetry)?);
    // The port opens before the model is loaded; until then /ready and the API return 503.
    let (server, addresses) = server::bind(state.clone())?;
    if !state.clients.need_keys() && is_open_to_others(&config.host) {
        tracing::warn!(
            host = config.host,
            "everybody who reaches this address may use the server: --api-key asks for a key, and \
             --host 127.0.0.1 listens for this machine alone"
        );
    }
    let handle = server.handle();
    rt::spawn(server);
    // Without a file, a SIGHUP ends the process as it does any other.
    if config.api_keys_file.is_some() {
        rt::spawn(reload_keys(state.clone()));
    }
    let mut signals = Signals::new()?;
    let loaded = tokio::select! {
        loaded = load_on_a_thread(config.clone(), directory) => loaded,
        name = signals.next() => {
            tracing::info!(signal = name, "stopping before the model was loaded");
            return Ok(());
        }
    };
    let (mut served, prefix_files) = loaded?;
    let disaggregation::Started { part, bootstrap } =
        disaggregation::start(&config, &served).await?;
    served.disaggregation = part;
    served.kv_events = kv_events::start(&config, &served)?;
    let took = state.started.elapsed();
    state.set_ready(served.clone());
    match config.log_format {
        LogFormat::Text => hearth_otel::print(&banner(&config, &served, addresses.first(), took)),
        LogFormat::Json => {}
    }
    tracing::info!(
        model = served.id,
        device = served.info.device,
        port = addresses.first().map(std::net::SocketAddr::port),
        took_ms = took.as_millis() as u64,
        "ready"
    );
    let name = tokio::select! {
        name = signals.next() => name,
        () = engine_gone(&served) => {
            state.start_draining();
            // Gives streams the time to send their final error.
            let _ = tokio::time::timeout(DRAIN_TIMEOUT, handle.stop(true)).await;
            bail!("the engine thread ended unexpectedly, which is a bug; its last messages are above");
        }
    };
    let grace = Duration::from_secs(config.shutdown_timeout);
    tracing::info!(signal = name, grace_s = grace.as_secs(), "stopping");
    state.start_draining();
    if let Some(bootstrap) = bootstrap {
        rt::spawn(bootstrap.stop(false));
    }
    let stopped = async {
        // Until the requests have ended, load balancers ask /ready, which answers 503, and
        // Prometheus reads what the last requests did. Then the listener closes, and connections
        // close when their responses have been sent.
        stop_engine(served, prefix_files, grace).await;
        handle.stop(true).await;
    };
    tokio::select! {
        () = stopped => tracing::info!("stopped"),
        name = signals.next() => tracing::warn!(signal = name, "stopping at once after a second signal"),
    }
    Ok(())
}

/// True if other machines may reach a server that listens on `host`.
fn is_open_to_others(host: &str) -> bool {
    let is_loopback = |address: IpAddr| address.is_loopback();
    host != "localhost" && !host.parse().is_ok_and(is_loopback)
}

/// Loads the model on its own thread, which is left behind if a signal arrives first.
async fn load_on_a_thread(
    config: Config,
    directory: Option<Directory>,
) -> Result<(Served, Option<PrefixFiles>)> {
    let (report, loaded) = oneshot::channel();
    thread::Builder::new()
        .name("hearth-load".to_owned())
        // The receiver is gone if a signal arrived first.
        .spawn(move || drop(report.send(load_all(&config, directory))))?;
    loaded
        .await
        .unwrap_or_else(|_| Err(anyhow!("loading the model panicked")))
}

fn load_all(
    config: &Config,
    directory: Option<Directory>,
) -> Result<(Served, Option<PrefixFiles>)> {
    let served = load::load(config)?;
    let files = directory.map(|directory| prefix_files::start(config, &served, directory));
    Ok((served, files.transpose()?))
}

/// Waits until the engine has stopped, which is an error before the shutdown.
async fn engine_gone(served: &Served) {
    while served.engine.is_running() {
        tokio::time::sleep(ENGINE_WATCH).await;
    }
}

/// Shuts the engine down; running requests may take `grace` to finish. What they leave in the cache is
/// written to `files`.
async fn stop_engine(served: Served, files: Option<PrefixFiles>, grace: Duration) {
    // This is a thread and not a task, because the runtime would wait for a task after a second
    // signal.
    let (report, down) = oneshot::channel();
    let waiting = thread::Builder::new()
        .name("hearth-stop".to_owned())
        .spawn(move || {
            let grace = match files {
                None => grace,
                Some(files) => {
                    files.finish(grace);
                    Duration::ZERO
                }
            };
            // The receiver is gone after a second signal.
            let _ = report.send(served.engine.shutdown(grace));
        });
    let outcome = down.await;
    tracing::debug!(
        ?outcome,
        started = waiting.is_ok(),
        "the engine has stopped"
    );
}

/// Reads the file of `--api-keys-file` again after each SIGHUP.
async fn reload_keys(state: Data<AppState>) {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut hangup = match signal(SignalKind::hangup()) {
            Ok(hangup) => hangup,
            Err(error) => return tracing::warn!(%error, "SIGHUP is not handled"),
        };
        while hangup.recv().await.is_some() {
            match state.clients.reload() {
                Ok(keys) => tracing::info!(keys, "the API keys were read again"),
                Err(error) => {
                    let error = format!("{:#}", anyhow::Error::from(error));
                    tracing::error!(error, "the API keys stay as they were");
                }
            }
        }
    }
    #[cfg(not(unix))]
    drop(state);
}

/// SIGINT and SIGTERM, or Ctrl-C on systems without signals.
pub(crate) struct Signals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    pub(crate) fn new() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    #[cfg(unix)]
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }

    #[cfg(not(unix))]
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {})
    }

    #[cfg(not(unix))]
    pub(crate) async fn next(&mut self) -> &'static str {
        // If no handler can be installed, Ctrl-C ends the process.
        let _ = tokio::signal::ctrl_c().await;
        "Ctrl-C"
    }
}
