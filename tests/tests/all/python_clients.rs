//! OpenAI's own Python client against the server, end to end.

use std::path::PathBuf;
use std::process::Command;

use super::harness::{MODEL, Server, workspace};

const SCRIPT: &str = "tests/python/openai_client.py";

/// `HEARTH_PYTHON`, or the environment that test.sh makes; with `openai` in it.
fn python() -> Result<PathBuf, String> {
    let path = std::env::var_os("HEARTH_PYTHON")
        .map_or_else(|| workspace().join(".venv/bin/python"), PathBuf::from);
    let found = Command::new(&path).args(["-c", "import openai"]).output();
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

#[tokio::test]
async fn the_openai_python_client_gets_everything_it_asks_for() {
    let python = match python() {
        Ok(python) => python,
        Err(reason) => {
            assert!(
                std::env::var_os("HEARTH_REQUIRE_PYTHON").is_none(),
                "HEARTH_REQUIRE_PYTHON is set, and there is no Python with openai: {reason}"
            );
            eprintln!("SKIPPED: there is no Python with openai: {reason}");
            return;
        }
    };
    let server = Server::start(&["--max-model-len", "2048"]).await;
    let mut command = Command::new(python);
    command
        .arg(workspace().join(SCRIPT))
        .arg(server.url("/v1"))
        .arg(MODEL);
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
        "{SCRIPT} failed ({}):\n{out}\n{err}",
        output.status
    );
    server.wait_until_idle().await;
}
