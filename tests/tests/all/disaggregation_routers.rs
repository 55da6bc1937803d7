//! Routers in front of a prefill server and a decode server: clients get the bytes of one process.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::disaggregation::{GENERATE, comparable, forms, free_port, text};
use super::harness::{CHAT, Random, Server, hearth, python_with};

const START: Duration = Duration::from_secs(60);

/// A router process. Dropping it kills the process.
pub struct Front {
    process: Child,
    pub url: String,
    pub http: reqwest::Client,
}

impl Front {
    /// Runs `command` in front of a prefill server, whose bootstrap server has the given port, and a
    /// decode server.
    pub async fn of_pair(
        mut command: Command,
        prefill: &Server,
        bootstrap: u16,
        decode: &Server,
    ) -> Self {
        let port = bootstrap.to_string();
        command.args(["--pd-disaggregation", "--prefill", &prefill.url(""), &port]);
        command.args(["--decode", &decode.url("")]);
        Self::start(command).await
    }

    /// Runs `command`, and waits until the router finds its workers healthy.
    async fn start(mut command: Command) -> Self {
        let (port, prometheus) = (free_port().to_string(), free_port().to_string());
        command.args(["--host", "127.0.0.1", "--port", &port]);
        command.args(["--prometheus-port", &prometheus, "--policy", "round_robin"]);
        let mut process = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let url = format!("http://127.0.0.1:{port}");
        let http = reqwest::Client::new();
        let started = Instant::now();
        loop {
            let asked = http.get(format!("{url}/readiness")).send().await;
            if asked.is_ok_and(|answer| answer.status().is_success()) {
                return Self { process, url, http };
            }
            assert!(started.elapsed() < START, "the router is not ready");
            assert!(
                process.try_wait().unwrap().is_none(),
                "the router has ended"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn answer(&self, path: &str, body: &Value) -> String {
        let request = self.http.post(format!("{}{path}", self.url)).json(body);
        let response = request.send().await.unwrap();
        let status = response.status();
        let text = response.text().await.unwrap();
        assert!(status.is_success(), "{path} {body}: {status} {text}");
        text
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A prefill server, the port of its bootstrap server, and a decode server.
async fn pair(flags: &[&str]) -> (Server, u16, Server) {
    let bootstrap = free_port();
    let port = bootstrap.to_string();
    let own = [
        "--disaggregation-mode",
        "prefill",
        "--disaggregation-bootstrap-port",
        &port,
    ];
    let prefill = Server::of("qwen3", &[&own[..], flags].concat()).await;
    let own = ["--disaggregation-mode", "decode"];
    let decode = Server::of("qwen3", &[&own[..], flags].concat()).await;
    (prefill, bootstrap, decode)
}

/// Sends requests through the router of `command`, as many as `rounds` of all forms that `takes`
/// allows.
async fn gives_the_bytes_of_one_process(
    command: Command,
    rounds: u64,
    takes: impl Fn(&str, &Value) -> bool,
) {
    let flags = ["--prefill-chunk", "16"];
    let one = Server::of("qwen3", &flags).await;
    let (prefill, bootstrap, decode) = pair(&flags).await;
    let front = Front::of_pair(command, &prefill, bootstrap, &decode).await;
    let mut random = Random::new(11);
    let mut sent = 0;
    for round in 0..rounds {
        let length = random.within(2, 120);
        let prompt = random.tokens(length);
        for (path, mut body, _) in forms(&prompt, round) {
            if path != GENERATE {
                // SGLang's router asks for it.
                body["model"] = json!("qwen3");
            }
            if !takes(path, &body) {
                continue;
            }
            let (status, alone) = text(&one, path, &body).await;
            assert_eq!(status, 200, "{path} {body}: {alone}");
            let routed = front.answer(path, &body).await;
            assert_eq!(comparable(&routed), comparable(&alone), "{path} {body}");
            sent += 1;
        }
    }
    for server in [&prefill, &decode] {
        server.wait_until_idle().await;
    }
    let received = decode.stat("received_tokens").await;
    assert!(received > sent, "{received} tokens in {sent} requests");
}

#[tokio::test]
async fn our_router_gives_the_bytes_of_one_process_for_two_hundred_prompts() {
    let mut command = hearth();
    command.arg("router");
    gives_the_bytes_of_one_process(command, 16, |_, _| true).await;
}

/// A program is one request to one worker: in the pair it is the decode server, which computes its
/// prompts itself.
#[tokio::test]
async fn a_program_gives_the_same_behind_the_router_in_either_mode() {
    let (prefill, bootstrap, decode) = pair(&[]).await;
    let one = Server::of("qwen3", &[]).await;
    let router = || {
        let mut command = hearth();
        command.arg("router");
        command
    };
    let mut regular = router();
    regular.args(["--worker-urls", &one.url("")]);
    let fronts = [
        Front::start(regular).await,
        Front::of_pair(router(), &prefill, bootstrap, &decode).await,
    ];
    let body = json!({"nodes": [
        {"op": "text", "text": "Name a colour: "},
        {"op": "gen", "name": "colour", "max_tokens": 6, "temperature": 0},
        {"op": "fork", "into": [1, 2]},
        {"state": 1, "op": "text", "text": " Why?"},
        {"state": 1, "op": "gen", "name": "why", "max_tokens": 5, "seed": 3},
        {"state": 2, "op": "text", "text": " Is it red? "},
        {"state": 2, "op": "select", "name": "red", "choices": ["yes", "no"]},
        {"op": "join", "from": [1, 2], "mode": "concatenate"},
    ]});
    let (status, alone) = text(&one, "/v1/programs", &body).await;
    assert_eq!(status, 200, "{alone}");
    let wanted: Value = serde_json::from_str(&alone).unwrap();
    assert!(!wanted["states"][0]["text"].is_null(), "{wanted}");
    for front in &fronts {
        let routed = front.answer("/v1/programs", &body).await;
        let routed: Value = serde_json::from_str(&routed).unwrap();
        for (state, wanted) in wanted["states"].as_array().unwrap().iter().enumerate() {
            for field in ["text", "variables"] {
                assert_eq!(routed["states"][state][field], wanted[field], "{routed}");
            }
        }
        let mut streamed = body.clone();
        streamed["stream"] = json!(true);
        let streamed = front.answer("/v1/programs", &streamed).await;
        assert!(streamed.ends_with("data: [DONE]\n\n"), "{streamed}");
    }
}

#[tokio::test]
async fn sglangs_router_gives_the_bytes_of_one_process() {
    let Some(python) = python_with("import sglang_router") else {
        return;
    };
    let mut command = Command::new(python);
    command.args(["-m", "sglang_router.launch_router"]);
    // It refuses prompts of token ids in completions, and writes one room for several samples.
    let takes = |path: &str, body: &Value| {
        path == CHAT || body["prompt"].is_string() || body.get("sampling_params").is_some()
    };
    gives_the_bytes_of_one_process(command, 4, takes).await;
}

#[tokio::test]
async fn smg_gives_the_bytes_of_one_process() {
    let Some(python) = python_with("import smg") else {
        return;
    };
    let mut command = Command::new(python);
    command.args(["-m", "smg.launch_router"]);
    let takes = |path: &str, body: &Value| {
        path == CHAT || body["prompt"].is_string() || body.get("sampling_params").is_some()
    };
    gives_the_bytes_of_one_process(command, 4, takes).await;
}
