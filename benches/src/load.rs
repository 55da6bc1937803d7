//! Sends the requests and measures their times.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context;
use hearth_client::{Client, ClientError};
use serde_json::{Value, json};
use tokio::task::LocalSet;

use crate::cli::Cli;
use crate::prompts::prompt;

/// One answered request.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub output_tokens: u64,
    /// Time from sending the request to the first chunk with a choice.
    pub first_token: Duration,
    /// Time from sending the request to the last chunk with a choice.
    pub last_token: Duration,
    /// Times between consecutive chunks with a choice.
    pub gaps: Vec<Duration>,
}

/// The results of a run.
#[derive(Debug, Default)]
pub struct Run {
    pub samples: Vec<Sample>,
    pub errors: Vec<String>,
    pub elapsed: Duration,
}

impl Run {
    /// The first error; empty if there is none.
    pub fn first_error(&self) -> &str {
        self.errors.first().map_or("", String::as_str)
    }
}

/// Warms up, then runs the closed loop.
///
/// # Errors
/// The server cannot be reached, or a warm-up request fails.
pub async fn run(cli: &Cli) -> anyhow::Result<Run> {
    let client = Client::new(&cli.url)?;
    let model = match &cli.model {
        Some(model) => model.clone(),
        None => client
            .first_model()
            .await
            .context("cannot get the model's name from the server")?,
    };
    for index in 0..cli.warmup {
        // Warm-up uses other prompts, so that it does not fill the cache for the measured ones.
        let body = body(cli, &model, cli.requests + index);
        request(&client, &body)
            .await
            .context("a warm-up request failed")?;
    }
    let next = Rc::new(Cell::new(0));
    let run = Rc::new(RefCell::new(Run::default()));
    let started = Instant::now();
    let clients = LocalSet::new();
    for _ in 0..cli.concurrency.min(cli.requests) {
        let (cli, client, model) = (cli.clone(), client.clone(), model.clone());
        let (next, run) = (Rc::clone(&next), Rc::clone(&run));
        clients.spawn_local(async move {
            while next.get() < cli.requests {
                let index = next.replace(next.get() + 1);
                let outcome = request(&client, &body(&cli, &model, index)).await;
                let mut run = run.borrow_mut();
                match outcome {
                    Ok(sample) => run.samples.push(sample),
                    Err(error) => run.errors.push(format!("{:#}", anyhow::Error::from(error))),
                }
            }
        });
    }
    clients.await;
    let mut run = run.take();
    run.elapsed = started.elapsed();
    Ok(run)
}

fn body(cli: &Cli, model: &str, index: u32) -> Value {
    let mut body = json!({
        "model": model,
        "prompt": prompt(cli, index),
        "max_tokens": cli.output_tokens,
        "temperature": 0,
        "ignore_eos": true,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    for (key, value) in cli.extra.iter().flatten() {
        body[key] = value.clone();
    }
    body
}

async fn request(client: &Client, body: &Value) -> Result<Sample, ClientError> {
    let started = Instant::now();
    let mut events = client.stream("/v1/completions", body).await?;
    let mut sample = Sample::default();
    let mut chunks = 0;
    while let Some(event) = events.next().await? {
        if event["choices"]
            .as_array()
            .is_some_and(|choices| !choices.is_empty())
        {
            let now = started.elapsed();
            if chunks == 0 {
                sample.first_token = now;
            } else {
                sample.gaps.push(now - sample.last_token);
            }
            sample.last_token = now;
            chunks += 1;
        }
        read_usage(&event, &mut sample);
    }
    if chunks == 0 {
        return Err(ClientError::BrokenOff(
            "the stream had no choices".to_owned(),
        ));
    }
    // For a server whose stream has no usage, count each chunk as a token.
    if sample.output_tokens == 0 {
        sample.output_tokens = chunks;
    }
    Ok(sample)
}

fn read_usage(event: &Value, sample: &mut Sample) {
    let usage = &event["usage"];
    if let Some(tokens) = usage["completion_tokens"].as_u64() {
        sample.output_tokens = tokens;
        sample.prompt_tokens = usage["prompt_tokens"].as_u64().unwrap_or(0);
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
        sample.cached_tokens = cached.unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_from_the_event_that_has_it() {
        let mut sample = Sample::default();
        read_usage(&json!({"choices": [], "usage": null}), &mut sample);
        assert_eq!(sample.output_tokens, 0);
        let usage = json!({"usage": {
            "prompt_tokens": 9, "completion_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 5},
        }});
        read_usage(&usage, &mut sample);
        assert_eq!(
            (
                sample.prompt_tokens,
                sample.cached_tokens,
                sample.output_tokens
            ),
            (9, 5, 4)
        );
    }
}
