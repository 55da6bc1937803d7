//! A model of a few lines: bytes are tokens, and after each letter comes the next.
//!
//! The whole path from socket to sampler is real; only the logits are made up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use actix_web::dev::ServerHandle;
use actix_web::rt::System;
use actix_web::web::Data;
use hearth_api::adapters::Adapters;
use hearth_api::config::HttpConfig;
use hearth_api::grammars::{GrammarDefaults, Grammars};
use hearth_api::served::Defaults;
use hearth_api::served::{ChatPrompt, Formats, ModelInfo, Served, TextCodec};
use hearth_api::server;
use hearth_api::state::AppState;
use hearth_engine::output::Detokenize;
use hearth_engine::{Engine, EngineConfig, Pooling};
use hearth_forward::{
    Adapter, Executor, ExecutorLimits, ForwardBatch, ForwardError, ForwardOutput, SampleRequests,
};
use hearth_otel::{Telemetry, TelemetryOptions};
use serde_json::Value;

pub const VOCAB: usize = 260;
pub const EOS: u32 = 256;
/// A forward pass with this token fails.
pub const POISON: u32 = 259;
pub const START: u32 = 257;
const END: u32 = 258;

/// The model's name in the tests.
pub const MODEL: &str = "fake";

/// How the fake model behaves.
#[derive(Clone, Copy)]
pub struct Behaviour {
    pub step: Duration,
    pub kv_slots: usize,
    pub max_model_len: usize,
    /// True if 'z' is followed by 'a' instead of the end.
    pub endless: bool,
    /// The limit on output tokens that the model's authors suggest for chats without one.
    pub max_new_tokens: Option<usize>,
    pub pooling: Pooling,
    pub formats: Formats,
    /// Makes the adapters, if there are any; each of them has another letter come next.
    pub adapters: Option<fn() -> Adapters>,
    /// True if the answer repeats the text after `say: ` in the last message.
    pub echoes: bool,
    /// A forward pass does not end while this is true.
    pub hangs: Option<&'static AtomicBool>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            step: Duration::ZERO,
            kv_slots: 4096,
            max_model_len: 512,
            endless: false,
            max_new_tokens: None,
            pooling: Pooling::Last,
            formats: Formats::default(),
            adapters: None,
            echoes: false,
            hangs: None,
        }
    }
}

struct FakeExecutor {
    behaviour: Behaviour,
    /// The token at each slot.
    kv: Vec<u32>,
    /// How many letters the adapter in each slot leaves out.
    adapters: [u32; 2],
}

impl FakeExecutor {
    /// The next token of the text that the prompt asks the model to repeat.
    fn echoed(&self, context: &[u32]) -> u32 {
        let tokens = context.iter().map(|&slot| self.kv[slot as usize]);
        let bytes: Vec<u8> = tokens
            .filter_map(|token| u8::try_from(token).ok())
            .collect();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((prompt, said)) = text.rsplit_once("\nassistant: ") else {
            return EOS;
        };
        let (_, wanted) = prompt.rsplit_once("say: ").unwrap_or_default();
        let next = wanted.as_bytes().get(said.len());
        next.map_or(EOS, |&byte| u32::from(byte))
    }

    /// The token that follows the token of row `row`.
    fn after(&self, batch: &ForwardBatch, row: usize) -> u32 {
        if !self.behaviour.echoes {
            let next = self.next(batch.tokens[row]);
            let skipped = self.skipped(batch, row);
            return if (0x61..0x7A - skipped).contains(&next) {
                next + skipped
            } else {
                next
            };
        }
        // The batch's tokens belong to its sequences one after another.
        let mut after = 0;
        let mut sequences = batch.sequences.iter();
        let sequence = sequences
            .find(|sequence| {
                after += sequence.tokens as usize;
                row < after
            })
            .unwrap();
        let first = sequence.first_slot as usize;
        let end = first + batch.positions[row] as usize + 1;
        self.echoed(&batch.slot_table[first..end])
    }

    /// The number of letters that the adapter of a row leaves out.
    fn skipped(&self, batch: &ForwardBatch, row: usize) -> u32 {
        let mut after = 0;
        let mut sequences = batch.sequences.iter();
        let index = sequences.position(|sequence| {
            after += sequence.tokens as usize;
            row < after
        });
        match batch.adapters.get(index.unwrap()) {
            None | Some(0) => 0,
            Some(slot) => self.adapters[*slot as usize - 1],
        }
    }

