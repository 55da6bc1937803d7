//! Routers in front of a prefill server and a decode server: clients get the bytes of one process.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::disaggregation::{GENERATE, comparable, forms, free_port, text};
use super::harness::{CHAT, Random, Server, hearth, python_with};

const START: Duration = Duration::from_secs(60);

/// A router process. Dropping it kills the process.
struct Front {
    process: Child,
    url: String,
    http: reqwest::Client,
}

impl Front {
    /// Runs `command` with `flags` for the pair of servers, and waits until the router finds both
    /// healthy.
    async fn start(
        mut command: Command,
        prefill: &Server,
        bootstrap: u16,
        decode: &Server,
    ) -> Self {
        let (port, prometheus) = (free_port().to_string(), free_port().to_string());
        command.args([
            "--pd-disaggregation",
            "--prefill",
            &prefill.url(""),
            &bootstrap.to_string(),
        ]);
        command.args([
            "--decode",
            &decode.url(""),
            "--host",
            "127.0.0.1",
            "--port",
            &port,
        ]);
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

/// Sends requests through the router of `command`, as many as `rounds` of all forms that `takes`
/// allows.
async fn gives_the_bytes_of_one_process(
    command: Command,
    rounds: u64,
    takes: impl Fn(&str, &Value) -> bool,
) {
    let flags = ["--prefill-chunk", "16"];
    let one = Server::of("qwen3", &flags).await;
    let bootstrap = free_port();
    let port = bootstrap.to_string();
    let own = [
        "--disaggregation-mode",
        "prefill",
        "--disaggregation-bootstrap-port",
        &port,
    ];
    let prefill = Server::of("qwen3", &[&own[..], &flags].concat()).await;
    let own = ["--disaggregation-mode", "decode"];
    let decode = Server::of("qwen3", &[&own[..], &flags].concat()).await;
    let front = Front::start(command, &prefill, bootstrap, &decode).await;
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
