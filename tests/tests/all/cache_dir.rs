//! Starts the server again over the files of cached prefixes that the one before left.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::harness::{COMPLETIONS, MODEL, Random, Server, hearth};

/// Time in which the server writes files while it serves.
const PATIENCE: Duration = Duration::from_secs(60);

fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cache-dir-{name}"));
    let _ = fs::remove_dir_all(&path);
    path
}

fn flags(path: &Path) -> [&str; 2] {
    ["--cache-dir", path.to_str().unwrap()]
}

fn files(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|suffix| suffix == "kv"));
    files.sort();
    files
}

/// The text of an answer with its log-probabilities, and the number of cached tokens.
async fn ask(server: &Server, prompt: &[u32]) -> (Value, u64) {
    let body = json!({
        "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true, "logprobs": 0,
    });
    read(&server.ok(COMPLETIONS, &body).await)
}

fn read(answer: &Value) -> (Value, u64) {
    let choice = &answer["choices"][0];
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    (
        json!([choice["text"], choice["logprobs"]]),
        cached.as_u64().unwrap(),
    )
}

async fn stop(mut server: Server) {
    server.signal("-TERM");
    assert_eq!(server.exit_code().await, Some(0));
}

#[tokio::test]
async fn a_second_start_has_the_prompts_of_the_first_and_gives_the_same_bytes() {
    let path = scratch("restart");
    let mut random = Random::new(5);
    let shared = random.tokens(300);
    let prompts: Vec<Vec<u32>> = (0..3)
        .map(|_| [shared.clone(), random.tokens(290)].concat())
        .collect();
    let first = Server::start(&flags(&path)).await;
    let mut fresh = Vec::new();
    for prompt in &prompts {
        fresh.push(ask(&first, prompt).await.0);
    }
    stop(first).await;
    let written = files(&path);
    // Two whole blocks and the rest for each prompt; the first block is shared.
    assert_eq!(written.len(), 7, "{written:?}");
    #[cfg(unix)]
    for file in &written {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(
            fs::metadata(file).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }
    let second = Server::start(&flags(&path)).await;
    second.wait_until_idle().await;
    for (prompt, fresh) in prompts.iter().zip(&fresh) {
        let (text, cached) = ask(&second, prompt).await;
        assert_eq!((&text, cached), (fresh, prompt.len() as u64 - 1));
    }
    assert!(second.stat("computed_tokens").await < 100);
    second.wait_until_idle().await;
    stop(second).await;
    assert_eq!(files(&path), written, "nothing new was to be written");
    // Another model ignores the files, and leaves them for the first.
    let other = Server::of("qwen3", &flags(&path)).await;
    assert!(other.has_logged("\"foreign\":7"));
    assert_eq!(ask(&other, &prompts[0]).await.1, 0);
    stop(other).await;
    let third = Server::start(&flags(&path)).await;
    assert!(ask(&third, &prompts[0]).await.1 > 0);
    stop(third).await;
}

#[tokio::test]
async fn prefixes_in_8_bits_give_the_same_bytes_and_are_of_no_use_to_another_format() {
    let path = scratch("int8");
    let prompt = Random::new(9).tokens(300);
    let int8 = [&flags(&path)[..], &["--kv-cache-dtype", "int8"]].concat();
    let first = Server::start(&int8).await;
    let (fresh, _) = ask(&first, &prompt).await;
    stop(first).await;
    let other = Server::start(&flags(&path)).await;
    assert!(other.has_logged("\"foreign\":2"));
    let (exact, cached) = ask(&other, &prompt).await;
    assert_eq!(cached, 0);
    assert_ne!(exact, fresh, "8 bits are not the floats");
    stop(other).await;
    let again = Server::start(&int8).await;
    assert_eq!(ask(&again, &prompt).await, (fresh, 299));
    stop(again).await;
}

#[tokio::test]
async fn two_servers_do_not_share_a_directory() {
    let path = scratch("two");
    let first = Server::start(&flags(&path)).await;
    let second = hearth()
        .args(["--device", "cpu", "--port", "0"])
        .args(flags(&path))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&second.stderr);
    assert!(
        !second.status.success() && text.contains("another server uses"),
        "{text}"
    );
    stop(first).await;
    stop(Server::start(&flags(&path)).await).await;
}