    fn next(&self, token: u32) -> u32 {
        match token {
            0x7A if !self.behaviour.endless => EOS,
            0x61..0x7A => token + 1,
            // "#" is followed by the three bytes of a euro sign.
            0x23 => 0xE2,
            0xE2 => 0x82,
            0x82 => 0xAC,
            _ => 0x61,
        }
    }
}

impl Executor for FakeExecutor {
    type Submission = ForwardOutput;

    fn limits(&self) -> ExecutorLimits {
        let Behaviour {
            kv_slots,
            max_model_len,
            ..
        } = self.behaviour;
        ExecutorLimits {
            kv_slots,
            max_model_len,
            vocab_size: VOCAB,
        }
    }

    fn complete(&mut self, output: ForwardOutput) -> Result<ForwardOutput, ForwardError> {
        Ok(output)
    }

    fn adapter_slots(&self) -> usize {
        if self.behaviour.adapters.is_some() {
            2
        } else {
            0
        }
    }

    fn load_adapter(&mut self, slot: u32, adapter: &Adapter) -> Result<(), ForwardError> {
        self.adapters[slot as usize - 1] = adapter.digest.parse().unwrap();
        Ok(())
    }

    fn submit(
        &mut self,
        batch: &ForwardBatch,
        _: &mut SampleRequests<'_>,
    ) -> Result<ForwardOutput, ForwardError> {
        thread::sleep(self.behaviour.step);
        while self
            .behaviour
            .hangs
            .is_some_and(|hangs| hangs.load(Ordering::SeqCst))
        {
            thread::sleep(Duration::from_millis(1));
        }
        if batch.tokens.contains(&POISON) {
            return Err(ForwardError::other("it was poisoned"));
        }
        for (&token, &slot) in batch.tokens.iter().zip(&batch.write_slots) {
            self.kv[slot as usize] = token;
        }
        let mut values = vec![0.0; batch.logit_rows.len() * VOCAB];
        for (row, &token) in values.chunks_mut(VOCAB).zip(&batch.logit_rows) {
            // Never sampled, unless a bias asks for it.
            row[POISON as usize] = -30.0;
            row[self.after(batch, token as usize) as usize] = 10.0;
        }
        // The hidden state of a row has its token and its position.
        let told = |&row: &u32| [batch.tokens[row as usize], batch.positions[row as usize], 1];
        let hidden = batch.hidden_rows.iter().flat_map(told);
        Ok(ForwardOutput {
            logits: values,
            hidden: hidden.map(|value| value as f32).collect(),
            ..ForwardOutput::default()
        })
    }
}

struct FakeCodec;

impl Detokenize for FakeCodec {
    fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let shown = ids
            .iter()
            .filter(|&&id| !(skip_special && self.is_special(id)));
        let bytes: Vec<u8> = shown.flat_map(|&id| self.token_bytes(id)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        match id {
            EOS => b"<eos>".to_vec(),
            START => b"<start>".to_vec(),
            END => b"<end>".to_vec(),
            byte => u8::try_from(byte)
                .map(|byte| vec![byte])
                .unwrap_or_default(),
        }
    }

    fn is_special(&self, id: u32) -> bool {
        id >= EOS
    }
}

impl TextCodec for FakeCodec {
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String> {
        let bos = add_special.then_some(START);
        Ok(bos.into_iter().chain(text.bytes().map(u32::from)).collect())
    }

    fn encode_literally(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String> {
        self.encode(text, add_special)
    }

    fn max_token_bytes(&self) -> usize {
        7
    }

    fn can_chat(&self) -> bool {
        true
    }

    fn render_chat(&self, chat: &ChatPrompt<'_>) -> Result<String, String> {
        let mut text = match chat.tools {
            Some(tools) => format!("tools: {tools}\n"),
            None => String::new(),
        };
        for message in chat.messages.as_array().into_iter().flatten() {
            let (role, content) = (message["role"].as_str(), message["content"].as_str());
            if content == Some("unspeakable") {
                return Err("the chat template refused the messages: unspeakable".to_owned());
            }
            text += &format!("{}: {}\n", role.unwrap_or("?"), content.unwrap_or("?"));
            if let Some(calls) = message.get("tool_calls") {
                text += &format!("calls: {calls}\n");
            }
        }
        if let Some(Value::String(mood)) = chat.kwargs.get("mood") {
            text += &format!("mood: {mood}\n");
        }
        Ok(if chat.add_generation_prompt {
            text + "assistant: "
        } else {
            text
        })
    }
}

/// A running server; it stops when it is dropped.
pub struct TestServer {
    pub url: String,
    pub state: Data<AppState>,
    pub handle: ServerHandle,
}

impl TestServer {
    pub fn start(behaviour: Behaviour, engine: EngineConfig, config: HttpConfig) -> Self {
        let server = Self::start_loading(config);
        server.state.set_ready(served(behaviour, engine));
        server
    }

