//! Numbers of `/metrics` that depend on what a request waits for, and on how its tokens come.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use hearth_api::config::HttpConfig;
use hearth_engine::constraint::{Constrain, Constraint, Grammar};
use hearth_engine::{EngineConfig, Event, Request, SamplingParams, Speculation};
use hearth_forward::TokenMask;
use serde_json::{Value, json};

use super::fake::{Behaviour, TestServer, VOCAB};
use super::{COMPLETIONS, ok};

async fn page(server: &TestServer) -> String {
    let page = reqwest::get(format!("{}/metrics", server.url)).await;
    page.unwrap().text().await.unwrap()
}

/// The sum of the series of `name` that have all of `labels`.
fn value(page: &str, name: &str, labels: &str) -> f64 {
    let start = format!("{name}{{");
    let lines = page
        .lines()
        .filter(|line| line.starts_with(&start) && line.contains(labels));
    lines
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap())
        .sum()
}

#[tokio::test]
async fn a_request_that_waits_for_the_prefix_of_another_is_deferred() {
    let behaviour = Behaviour {
        step: Duration::from_millis(50),
        max_model_len: 1024,
        ..Behaviour::default()
    };
    let engine = EngineConfig {
        max_batch_tokens: 16,
        ..EngineConfig::default()
    };
    let server = TestServer::start(behaviour, engine, HttpConfig::default());
    let body = json!({"prompt": "a".repeat(600), "max_tokens": 1});
    let waits = async {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let page = page(&server).await;
            let of = |reason| value(&page, "vllm:num_requests_waiting_by_reason", reason);
            // Each gauge of a page reads the engine for itself, so the request may join between two of them.
            let waiting = value(&page, "vllm:num_requests_waiting", "");
            if of("reason=\"deferred\"") == 1.0 && waiting == 1.0 {
                return assert_eq!(of("reason=\"capacity\""), 0.0, "{page}");
            }
            assert!(Instant::now() < deadline, "{page}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    // Each prompt takes 38 steps.
    let second = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        ok(&server, COMPLETIONS, &body).await
    };
    let (.., second) = tokio::join!(waits, ok(&server, COMPLETIONS, &body), second);
    let cached = &second["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert!(cached.as_u64() >= Some(590), "{second}");
    let page = page(&server).await;
    assert_eq!(value(&page, "vllm:num_requests_waiting_by_reason", ""), 0.0);
}

/// A grammar that allows everything, and whose answers come only when the test lets them.
#[derive(Clone, Debug, Default)]
struct Held(Arc<(Mutex<Gate>, Condvar)>);

#[derive(Debug, Default)]
struct Gate {
    is_open: bool,
    is_cancelled: bool,
}

impl Held {
    fn change(&self, change: impl FnOnce(&mut Gate)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }
}

impl Grammar for Held {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

impl Constraint for Held {
    fn mask(&mut self) -> Result<TokenMask, String> {
        match self.0.0.lock().unwrap().is_open {
            true => Ok(vec![u32::MAX; VOCAB.div_ceil(32)].into()),
            false => Err("it was cancelled".to_owned()),
        }
    }

    fn consume(&mut self, _: u32) -> Result<(), String> {
        Ok(())
    }

    /// The first question that a grammar is asked, before its request may start: so the request waits
    /// here.
    fn forced(&mut self, _: usize) -> Vec<u32> {
        let (gate, changed) = &*self.0;
        let closed = |gate: &mut Gate| !gate.is_open && !gate.is_cancelled;
        drop(changed.wait_while(gate.lock().unwrap(), closed).unwrap());
        Vec::new()
    }

    fn is_complete(&self) -> bool {
        false
    }

    fn canceller(&self) -> Box<dyn Fn() + Send> {
        let held = self.clone();
        Box::new(move || held.change(|gate| gate.is_cancelled = true))
    }
}

/// A grammar of a client answers in microseconds or is cancelled after a second, so that a scrape may
/// meet none that waits. This one answers when a scrape has seen it.
#[tokio::test]
async fn a_request_that_waits_for_its_grammar_is_deferred() {
    let server = TestServer::plain();
    let served = server.state.loaded().unwrap();
    let of = |page: &str, reason: &str| {
        let labels = format!("reason=\"{reason}\"");
        value(page, "vllm:num_requests_waiting_by_reason", &labels)
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        assert!(Instant::now() < deadline, "no page shows the request");
        let grammar = Held::default();
        let mut generation = served.engine.submit(held(&grammar)).unwrap();
        while !served.engine.stats().is_idle() && of(&page(&server).await, "deferred") == 0.0 {}
        // Each gauge of a page reads the engine for itself: on a second page all have seen the request.
        let seen = page(&server).await;
        grammar.change(|gate| gate.is_open = true);
        let mut finished = false;
        while let Some(event) = generation.next().await {
            finished |= matches!(event, Event::Finished(..));
        }
        // On a busy machine the second may be over before the page is there: then the request has failed.
        if finished {
            let counts = ["deferred", "capacity"].map(|reason| of(&seen, reason));
            assert_eq!(counts, [1.0, 0.0], "{seen}");
            assert_eq!(value(&seen, "vllm:num_requests_waiting", ""), 1.0, "{seen}");
            break;
        }
    }
    assert_eq!(of(&page(&server).await, "deferred"), 0.0);
}

/// A request for one token that `grammar` allows.
fn held(grammar: &Held) -> Request {
    Request {
        prompt: vec![97],
        params: SamplingParams {
            max_tokens: 1,
            ..SamplingParams::default()
        },
        constraint: Some(Constrain {
            grammar: Arc::new(grammar.clone()),
            jump_forward: true,
        }),
        ..Request::default()
    }
}

/// Checks the times between the `tokens` tokens of the only request of `server`, several of which came
/// in each step that took `step`.
async fn no_time_is_zero(server: &TestServer, tokens: usize, step: Duration) {
    server.wait_until_idle().await;
    let page = page(server).await;
    let name = "vllm:inter_token_latency_seconds";
    let of = |part: &str, labels: &str| value(&page, &format!("{name}_{part}"), labels);
    assert_eq!(of("count", ""), tokens as f64 - 1.0, "{page}");
    // A step brings five tokens at the most, so that its share is above 10 ms.
    let bound = "le=\"0.01\"";
    let mut buckets = page.lines().filter(|line| line.starts_with(name));
    assert!(buckets.any(|line| line.contains(bound)), "{page}");
    assert_eq!(of("bucket", bound), 0.0, "{page}");
    let decode = value(&page, "vllm:request_decode_time_seconds_sum", "");
    assert!((of("sum", "") - decode).abs() < 1e-6, "{decode} in {page}");
    // Otherwise no step brought several tokens.
    let steps = (tokens - 1) as f64 * step.as_secs_f64();
    assert!(decode < steps, "{decode} of {steps}");
}

#[tokio::test]
async fn the_time_of_a_step_is_divided_among_tokens_that_a_grammar_forced() {
    let step = Duration::from_millis(150);
    let behaviour = Behaviour {
        step,
        ..Behaviour::default()
    };
    let server = TestServer::start(behaviour, EngineConfig::default(), HttpConfig::default());
    let body = json!({"prompt": "x", "temperature": 0, "max_tokens": 20,
                      "guided_regex": "(a|b)(c|d)zzz(e|f)zz"});
    let answer = ok(&server, COMPLETIONS, &body).await;
    let text = answer["choices"][0]["text"].as_str().unwrap();
    assert_eq!(text.len(), 8, "{answer}");
    no_time_is_zero(&server, text.len(), step).await;
}

#[tokio::test]
async fn the_time_of_a_step_is_divided_among_tokens_that_were_drafted() {
    let step = Duration::from_millis(100);
    let behaviour = Behaviour {
        step,
        endless: true,
        ..Behaviour::default()
    };
    let engine = EngineConfig {
        speculation: Some(Speculation {
            lookup_min: 1,
            adaptive: false,
            ..Speculation::default()
        }),
        ..EngineConfig::default()
    };
    let server = TestServer::start(behaviour, engine, HttpConfig::default());
    let body = json!({"prompt": "abcdefghijklmnopqrstuvwxyza", "temperature": 0, "max_tokens": 21});
    let answer: Value = ok(&server, COMPLETIONS, &body).await;
    assert_eq!(answer["choices"][0]["text"], "bcdefghijklmnopqrstuv");
    no_time_is_zero(&server, 21, step).await;
}