#[tokio::test]
async fn prefixes_are_written_while_the_server_serves_and_survive_a_kill() {
    let path = scratch("kill");
    let prompt = Random::new(6).tokens(700);
    let first = Server::start(&flags(&path)).await;
    let (text, _) = ask(&first, &prompt).await;
    let started = Instant::now();
    while files(&path).len() < 3 {
        assert!(started.elapsed() < PATIENCE, "{:?}", files(&path));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    first.signal("-KILL");
    drop(first);
    let second = Server::start(&flags(&path)).await;
    assert_eq!(ask(&second, &prompt).await, (text, 699));
    stop(second).await;
}

#[tokio::test]
async fn a_restart_under_load_loses_nothing() {
    let path = scratch("load");
    let mut random = Random::new(7);
    let prompts: Vec<_> = (0..12).map(|_| random.tokens(400)).collect();
    let mut server = Server::start(&flags(&path)).await;
    let body = |prompt: &[u32]| json!({"prompt": prompt, "max_tokens": 200, "temperature": 0, "ignore_eos": true, "logprobs": 0});
    let requests = prompts.iter().map(|prompt| {
        let sent = server
            .http
            .post(server.url(COMPLETIONS))
            .json(&body(prompt));
        tokio::spawn(sent.send())
    });
    let requests: Vec<_> = requests.collect();
    server.wait_until_running(12).await;
    server.signal("-TERM");
    let mut answers = Vec::new();
    for answer in join_all(requests).await {
        let answer: Value = answer.unwrap().unwrap().json().await.unwrap();
        assert_eq!(answer["usage"]["completion_tokens"], 200, "{answer}");
        answers.push(read(&answer).0);
    }
    assert_eq!(server.exit_code().await, Some(0));
    drop(server);
    let second = Server::start(&flags(&path)).await;
    for (prompt, answer) in prompts.iter().zip(&answers) {
        let again = read(&second.ok(COMPLETIONS, &body(prompt)).await);
        assert_eq!((&again.0, again.1), (answer, 399));
    }
    stop(second).await;
}

#[tokio::test]
async fn damaged_files_are_ignored_and_the_rest_is_used() {
    let path = scratch("damage");
    let mut random = Random::new(8);
    let prompts: Vec<_> = (0..8).map(|_| random.tokens(200)).collect();
    let first = Server::start(&flags(&path)).await;
    let mut fresh = Vec::new();
    for prompt in &prompts {
        fresh.push(ask(&first, prompt).await.0);
    }
    stop(first).await;
    let files = files(&path);
    assert_eq!(files.len(), 8);
    for (damage, file) in files.iter().take(6).enumerate() {
        let mut bytes = fs::read(file).unwrap();
        let half = bytes.len() / 2;
        match damage {
            0 => bytes.truncate(half),
            1 => bytes.clear(),
            2 => bytes[half] ^= 1,
            3 => bytes.extend([0; 9]),
            4 => bytes[32..36].copy_from_slice(&u32::MAX.to_le_bytes()),
            _ => bytes = vec![b'x'; 50_000],
        }
        fs::write(file, bytes).unwrap();
    }
    fs::write(path.join("notes.txt"), "not ours").unwrap();
    fs::create_dir(path.join(files[0].with_extension("d").file_name().unwrap())).unwrap();
    let second = Server::start(&flags(&path)).await;
    assert!(second.has_logged("a file of cached prefixes is ignored"));
    let mut cached = 0;
    for (prompt, fresh) in prompts.iter().zip(&fresh) {
        let (text, found) = ask(&second, prompt).await;
        assert_eq!(text, *fresh);
        // Some prompts begin with the same token.
        cached += u64::from(found > 100);
    }
    assert_eq!(cached, 2);
    second.wait_until_idle().await;
    stop(second).await;
    assert!(path.join("notes.txt").exists());
    assert_eq!(
        self::files(&path).len(),
        8,
        "the damaged ones are written again"
    );
}

#[tokio::test]
async fn the_directory_is_bounded_and_keeps_what_was_used_last() {
    let path = scratch("bound");
    let mut random = Random::new(9);
    let prompts: Vec<_> = (0..6).map(|_| random.tokens(200)).collect();
    let size = {
        let server = Server::start(&flags(&path)).await;
        ask(&server, &prompts[0]).await;
        stop(server).await;
        fs::metadata(&files(&path)[0]).unwrap().len()
    };
    let bound = (3 * size + 100).to_string();
    let server = Server::start(&[&flags(&path)[..], &["--cache-dir-bytes", &bound]].concat()).await;
    for prompt in &prompts {
        ask(&server, prompt).await;
    }
    stop(server).await;
    assert_eq!(files(&path).len(), 3);
    let server = Server::start(&flags(&path)).await;
    for (place, prompt) in prompts.iter().enumerate() {
        assert_eq!(ask(&server, prompt).await.1 > 100, place >= 3, "{place}");
    }
    stop(server).await;
}

/// A directory in which writes fail is as good as a full disk.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_disk_that_takes_nothing_disturbs_no_request() {
    let path = scratch("full");
    let model = super::harness::assemble(MODEL);
    let prompt = Random::new(10).tokens(300);
    // No file of this process may become larger than 64 KiB: writing more fails as on a full disk.
    let binary = hearth().get_program().to_owned();
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\""])
        .arg(binary)
        .args(["--model", model.to_str().unwrap()])
        .args(["--dtype", "f32", "--device", "cpu", "--kv-tokens", "4096"])
        .args(flags(&path));
    let mut server = Server::run(command).await;
    let fresh = ask(&server, &prompt).await.0;
    let started = Instant::now();
    while !server.has_logged("cannot write cached prefixes") {
        assert!(started.elapsed() < PATIENCE, "the failure is not logged");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(ask(&server, &prompt).await.0, fresh);
    server.signal("-TERM");
    assert_eq!(server.exit_code().await, Some(0));
    let left: Vec<_> = fs::read_dir(&path).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "only the lock is there: {left:?}");
}
