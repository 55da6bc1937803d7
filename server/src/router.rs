//! `hearth router`: routes requests to several servers.

use std::time::Duration;

use actix_web::rt::System;
use anyhow::Result;
use hearth_api::tls;
use hearth_otel::{LogFormat, OtlpOptions, Traces};
use hearth_router::RouterConfig;

use crate::cli::RouterArgs;
use crate::config::router;
use crate::serve::Signals;

/// Time in which the last spans must reach a collector.
const TRACES_TIMEOUT: Duration = Duration::from_secs(3);

/// Routes until a signal arrives.
///
/// # Errors
/// The configuration is invalid, or the router cannot listen on its addresses.
pub fn run(args: &RouterArgs) -> Result<()> {
    let config = router::resolve(args.file.config.as_deref(), &args.flags)?;
    if args.print_config {
        print!("{}", router::to_toml(&config));
        return Ok(());
    }
    let _logs = hearth_otel::init_logs(LogFormat::Text, &config.log_level)?;
    hearth_otel::log_panics();
    let otlp = OtlpOptions {
        endpoint: config.otlp_endpoint.clone(),
        protocol: config.otlp_protocol.map(Into::into),
    };
    let traces = Traces::start("hearth-router", env!("CARGO_PKG_VERSION"), &otlp)?;
    let routed = System::new().block_on(route(config, traces.clone()));
    // Called outside the async runtime, and whether or not routing failed.
    if let Some(traces) = traces {
        traces.shutdown(TRACES_TIMEOUT);
    }
    routed
}

async fn route(config: RouterConfig, traces: Option<Traces>) -> Result<()> {
    let tls = match (&config.tls_cert, &config.tls_key) {
        (Some(cert), Some(key)) => Some(tls::load(cert, key)?),
        _ => None,
    };
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut signals = Signals::new()?;
    let grace = config.shutdown_grace_period_secs;
    let running = hearth_router::bind(config, tls, traces)?;
    for address in &running.addresses {
        hearth_otel::print(&format!("Hearth routes requests at {scheme}://{address}"));
    }
    for address in &running.metrics_addresses {
        tracing::info!(%address, "serving /metrics");
    }
    let name = signals.next().await;
    tracing::info!(signal = name, grace_s = grace, "stopping");
    tokio::select! {
        () = running.stop() => tracing::info!("stopped"),
        name = signals.next() => tracing::warn!(signal = name, "stopping at once after a second signal"),
    }
    Ok(())
}
