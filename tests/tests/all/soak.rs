//! Many concurrent clients, many of which disconnect: no request fails and no memory leaks.
//!
//! `HEARTH_SOAK_SECONDS` sets the duration (10 by default; 120 for recorded results).

use std::cell::RefCell;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::harness::{CHAT, COMPLETIONS, Random, Server};

const CLIENTS: u64 = 64;
/// KV slots: so few that the prompts of the clients evict each other.
const SLOTS: &str = "8192";
/// Allowed growth of memory, by buffers and the allocator, after requests of all kinds were sent.
const GROWTH: u64 = 64 << 20;

/// Counts over all clients.
#[derive(Debug, Default)]
struct Tally {
    completed: u64,
    left: u64,
    tokens: u64,
    cached: u64,
    checked: u64,
    errors: Vec<String>,
}

/// A greedy request whose answer is known.
struct Known {
    body: Value,
    tokens: Value,
}

struct Soak {
    server: Server,
    prefixes: Vec<Vec<u32>>,
    known: Vec<Known>,
    tally: RefCell<Tally>,
    until: Instant,
}

/// What a client does with a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Patience {
    /// Reads to the end.
    Patient,
    /// Disconnects after this many events of a stream.
    Events(usize),
    /// Disconnects after this many milliseconds.
    Milliseconds(u64),
}

impl Soak {
    async fn new(duration: Duration) -> Self {
        let server = Server::undisturbed(&["--kv-tokens", SLOTS, "--max-model-len", "1024"]).await;
        let mut random = Random::new(64);
        let prefixes: Vec<_> = (0..8).map(|i| random.tokens(40 * i + 10)).collect();
        let mut known = Vec::new();
        for prefix in &prefixes {
            let mut prompt = prefix.clone();
            prompt.extend(random.tokens(20));
            let body = json!({
                "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": true,
                "logprobs": 0,
            });
            let answer = server.ok(COMPLETIONS, &body).await;
            let tokens = answer["choices"][0]["logprobs"]["tokens"].clone();
            known.push(Known { body, tokens });
        }
        let until = Instant::now() + duration;
        Self {
            server,
            prefixes,
            known,
            tally: RefCell::default(),
            until,
        }
    }

    async fn client(&self, number: u64) {
        let mut random = Random::new(number);
        while Instant::now() < self.until {
            let outcome = if random.within(0, 6) == 0 {
                self.ask_what_is_known(random.within(0, self.known.len()))
                    .await
            } else {
                self.ask_anything(&mut random).await
            };
            if let Err(error) = outcome {
                self.tally.borrow_mut().errors.push(error);
            }
        }
    }

    async fn ask_what_is_known(&self, index: usize) -> Result<(), String> {
        let known = &self.known[index];
        let answer = self.post(COMPLETIONS, &known.body).await?;
        self.count(&answer["usage"]);
        self.tally.borrow_mut().checked += 1;
        let tokens = &answer["choices"][0]["logprobs"]["tokens"];
        if *tokens == known.tokens {
            Ok(())
        } else {
            Err(format!(
                "prompt {index} was answered {tokens}, and before {}",
                known.tokens
            ))
        }
    }

    async fn ask_anything(&self, random: &mut Random) -> Result<(), String> {
        let (path, body) = self.any_request(random);
        let patience = match random.within(0, 4) {
            0 => Patience::Events(random.within(0, 30)),
            1 => Patience::Milliseconds(random.within(0, 300) as u64),
            _ => Patience::Patient,
        };
        let asked = async {
            if body["stream"] == json!(true) {
                self.stream(path, &body, patience).await
            } else {
                let answer = self.post(path, &body).await?;
                self.count(&answer["usage"]);
                Ok(())
            }
        };
        match patience {
            Patience::Milliseconds(ms) => {
                match tokio::time::timeout(Duration::from_millis(ms), asked).await {
                    Ok(outcome) => outcome,
                    Err(_) => {
                        self.tally.borrow_mut().left += 1;
                        Ok(())
                    }
                }
            }
            _ => asked.await,
        }
    }

