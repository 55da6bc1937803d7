//! `hearth chat` in a pseudo-terminal, which `tests/python/terminal_chat.py` types into.

use std::process::Command;

use super::harness::{Server, hearth, workspace};
use super::python_clients::python;

#[tokio::test]
async fn a_chat_in_a_terminal_edits_lines_stops_answers_and_keeps_its_history() {
    let python = match python() {
        Ok(python) => python,
        Err(reason) => {
            assert!(
                std::env::var_os("HEARTH_REQUIRE_PYTHON").is_none(),
                "{reason}"
            );
            eprintln!("SKIPPED: there is no Python: {reason}");
            return;
        }
    };
    let server = Server::embedded(&["--api-key", "user"]).await;
    let mut command = Command::new(python);
    command
        .arg(workspace().join("tests/python/terminal_chat.py"))
        .arg(hearth().get_program())
        .args([&server.url(""), "user"]);
    let run = tokio::task::spawn_blocking(move || command.output());
    let output = run.await.unwrap().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    print!("{out}");
}