    /// A server with other settings of its telemetry.
    pub fn measured(behaviour: Behaviour, telemetry: TelemetryOptions) -> Self {
        let telemetry = Telemetry::start(telemetry).unwrap();
        let server = Self::loading_with(HttpConfig::default(), telemetry);
        server
            .state
            .set_ready(served(behaviour, EngineConfig::default()));
        server
    }

    pub fn plain() -> Self {
        Self::start(
            Behaviour::default(),
            EngineConfig::default(),
            HttpConfig::default(),
        )
    }

    /// A server without a model, which a test may set later.
    pub fn start_loading(config: HttpConfig) -> Self {
        Self::loading_with(config, Telemetry::local())
    }

    fn loading_with(config: HttpConfig, telemetry: Telemetry) -> Self {
        let scheme = if config.tls.is_some() {
            "https"
        } else {
            "http"
        };
        let config = HttpConfig { port: 0, ..config };
        let state = Data::new(AppState::new(config, telemetry).unwrap());
        let (report, bound) = mpsc::channel();
        let shared = state.clone();
        thread::spawn(move || {
            System::new().block_on(async move {
                let (server, addresses) = server::bind(shared).unwrap();
                report.send((server.handle(), addresses[0])).unwrap();
                server.await.unwrap();
            });
        });
        let (handle, address) = bound.recv().unwrap();
        Self {
            url: format!("{scheme}://{address}"),
            state,
            handle,
        }
    }

    pub fn address(&self) -> &str {
        let (_, address) = self.url.split_once("://").unwrap();
        address
    }

    /// Waits until the engine has nothing to do, and checks that no slot is lost.
    pub async fn wait_until_idle(&self) {
        let engine = &self.state.loaded().unwrap().engine;
        let deadline = Instant::now() + Duration::from_secs(30);
        while !engine.stats().is_idle() {
            assert!(
                Instant::now() < deadline,
                "never idle: {:?}",
                engine.stats()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let kv = engine.stats().kv;
        assert!(kv.is_conserved(), "{kv:?}");
        assert_eq!((kv.held, kv.protected), (0, 0), "{kv:?}");
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        let handle = self.handle.clone();
        // The call sends the message that stops the server; the future only waits until it has
        // stopped.
        drop(handle.stop(false));
    }
}

pub fn served(behaviour: Behaviour, config: EngineConfig) -> Served {
    let engine = Engine::spawn(config.clone(), move || {
        let kv = vec![0; behaviour.kv_slots];
        Ok(FakeExecutor {
            behaviour,
            kv,
            adapters: [0; 2],
        })
    })
    .unwrap();
    let text = Arc::new(FakeCodec);
    let grammars = Grammars::start(text, VOCAB, vec![EOS], GrammarDefaults::default()).unwrap();
    Served {
        grammars: Arc::new(grammars),
        id: MODEL.to_owned(),
        aliases: Vec::new(),
        engine,
        text: Arc::new(FakeCodec),
        defaults: Defaults {
            max_tokens: behaviour.max_new_tokens,
            // At 1, every hundredth token would be another than the test expects.
            temperature: Some(0.0),
            eos_token_ids: vec![EOS],
            ..Defaults::default()
        },
        info: ModelInfo {
            hidden_size: 3,
            load_format: "auto",
            ..ModelInfo::default()
        },
        adapters: Arc::new(
            behaviour
                .adapters
                .map_or_else(Adapters::default, |make| make()),
        ),
        pooling: behaviour.pooling,
        formats: behaviour.formats,
        engine_config: config,
        created: 0,
        disaggregation: hearth_api::disaggregation::Disaggregation::Null,
        kv_events: None,
        lost: Arc::default(),
    }
}
