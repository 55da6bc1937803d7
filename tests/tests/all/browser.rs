//! The page in a real browser, which `tests/python/browser.py` drives.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use super::harness::{Server, workspace};
use super::python_clients::{python_or_skip, succeeds};

/// `HEARTH_CHROMIUM`, or a Chromium on the PATH.
fn chromium() -> Option<PathBuf> {
    if let Some(path) = env::var_os("HEARTH_CHROMIUM") {
        return Some(path.into());
    }
    let folders = env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let mut paths = env::split_paths(&folders).flat_map(|folder| names.map(|n| folder.join(n)));
    paths.find(|path| path.is_file())
}

#[tokio::test]
async fn the_page_shows_requests_as_they_run_and_the_playground_answers_stops_and_tells_wrong_keys()
{
    let Some(chromium) = chromium() else {
        eprintln!("SKIPPED: there is no Chromium on the PATH, and HEARTH_CHROMIUM names none");
        return;
    };
    let Some(python) = python_or_skip() else {
        return;
    };
    let open = Server::embedded(&["--admin-api-key", "chief", "--kv-tokens", "8192"]).await;
    let closed = Server::embedded(&["--api-key", "user", "--admin-api-key", "chief"]).await;
    let mut command = Command::new(python);
    command
        .arg(workspace().join("tests/python/browser.py"))
        .arg(chromium)
        .args([&open.url(""), "chief", &closed.url("")]);
    succeeds(command).await;
}
