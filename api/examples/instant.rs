//! The whole server with a model that answers at once, so that only the path from the socket to the
//! scheduler and back is measured (`benches/http_cost.py`).

mod letters;

use std::thread;
use std::time::{Duration, Instant};

use actix_web::rt::System;
use actix_web::web::Data;
use clap::Parser;
use hearth_api::config::HttpConfig;
use hearth_api::server;
use hearth_api::state::AppState;
use hearth_engine::EngineConfig;
use hearth_otel::Telemetry;
use letters::{CONTEXT, SEQUENCES, served};

/// Hearth without a model: every token is `a`, at once or at a beat.
#[derive(Debug, Parser)]
#[command(name = "instant")]
struct Cli {
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// Threads that serve HTTP
    #[arg(long, default_value_t = 1)]
    http_workers: usize,
    /// A step ends at the next multiple of so many milliseconds; 0: at once
    #[arg(long, default_value_t = 0)]
    beat_ms: u64,
}

/// Sleeps until the next multiple of `beat`.
fn at_a_beat(beat: Duration) -> impl FnMut() + Send + 'static {
    let mut next = Instant::now();
    move || {
        if !beat.is_zero() {
            let now = Instant::now();
            while next <= now {
                next += beat;
            }
            thread::sleep(next - now);
        }
    }
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let config = HttpConfig {
        port: cli.port,
        http_workers: cli.http_workers,
        ..HttpConfig::default()
    };
    let engine = EngineConfig {
        max_running: SEQUENCES,
        // One step computes the prompts of all requests, as in the other server.
        max_batch_tokens: SEQUENCES * CONTEXT,
        ..EngineConfig::default()
    };
    System::new().block_on(async {
        let state = Data::new(AppState::new(config, Telemetry::local())?);
        let (server, _) = server::bind(state.clone())?;
        state.set_ready(served(
            engine,
            at_a_beat(Duration::from_millis(cli.beat_ms)),
        )?);
        Ok(server.await?)
    })
}
