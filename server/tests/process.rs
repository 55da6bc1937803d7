//! Tests the binary: it starts, answers requests, and ends on a signal.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use hearth_client::{Client, ClientError};
use serde_json::{Value, json};

const HEARTH: &str = env!("CARGO_BIN_EXE_hearth");
/// A configuration with two tiny layers, loaded with random weights and without a tokenizer.
const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../model/goldens/llama-llama3-tied"
);
const PATIENCE: Duration = Duration::from_secs(60);

fn hearth(arguments: &[&str]) -> Command {
    let mut command = Command::new(HEARTH);
    // Run in a directory without a hearth.toml and without the caller's HEARTH_* variables.
    command.args(arguments).current_dir(std::env::temp_dir());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("HEARTH_")) {
        command.env_remove(name);
    }
    command
}

fn run(arguments: &[&str]) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = hearth(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// A server in its own process, which is killed when it is dropped.
struct Server {
    process: Child,
    url: String,
    client: Client,
}

impl Server {
    fn start(extra: &[&str]) -> Self {
        let mut arguments = vec![
            "--model",
            MODEL,
            "--load-format",
            "dummy",
            "--device",
            "cpu",
            "--port",
            "0",
            "--log-format",
            "json",
            "--kv-tokens",
            "4096",
        ];
        arguments.extend(extra);
        let mut process = hearth(&arguments).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let ready = lines.find_map(|line| {
            let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
            (line["message"] == "ready").then_some(line)
        });
        let port = ready.expect("the process ended before it was ready")["port"].clone();
        // The output is read to the end, because a write to a full pipe blocks.
        std::thread::spawn(move || lines.for_each(drop));
        let url = format!("http://127.0.0.1:{port}");
        let client = Client::new(&url).unwrap();
        Self {
            process,
            url,
            client,
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        assert!(
            Command::new("kill")
                .args([name, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    /// True if `key` is served.
    async fn takes(&self, key: &str) -> bool {
        let bearer = format!("Bearer {key}");
        let client = Client::with_headers(&self.url, &[("authorization", &bearer)]).unwrap();
        client.get("/v1/models").await.is_ok()
    }

    async fn exit_code(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the process does not end");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Most tests have ended the process already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn endless() -> Value {
    json!({"prompt": [1, 2, 3], "max_tokens": 100, "ignore_eos": true, "stream": true})
}

#[tokio::test]
async fn a_request_in_flight_is_finished_after_sigterm_and_the_exit_code_is_0() {
    let mut server = Server::start(&[]);
    let ready = server.client.get("/ready").await.unwrap();
    assert_eq!(ready["model"], "llama-llama3-tied");
    let mut events = server
        .client
        .stream("/v1/completions", &endless())
        .await
        .unwrap();
    let mut tokens = 0;
    while let Some(event) = events.next().await.unwrap() {
        if tokens == 0 {
            server.signal("-TERM");
        }
        tokens += usize::from(event["choices"][0]["finish_reason"].is_null());
    }
    assert_eq!(tokens, 100);
    assert_eq!(server.exit_code().await, Some(0));
}

#[tokio::test]
async fn keys_are_read_again_after_a_sighup_and_a_damaged_file_changes_nothing() {
    let path = std::env::temp_dir().join(format!("hearth-keys-{}.toml", std::process::id()));
    let write = |key: &str| {
        let entry = format!("[[key]]\nname = \"ann\"\nkey = \"{key}\"\n");
        std::fs::write(&path, entry).unwrap();
    };
    write("first");
    let server = Server::start(&["--api-keys-file", path.to_str().unwrap()]);
    assert!(server.takes("first").await && !server.takes("second").await);
    let replace = async |before: &str, key: &str| {
        write(key);
        server.signal("-HUP");
        let deadline = Instant::now() + PATIENCE;
        while !server.takes(key).await {
            assert!(Instant::now() < deadline, "the key is not served");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(!server.takes(before).await);
    };
    replace("first", "second").await;
    std::fs::write(&path, "[[key]]\nname = 7").unwrap();
    server.signal("-HUP");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(server.takes("second").await);
    replace("second", "third").await;
    std::fs::remove_file(&path).unwrap();
}

#[tokio::test]
async fn a_request_beyond_the_bound_is_cut_off_and_the_exit_code_is_0() {
    let mut server = Server::start(&["--shutdown-timeout", "0"]);
    // 128 times 120 tokens take some seconds to compute.
    let mut body = endless();
    (body["n"], body["max_tokens"]) = (json!(128), json!(120));
    let mut events = server
        .client
        .stream("/v1/completions", &body)
        .await
        .unwrap();
    assert!(events.next().await.unwrap().is_some());
    server.signal("-INT");
    let error = loop {
        match events.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it finished"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ClientError::BrokenOff(_)), "{error}");
    assert_eq!(server.exit_code().await, Some(0));
}

#[tokio::test]
async fn a_repeated_request_finds_its_prompt_cached_and_gets_the_same_answer() {
    let server = Server::start(&[]);
    let prompt: Vec<u32> = (0..64).collect();
    let body = json!({"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true});
    let first = server.client.post("/v1/completions", &body).await.unwrap();
    let second = server.client.post("/v1/completions", &body).await.unwrap();
    assert_eq!(first["choices"][0]["text"], second["choices"][0]["text"]);
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(
        second["usage"]["prompt_tokens_details"]["cached_tokens"],
        63
    );
    let info = server.client.get("/server_info").await.unwrap();
    let kv = &info["internal_states"][0]["kv"];
    let slots = |key: &str| kv[key].as_u64().unwrap();
    assert_eq!(slots("free") + slots("cached") + slots("held"), 4096);
    assert!(
        info["model_info"]["weight_bytes"].as_u64().unwrap() > 0,
        "{info}"
    );
}

#[test]
fn a_failed_start_prints_one_line_and_exits_with_code_1() {
    for (arguments, words) in [
        (vec!["--model", "/nowhere"], vec!["/nowhere"]),
        (
            vec!["--model", MODEL, "--device", "tpu"],
            vec!["--device", "tpu"],
        ),
        (
            vec!["--model", MODEL, "--max-model-len", "9999999"],
            vec!["9999999"],
        ),
        (
            vec!["--model", MODEL, "--max-model-len", "1"],
            vec!["max_model_len", "at least 2", "given 1"],
        ),
        (
            vec!["--model", MODEL, "--kv-tokens", "1"],
            vec!["KV cache", "at least 2 tokens", "got 1"],
        ),
        (vec!["--config", "/nowhere.toml"], vec!["/nowhere.toml"]),
        (vec!["--max-queue", "0"], vec!["max_queue", "at least 1"]),
        (
            vec!["--page-size", "48"],
            vec!["page_size", "power of two from 1 to 64", "given 48"],
        ),
        (
            vec!["--max-batch-tokens", "0"],
            vec!["max_batch_tokens", "at least 1"],
        ),
        (vec!["--log-level", "a=b=c"], vec!["log_level"]),
        (
            vec!["--model", MODEL, "--host", "256.0.0.1"],
            vec!["256.0.0.1"],
        ),
    ] {
        let mut arguments = arguments;
        arguments.extend(["--port", "0", "--load-format", "dummy"]);
        let (code, _, stderr) = run(&arguments);
        assert_eq!(code, 1, "{arguments:?}: {stderr}");
        let error = stderr.lines().last().unwrap();
        assert!(error.starts_with("error: "), "{stderr}");
        for word in words {
            assert!(error.contains(word), "{arguments:?}: {error}");
        }
    }
}

#[test]
fn a_port_that_another_server_uses_is_an_error_that_gives_the_reason_once() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    let (code, _, stderr) = run(&["--port", &port]);
    assert_eq!(code, 1, "{stderr}");
    let error = stderr.lines().last().unwrap();
    let start = format!("error: cannot listen on 127.0.0.1:{port}: ");
    assert!(error.starts_with(&start), "{error}");
    assert_eq!(error.matches("in use").count(), 1, "{error}");
}

#[test]
fn a_model_that_cannot_be_read_is_an_error_that_gives_the_reason_once() {
    let directory = std::env::temp_dir().join(format!("hearth-unreadable-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (config, gguf) = (directory.join("config.json"), directory.join("bad.gguf"));
    std::fs::write(config, "{}").unwrap();
    std::fs::write(&gguf, "not GGUF").unwrap();
    for (model, reason) in [
        (directory.as_path(), "architectures is missing"),
        (gguf.as_path(), "does not begin with"),
    ] {
        let (code, _, stderr) = run(&["--port", "0", "--model", model.to_str().unwrap()]);
        assert_eq!(code, 1, "{stderr}");
        let error = stderr.lines().last().unwrap();
        assert_eq!(error.matches(reason).count(), 1, "{error}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn sampling_defaults_out_of_bounds_are_refused_at_the_start() {
    let directory = std::env::temp_dir().join(format!("hearth-defaults-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let config = directory.join("config.json");
    std::fs::copy(format!("{MODEL}/config.json"), config).unwrap();
    let model = directory.to_str().unwrap();
    let arguments = ["--model", model, "--load-format", "dummy", "--port", "0"];
    for (json, words) in [
        (
            r#"{"temperature": 5}"#,
            ["`temperature`", "between 0 and 2", "got 5"],
        ),
        (
            r#"{"top_p": 0}"#,
            ["`top_p`", "above 0 and at most 1", "got 0"],
        ),
    ] {
        std::fs::write(directory.join("generation_config.json"), json).unwrap();
        let (code, _, stderr) = run(&arguments);
        let error = stderr.lines().last().unwrap();
        assert_eq!(code, 1, "{stderr}");
        for word in ["generation_config.json", "--sampling-defaults openai"] {
            assert!(error.contains(word), "{error}");
        }
        for word in words {
            assert!(error.contains(word), "{error}");
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn help_names_every_command_and_the_configuration_prints() {
    let (code, help, _) = run(&["--help"]);
    assert_eq!(code, 0);
    for word in [
        "serve",
        "chat",
        "bench",
        "devices",
        "config",
        "HEARTH_KV_TOKENS",
        "curl",
    ] {
        assert!(help.contains(word), "--help lacks {word}");
    }
    let (code, by_command, _) = run(&["config", "--port", "7"]);
    let (_, by_flag, _) = run(&["serve", "--port", "7", "--print-config"]);
    assert_eq!((code, &by_command), (0, &by_flag));
    assert!(by_command.contains("port = 7"), "{by_command}");
}

#[test]
fn devices_are_listed_with_the_one_that_auto_selects() {
    let (code, text, _) = run(&["devices"]);
    assert!(
        code == 0 && text.contains("cpu:0") && text.contains("auto takes"),
        "{text}"
    );
    let (_, text, _) = run(&["devices", "--json"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert!(!json["devices"].as_array().unwrap().is_empty(), "{json}");
}

#[test]
fn bench_measures_every_batch_size() {
    let (code, text, stderr) = run(&[
        "bench",
        "--model",
        MODEL,
        "--load-format",
        "dummy",
        "--device",
        "cpu",
        "--json",
        "--prompt-tokens",
        "16",
        "--decode-tokens",
        "4",
        "--batch",
        "1,3",
        "--repeats",
        "1",
    ]);
    assert_eq!(code, 0, "{stderr}");
    let report: Value = serde_json::from_str(&text).unwrap();
    let rows = report["results"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[1]["batch"]), (2, &json!(3)));
    for row in rows {
        assert!(row["prefill_tokens_per_s"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["decode_tokens_per_s"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["bandwidth_percent"].as_f64().unwrap() > 0.0, "{row}");
    }
}

#[test]
fn a_missing_certificate_file_is_an_error() {
    let (code, _, err) = run(&["--port", "0", "--tls-cert", "no.pem", "--tls-key", "no.key"]);
    assert_ne!(code, 0);
    assert!(err.contains("--tls-cert no.pem: "), "{err}");
}