    fn any_request(&self, random: &mut Random) -> (&'static str, Value) {
        let mut body = json!({
            "max_tokens": random.within(1, 80), "temperature": random.within(0, 3) as f64 / 2.0,
            "stream": random.within(0, 2) == 0, "n": random.within(1, 4),
            "ignore_eos": random.within(0, 2) == 0,
        });
        match random.within(0, 6) {
            0 => body["stop"] = json!(["a", "zz", "\n"]),
            1 => body["seed"] = json!(random.within(0, 1000)),
            2 => body["repetition_penalty"] = json!(1.2),
            3 => (body["top_p"], body["top_k"]) = (json!(0.9), json!(40)),
            _ => {}
        }
        if random.within(0, 4) == 0 {
            let content = "Tell me a story. ".repeat(random.within(1, 20));
            body["messages"] = json!([{"role": "user", "content": content}]);
            return (CHAT, body);
        }
        let own = random.within(1, 200);
        let mut prompt = self.prefixes[random.within(0, self.prefixes.len())].clone();
        prompt.extend(random.tokens(own));
        body["prompt"] = json!(prompt);
        if random.within(0, 4) == 0 {
            body["logprobs"] = json!(random.within(0, 5));
        }
        (COMPLETIONS, body)
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value, String> {
        self.server
            .client
            .post(path, body)
            .await
            .map_err(|error| format!("{error:?}: {body}"))
    }

    async fn stream(&self, path: &str, body: &Value, patience: Patience) -> Result<(), String> {
        let mut body = body.clone();
        body["stream_options"] = json!({"include_usage": true});
        let failed = |error| format!("{error:?}: {body}");
        let mut events = self
            .server
            .client
            .stream(path, &body)
            .await
            .map_err(failed)?;
        let (mut seen, mut finished, mut usage) = (0, 0, Value::Null);
        loop {
            if patience == Patience::Events(seen) {
                self.tally.borrow_mut().left += 1;
                return Ok(());
            }
            let Some(event) = events.next().await.map_err(failed)? else {
                break;
            };
            seen += 1;
            let choices = event["choices"].as_array().into_iter().flatten();
            finished += choices
                .filter(|choice| !choice["finish_reason"].is_null())
                .count() as u64;
            usage = event["usage"].clone();
        }
        if Some(finished) != body["n"].as_u64() || usage.is_null() {
            return Err(format!(
                "{finished} choices finished, usage {usage}: {body}"
            ));
        }
        self.count(&usage);
        Ok(())
    }

    fn count(&self, usage: &Value) {
        let mut tally = self.tally.borrow_mut();
        tally.completed += 1;
        tally.tokens += usage["completion_tokens"].as_u64().unwrap();
        tally.cached += usage["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap();
    }

    /// Samples the resident memory during the last two thirds of the run.
    async fn watch_memory(&self) -> Vec<u64> {
        let start = Instant::now();
        let third = (self.until - start) / 3;
        tokio::time::sleep(third).await;
        let mut memory = Vec::new();
        while Instant::now() < self.until {
            memory.extend(self.server.memory());
            tokio::time::sleep(third / 20).await;
        }
        memory
    }
}

#[tokio::test]
async fn sixty_four_clients_that_often_disconnect_cause_no_failures_or_leaks() {
    let seconds = std::env::var("HEARTH_SOAK_SECONDS").map_or(10, |text| {
        text.parse()
            .expect("HEARTH_SOAK_SECONDS is a number of seconds")
    });
    let soak = Soak::new(Duration::from_secs(seconds)).await;
    let clients = join_all((0..CLIENTS).map(|number| soak.client(number)));
    let (_, memory) = tokio::join!(clients, soak.watch_memory());
    let idle_after = soak.server.wait_until_idle().await;
    let tally = soak.tally.take();
    let stats = soak.server.stats().await;
    let mib = |bytes: Option<&u64>| bytes.map_or(0, |bytes| bytes >> 20);
    println!(
        "{seconds} s, {CLIENTS} clients: {} answers complete ({} of them known and the same), \
         {} clients gone, {} tokens, {} prompt tokens from the cache, {} errors; idle {:?} after \
         the last; memory {} MiB a third into it, {} MiB at the end, {} MiB at most; {stats}",
        tally.completed,
        tally.checked,
        tally.left,
        tally.tokens,
        tally.cached,
        tally.errors.len(),
        idle_after,
        mib(memory.first()),
        mib(memory.last()),
        mib(memory.iter().max()),
    );
    assert!(
        tally.errors.is_empty(),
        "{:#?}",
        &tally.errors[..tally.errors.len().min(10)]
    );
    assert!(tally.completed > 0 && tally.left > 0 && tally.checked > 0 && tally.cached > 0);
    assert_eq!(stats["failed"], 0, "{stats}");
    if let (Some(first), Some(last)) = (memory.first(), memory.last()) {
        assert!(
            last.saturating_sub(*first) < GROWTH,
            "memory grew: {memory:?}"
        );
    }
    // The server still gives the known answers.
    for index in 0..soak.known.len() {
        soak.ask_what_is_known(index).await.unwrap();
    }
}
