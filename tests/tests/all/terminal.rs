//! `hearth chat` in a pseudo-terminal, which `tests/python/terminal_chat.py` types into.

use std::process::Command;

use super::harness::{Server, hearth, workspace};
use super::python_clients::{python_or_skip, succeeds};

#[tokio::test]
async fn a_chat_in_a_terminal_edits_lines_stops_answers_and_keeps_its_history() {
    let Some(python) = python_or_skip() else {
        return;
    };
    let server = Server::embedded(&["--api-key", "user"]).await;
    let mut command = Command::new(python);
    command
        .arg(workspace().join("tests/python/terminal_chat.py"))
        .arg(hearth().get_program())
        .args([&server.url(""), "user"]);
    succeeds(command).await;
}
