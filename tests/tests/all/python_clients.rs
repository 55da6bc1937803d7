//! Runs the Python clients that users have against the server.

use std::path::PathBuf;
use std::process::Command;

use super::harness::{MODEL, Server, workspace};

const FOLDER: &str = "tests/python";

/// `HEARTH_PYTHON`, or the environment that test.sh makes, if the clients are installed in it.
fn python() -> Result<PathBuf, String> {
    let path = std::env::var_os("HEARTH_PYTHON")
        .map_or_else(|| workspace().join(".venv/bin/python"), PathBuf::from);
    let found = Command::new(&path)
        .args([
            "-c",
            "import anthropic, langchain_openai, ollama, openai, pathlib, requests, schemathesis, sglang_router, smg, sys; \
             assert (pathlib.Path(sys.prefix) / 'sglang/sglang/lang').is_dir(), 'no sglang.lang'",
        ])
        .output();
    match found {
        Ok(output) if output.status.success() => Ok(path),
        Ok(output) => Err(format!(
            "{}: {}",
            path.display(),
            String::from_utf8_lossy(&output.stderr)
        )),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// The Python of [`python`]; `None`, with a message, where there is none and none is required.
///
/// # Panics
/// There is none, and `HEARTH_REQUIRE_PYTHON` is set.
pub fn python_or_skip() -> Option<PathBuf> {
    match python() {
        Ok(python) => Some(python),
        Err(reason) => {
            assert!(
                std::env::var_os("HEARTH_REQUIRE_PYTHON").is_none(),
                "HEARTH_REQUIRE_PYTHON is set, and there is no Python with the clients: {reason}"
            );
            eprintln!("SKIPPED: there is no Python with the clients: {reason}");
            None
        }
    }
}

/// Runs a script, which must succeed, and prints what it writes.
pub async fn succeeds(mut command: Command) {
    let shown = format!("{command:?}");
    let run = tokio::task::spawn_blocking(move || command.output());
    let output = run.await.unwrap().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    println!("{out}");
    let status = output.status;
    assert!(status.success(), "{shown} failed ({status}):\n{out}\n{err}");
}

/// Runs `script` against a server; `base` is the path that its client's URLs begin with.
async fn passes(script: &str, base: &str) {
    passes_with(script, base, 1, "2048").await;
}

/// Runs `script` against several servers with contexts of `max_model_len` tokens.
async fn passes_with(script: &str, base: &str, servers: usize, max_model_len: &str) {
    let Some(python) = python_or_skip() else {
        return;
    };
    let mut running = Vec::new();
    for _ in 0..servers {
        let flags = [
            "--max-model-len",
            max_model_len,
            "--tool-call-parser",
            "hermes",
        ];
        running.push(Server::start(&flags).await);
    }
    let mut urls = running.iter().map(|server| server.url(base));
    let mut command = Command::new(python);
    command
        .arg(workspace().join(FOLDER).join(script))
        .arg(urls.next().expect("at least one server"))
        .arg(MODEL)
        .args(urls);
    succeeds(command).await;
    for server in &running {
        server.wait_until_idle().await;
    }
}

#[tokio::test]
async fn the_openai_python_client_works() {
    passes("openai_client.py", "/v1").await;
}

#[tokio::test]
async fn the_anthropic_python_client_works() {
    passes("anthropic_client.py", "").await;
}

#[tokio::test]
async fn the_ollama_python_client_works() {
    passes("ollama_client.py", "").await;
}

#[tokio::test]
async fn sglangs_frontend_load_generator_and_router_get_the_responses_they_expect() {
    passes("sglang_contract.py", "").await;
}

#[tokio::test]
async fn programs_of_sglangs_language_run() {
    passes("sglang_language.py", "").await;
}

#[tokio::test]
async fn sglangs_router_shares_requests_between_two_servers() {
    passes_with("sglang_router.py", "", 2, "2048").await;
}

#[tokio::test]
async fn smg_takes_two_servers_for_sglangs_and_changes_no_response() {
    passes_with("smg_router.py", "", 2, "2048").await;
}

#[tokio::test]
async fn langchains_client_works() {
    passes("langchain_client.py", "/v1").await;
}

#[tokio::test]
async fn every_response_to_generated_requests_matches_the_openapi_document() {
    passes_with("openapi_fuzz.py", "", 1, "64").await;
}
