//! `hearth serve`: from nothing to ready, and from a signal to the end.

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
use crate::load;
use crate::telemetry;

/// How often the server looks whether its engine is there.
const ENGINE_WATCH: Duration = Duration::from_millis(250);
/// How long the last spans and metrics have to reach a collector.
const LAST_TELEMETRY: Duration = Duration::from_secs(3);
/// How long connections have to end when the engine is gone.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Serves until a signal comes.
///
/// # Errors
/// The address is taken, the model does not load, or the engine is gone.
pub fn run(config: Config) -> Result<()> {
    hearth_otel::init_logs(config.log_format.into(), &config.log_level)?;
    for name in Config::unknown_environment() {
        tracing::warn!(
            name,
            "this environment variable is no setting of hearth; it is ignored"
        );
    }
    let telemetry = telemetry::start(&config)?;
    let served = System::new().block_on(serve(config, telemetry.clone()));
    // Here, where no runtime waits for it, whichever way the serving ended.
    telemetry.shutdown(LAST_TELEMETRY);
    served
}

async fn serve(config: Config, telemetry: Telemetry) -> Result<()> {
    let state = Data::new(AppState::new(config.http(), telemetry));
    // The port opens before the model is loaded: until then /ready and the API answer 503.
    let (server, addresses) = server::bind(state.clone())?;
    let handle = server.handle();
    rt::spawn(server);
    let mut signals = Signals::new()?;
    let loaded = tokio::select! {
        loaded = load_on_a_thread(config.clone()) => loaded,
        name = signals.next() => {
            tracing::info!(signal = name, "stopping before the model was loaded");
            return Ok(());
        }
    };
    let served = loaded?;
    let took = state.started.elapsed();
    state.set_ready(served.clone());
    match config.log_format {
        LogFormat::Text => println!("{}", banner(&config, &served, addresses.first(), took)),
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
            // What is left to say is that the streams broke off.
            let _ = tokio::time::timeout(LAST_WORDS, handle.stop(true)).await;
            bail!("the engine thread ended by itself, which is a bug; its last words are above");
        }
    };
    let grace = Duration::from_secs(config.shutdown_timeout);
    tracing::info!(signal = name, grace_s = grace.as_secs(), "stopping");
    state.start_draining();
    let stopped = async {
        // The listener closes at once; connections end when their answers do.
        tokio::join!(handle.stop(true), stop_engine(served, grace))
    };
    tokio::select! {
        _ = stopped => tracing::info!("stopped"),
        name = signals.next() => tracing::warn!(signal = name, "a second signal: not waiting"),
    }
    Ok(())
}

/// Loads on a thread of its own, which a signal may leave behind.
async fn load_on_a_thread(config: Config) -> Result<Served> {
    let (report, loaded) = oneshot::channel();
    thread::Builder::new()
        .name("hearth-load".to_owned())
        // Nobody listens when a signal came first.
        .spawn(move || drop(report.send(load::load(&config))))?;
    loaded
        .await
        .unwrap_or_else(|_| Err(anyhow!("loading the model panicked")))
}

/// Waits until the engine is gone, which it never is before it is told to go.
async fn engine_gone(served: &Served) {
    while served.engine.is_running() {
        tokio::time::sleep(ENGINE_WATCH).await;
    }
}

async fn stop_engine(served: Served, grace: Duration) {
    // Not a task of the runtime, which would wait for it after a second signal.
    let (report, down) = oneshot::channel();
    let waiting = thread::Builder::new()
        .name("hearth-stop".to_owned())
        .spawn(move || {
            // After a second signal nobody listens.
            let _ = report.send(served.engine.shutdown(grace));
        });
    let outcome = down.await;
    tracing::debug!(?outcome, started = waiting.is_ok(), "the engine is down");
}

/// SIGINT and SIGTERM, or Ctrl-C where there are no signals.
struct Signals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    fn new() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    #[cfg(unix)]
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }

    #[cfg(not(unix))]
    fn new() -> Result<Self> {
        Ok(Self {})
    }

    #[cfg(not(unix))]
    async fn next(&mut self) -> &'static str {
        // Without a handler the process simply ends.
        let _ = tokio::signal::ctrl_c().await;
        "Ctrl-C"
    }
}
