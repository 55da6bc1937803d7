//! The back ends that programs are measured on.

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use clap::Parser;
use hearth_api::programs::EngineBackend;
use hearth_api::served::Served;
use hearth_client::Client;
use hearth_client::backends::{CompletionsApi, Server};
use hearth_client::lang::Error;
use hearth_client::lang::backend::{Backend, Call, Completion, Prompt, Scores, Sink};
use hearth_server::cli::Cli;
use hearth_server::load;

use super::best::Done;

/// The back end that the command line names.
pub enum Target {
    /// The flags of `hearth serve`.
    Engine(Vec<String>),
    Hearth(String),
    LlamaServer(String),
}

/// A back end and where its counters are.
pub struct Opened {
    backend: Arc<dyn Backend>,
    counters: Counters,
}

enum Counters {
    Engine(Box<Served>),
    /// The URL of a Prometheus page, the counter of prompt tokens, and the counter of those that were
    /// cached, where the first includes them.
    Page(String, &'static str, Option<&'static str>),
}

impl Target {
    /// Connects to the server or loads the model.
    ///
    /// # Errors
    /// The URL or the flags are wrong, or the model does not load.
    pub fn open(self) -> Result<Opened> {
        Ok(match self {
            Self::Engine(flags) => {
                let program = ["hearth".to_owned()].into_iter();
                let cli = Cli::try_parse_from(program.chain(flags))?;
                let served = load::load(&cli.serve.resolve()?)?;
                Opened {
                    backend: Arc::new(EngineBackend::new(served.clone())),
                    counters: Counters::Engine(Box::new(served)),
                }
            }
            Self::Hearth(url) => {
                let client = Client::new(&url)?;
                let (all, cached) = (
                    "vllm:prompt_tokens_total",
                    "vllm:prompt_tokens_cached_total",
                );
                Opened {
                    backend: Arc::new(Server::new(client)),
                    counters: Counters::Page(format!("{url}/metrics"), all, Some(cached)),
                }
            }
            Self::LlamaServer(url) => {
                let client = Client::new(&url)?;
                let all = "llamacpp:prompt_tokens_total";
                Opened {
                    backend: Arc::new(CompletionsApi::new(client, "model")),
                    counters: Counters::Page(format!("{url}/metrics"), all, None),
                }
            }
        })
    }
}

impl Opened {
    pub fn name(&self) -> &'static str {
        match &self.counters {
            Counters::Engine(_) => "engine",
            Counters::Page(_, _, Some(_)) => "hearth",
            Counters::Page(_, _, None) => "llama-server",
        }
    }

    /// Prompt tokens that were computed since the start, as the server counts them.
    pub async fn computed_tokens(&self) -> Result<u64> {
        match &self.counters {
            Counters::Engine(served) => {
                let stats = served.engine.stats();
                Ok(stats.prompt_tokens - stats.cached_tokens)
            }
            Counters::Page(url, all, cached) => {
                let page = reqwest::get(url).await?.error_for_status()?.text().await?;
                let all = counter(&page, all)?;
                let cached = cached.map_or(Ok(0), |name| counter(&page, name))?;
                Ok(all - cached)
            }
        }
    }

    /// The back end, and a list that its generations are added to as they end.
    pub fn measured(&self) -> (Measured, Arc<Mutex<Vec<Done>>>) {
        let log = Arc::default();
        let measured = Measured {
            inner: Arc::clone(&self.backend),
            log: Arc::clone(&log),
        };
        (measured, log)
    }
}

/// The sum of a counter over its labels.
fn counter(page: &str, name: &str) -> Result<u64> {
    let mut sum = None;
    for line in page.lines() {
        let Some(rest) = line.strip_prefix(name) else {
            continue;
        };
        if rest.starts_with(['{', ' ']) {
            let value = rest.rsplit(' ').next().unwrap_or_default();
            let value: f64 = value.parse().context("a value of /metrics is no number")?;
            sum = Some(sum.unwrap_or(0.0) + value);
        }
    }
    match sum {
        Some(sum) => Ok(sum as u64),
        None => bail!("the server's /metrics has no {name}"),
    }
}

/// A back end that keeps the texts and the token counts of its generations.
pub struct Measured {
    inner: Arc<dyn Backend>,
    log: Arc<Mutex<Vec<Done>>>,
}

#[async_trait]
impl Backend for Measured {
    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn generate(&self, call: &Call, sink: Sink<'_>) -> Result<Completion, Error> {
        let done = self.inner.generate(call, sink).await?;
        if let (Prompt::Text(prompt), Ok(mut log)) = (&call.prompt, self.log.lock()) {
            log.push(Done {
                prompt: prompt.clone(),
                output: done.text.clone(),
                usage: done.usage,
            });
        }
        Ok(done)
    }

    async fn score(
        &self,
        prompt: &Prompt,
        choices: &[String],
        unconditional: bool,
    ) -> Result<Scores, Error> {
        self.inner.score(prompt, choices, unconditional).await
    }

    async fn cache(&self, prompt: &Prompt) -> Result<(), Error> {
        self.inner.cache(prompt).await
    }
}
