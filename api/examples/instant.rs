//! The whole server with a model that answers at once, so that only the path from the socket to the
//! scheduler and back is measured (`benches/http_cost.py`).

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use actix_web::rt::System;
use actix_web::web::Data;
use clap::Parser;
use hearth_api::config::HttpConfig;
use hearth_api::grammars::{GrammarDefaults, Grammars};
use hearth_api::served::Defaults;
use hearth_api::served::{ChatPrompt, Formats, ModelInfo, Served, TextCodec};
use hearth_api::server;
use hearth_api::state::AppState;
use hearth_engine::output::Detokenize;
use hearth_engine::{Engine, EngineConfig, Pooling};
use hearth_forward::{
    Executor, ExecutorLimits, ForwardBatch, ForwardError, ForwardOutput, SampleRequests,
};
use hearth_otel::Telemetry;

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

/// Prompts of `hearth-load` have ids below 1000. There are few more ids, so that sampling costs
/// little.
const VOCAB: usize = 1024;
const LETTER: u32 = 'a' as u32;
/// Requests of 512 clients run at once.
const SEQUENCES: usize = 512;
const CONTEXT: usize = 2048;

struct Letter {
    beat: Duration,
    next: Instant,
}

impl Executor for Letter {
    type Submission = ForwardOutput;

    fn limits(&self) -> ExecutorLimits {
        ExecutorLimits {
            kv_slots: SEQUENCES * CONTEXT,
            max_model_len: CONTEXT,
            vocab_size: VOCAB,
        }
    }

    fn complete(&mut self, output: ForwardOutput) -> Result<ForwardOutput, ForwardError> {
        Ok(output)
    }

    fn submit(
        &mut self,
        batch: &ForwardBatch,
        _: &mut SampleRequests<'_>,
    ) -> Result<ForwardOutput, ForwardError> {
        if !self.beat.is_zero() {
            let now = Instant::now();
            while self.next <= now {
                self.next += self.beat;
            }
            thread::sleep(self.next - now);
        }
        let mut values = vec![0.0; batch.logit_rows.len() * VOCAB];
        for row in values.chunks_exact_mut(VOCAB) {
            row[LETTER as usize] = 10.0;
        }
        Ok(ForwardOutput {
            logits: values,
            ..ForwardOutput::default()
        })
    }
}

struct Letters;

impl Detokenize for Letters {
    fn decode(&self, ids: &[u32], _skip_special: bool) -> String {
        ids.iter().map(|_| 'a').collect()
    }

    fn token_bytes(&self, _id: u32) -> Vec<u8> {
        b"a".to_vec()
    }

    fn is_special(&self, id: u32) -> bool {
        id == 0
    }
}

impl TextCodec for Letters {
    fn encode(&self, text: &str, _add_special: bool) -> Result<Vec<u32>, String> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn encode_literally(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String> {
        self.encode(text, add_special)
    }

    fn max_token_bytes(&self) -> usize {
        1
    }

    fn can_chat(&self) -> bool {
        false
    }

    fn render_chat(&self, _chat: &ChatPrompt<'_>) -> Result<String, String> {
        Err("there is no chat template".to_owned())
    }
}

fn served(config: EngineConfig, beat: Duration) -> anyhow::Result<Served> {
    let text = Arc::new(Letters);
    let grammars = Grammars::start(text.clone(), VOCAB, vec![0], GrammarDefaults::default())?;
    Ok(Served {
        id: "instant".to_owned(),
        aliases: Vec::new(),
        engine: Engine::spawn(config.clone(), move || {
            let next = Instant::now();
            Ok(Letter { beat, next })
        })?,
        text,
        defaults: Defaults::default(),
        formats: Formats::default(),
        grammars: Arc::new(grammars),
        info: ModelInfo::default(),
        adapters: Arc::default(),
        pooling: Pooling::Mean,
        engine_config: config,
        created: 0,
        disaggregation: hearth_api::disaggregation::Disaggregation::Null,
        kv_events: None,
        lost: Arc::default(),
    })
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
        state.set_ready(served(engine, Duration::from_millis(cli.beat_ms))?);
        Ok(server.await?)
    })
}
