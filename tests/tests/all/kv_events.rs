//! KV events: vLLM's own subscriber reads them, and the router routes by them.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::harness::{CHAT, Server, hearth, python_with, workspace};

/// Settings of a publisher at free ports.
const EVENTS: &str = r#"{"enable_kv_cache_events": true, "endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0", "topic": "kv-events"}"#;

async fn announced(server: &Server) -> Value {
    let answer = reqwest::get(server.url("/server_info")).await.unwrap();
    let info: Value = answer.json().await.unwrap();
    info["kv_events"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn vllms_subscriber_knows_what_is_cached() {
    let Some(python) = python_with("import zmq, msgspec, requests") else {
        return;
    };
    let flags = [
        "--kv-tokens",
        "512",
        "--max-model-len",
        "256",
        "--page-size",
        "16",
    ];
    let more = ["--host-cache-tokens", "4096", "--kv-events-config", EVENTS];
    let server = Server::of("qwen3", &[&flags[..], &more].concat()).await;
    let info = announced(&server).await;
    assert_eq!(
        (&info["block_size"], &info["topic"]),
        (&json!(16), &json!("kv-events"))
    );
    let at = |name: &str| info[name].as_str().unwrap().replace('*', "127.0.0.1");
    let output = Command::new(python)
        .arg(workspace().join("tests/python/kv_events.py"))
        .args([at("endpoint"), at("replay_endpoint")])
        .args(["kv-events", &server.url(""), "16"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// A router process. Dropping it kills the process.
struct Router(Child);

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn workers(url: &str) -> Vec<Value> {
    let Ok(answer) = reqwest::get(format!("{url}/workers")).await else {
        return Vec::new();
    };
    let body: Value = answer.json().await.unwrap();
    body["workers"].as_array().unwrap().clone()
}

/// Waits until the router knows blocks of as many workers, and everything of both.
async fn knows(url: &str, with_blocks: usize) {
    let started = Instant::now();
    loop {
        let workers = workers(url).await;
        let complete = workers
            .iter()
            .filter(|w| w["kv_events"]["complete"] == true);
        let filled = workers
            .iter()
            .filter(|w| w["kv_events"]["blocks"].as_u64() > Some(0));
        if complete.count() == 2 && filled.count() == with_blocks {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{workers:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_router_sends_a_chat_where_its_prefix_is() {
    let flags = ["--page-size", "16", "--kv-events-config", EVENTS];
    let (a, b) = (Server::start(&flags).await, Server::start(&flags).await);
    let chat = |question: &str| {
        let system = "You answer in one word. ".repeat(8);
        json!({"max_tokens": 4, "temperature": 0, "messages": [
            {"role": "system", "content": system}, {"role": "user", "content": question}]})
    };
    // Behind the router's back, so that it cannot guess.
    b.ok(CHAT, &chat("Why?")).await;
    let port = super::disaggregation::free_port();
    let url = format!("http://127.0.0.1:{port}");
    let process = hearth()
        .args([
            "router",
            "--prometheus-port",
            "none",
            "--port",
            &port.to_string(),
        ])
        .args(["--worker-urls", &a.url(""), &b.url("")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _router = Router(process.unwrap());
    knows(&url, 1).await;
    let http = reqwest::Client::new();
    for question in ["Who?", "What?", "Where?", "When?"] {
        let request = http.post(format!("{url}{CHAT}")).json(&chat(question));
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 200);
        let body: Value = answer.json().await.unwrap();
        let cached = &body["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert!(cached.as_u64() > Some(100), "{body}");
    }
    assert_eq!(a.stat("prompt_tokens").await, 0);
    // Where the cache was flushed, the guess would still send them.
    let flushed = http.post(b.url("/flush_cache")).send().await.unwrap();
    assert_eq!(flushed.status(), 200);
    a.ok(CHAT, &chat("Why?")).await;
    knows(&url, 1).await;
    let request = http.post(format!("{url}{CHAT}")).json(&chat("How?"));
    let body: Value = request.send().await.unwrap().json().await.unwrap();
    let cached = &body["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert!(cached.as_u64() > Some(100), "{body}");
}
