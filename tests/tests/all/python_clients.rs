//! Runs the Python clients that users have against the server.

use std::path::PathBuf;
use std::process::Command;

use super::harness::{MODEL, Server, workspace};

const FOLDER: &str = "tests/python";

/// `HEARTH_PYTHON`, or the environment that test.sh makes, if the clients are installed in it.
pub fn python() -> Result<PathBuf, String> {
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

/// Runs `script` against a server; `base` is the path that its client's URLs begin with.
async fn passes(script: &str, base: &str) {
    passes_with(script, base, 1, "2048").await;
}

/// Runs `script` against several servers with contexts of `max_model_len` tokens.
async fn passes_with(script: &str, base: &str, servers: usize, max_model_len: &str) {
    let python = match python() {
        Ok(python) => python,
        Err(reason) => {
            assert!(
                std::env::var_os("HEARTH_REQUIRE_PYTHON").is_none(),
                "HEARTH_REQUIRE_PYTHON is set, and there is no Python with the clients: {reason}"
            );
            eprintln!("SKIPPED: there is no Python with the clients: {reason}");
            return;
        }
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
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .unwrap()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    println!("{out}");
    assert!(
        output.status.success(),
        "{script} failed ({}):\n{out}\n{err}",
        output.status
    );
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
