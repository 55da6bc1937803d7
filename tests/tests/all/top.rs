//! `hearth top` shows a running server, in a terminal and to scripts.

use std::process::Stdio;

use serde_json::{Value, json};

use super::harness::{COMPLETIONS, Server, hearth, python_with, workspace};

#[tokio::test]
async fn top_prints_one_picture_of_a_busy_server_for_scripts() {
    let server = Server::start(&["--max-running-requests", "2"]).await;
    let body = json!({"prompt": [1, 2], "max_tokens": 100_000, "temperature": 0,
        "ignore_eos": true, "stream": true});
    let held = server.client.stream(COMPLETIONS, &body).await.unwrap();
    server.wait_until_running(1).await;
    let mut command = hearth();
    command.args([
        "top",
        "--once",
        "--interval",
        "0.3",
        "--url",
        &server.url(""),
    ]);
    let output = tokio::task::spawn_blocking(move || command.output()).await;
    let output = output.unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(!text.contains('\u{1b}'), "{text:?}");
    let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(line("server").contains("llama-llama3-tied"), "{text}");
    assert!(
        line("requests").contains("1 running of 2, 0 waiting"),
        "{text}"
    );
    assert!(line("saturation").contains(" 0.50, "), "{text}");
    assert!(!line("tokens/s").ends_with(" 0 generated"), "{text}");
    assert!(
        line("ITL").contains("p50 ") && !line("ITL").contains("p50 -"),
        "{text}"
    );
    let parts = text
        .lines()
        .find(|line| line.contains("scheduler "))
        .unwrap();
    for part in ["scheduler", "forward", "execute"] {
        assert!(
            parts.contains(part) && !parts.contains(&format!("{part} -")),
            "{text}"
        );
    }
    assert!(
        text.contains("evictable") && text.contains("KV cache"),
        "{text}"
    );
    drop(held);
}

#[tokio::test]
async fn top_draws_in_a_terminal_and_leaves_it_as_it_was() {
    let Some(python) = python_with("import pty") else {
        return;
    };
    let server = Server::start(&[]).await;
    let mut command = std::process::Command::new(python);
    command.arg(workspace().join("tests/python/terminal.py"));
    command
        .args(["saturation", "2"])
        .arg(hearth().get_program());
    command.args(["top", "--interval", "0.2", "--url", &server.url("")]);
    let output = tokio::task::spawn_blocking(move || command.output()).await;
    let output = output.unwrap().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let got: Value = serde_json::from_slice(&output.stdout).unwrap();
    let written = got["written"].as_str().unwrap();
    assert_eq!(got["status"], 0, "{written:?}");
    assert!(
        written.starts_with("\x1b[?1049h\x1b[?25l\x1b[H"),
        "{written:?}"
    );
    assert!(
        written.trim_end().ends_with("\x1b[?25h\x1b[?1049l"),
        "{written:?}"
    );
    // The second picture is drawn over the first.
    assert!(written.matches("\x1b[H").count() >= 2, "{written:?}");
}

#[tokio::test]
async fn top_says_why_it_cannot_show_a_server() {
    let server = Server::start(&["--metrics-names", "sglang"]).await;
    for (url, why) in [
        (server.url(""), "metrics_names must include otel"),
        (
            "http://127.0.0.1:9".to_owned(),
            "cannot read the server's metrics",
        ),
    ] {
        let mut command = hearth();
        command
            .args(["top", "--once", "--url", &url])
            .stdout(Stdio::piped());
        let output = tokio::task::spawn_blocking(move || command.output()).await;
        let output = output.unwrap().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(why), "{error}");
    }
}
