//! Starts a `hearth` process for one test and talks to it.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hearth_client::Client;
use reqwest::header::HeaderMap;
use serde_json::Value;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, oneshot};

use super::{MODEL, binary, model};

/// Time limit for actions that take milliseconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time limit for a start, in which lavapipe compiles all kernels of a GPU on a shared core.
const START: Duration = Duration::from_secs(300);
/// Number of log lines that a failed test prints.
const SHOWN_LINES: usize = 100;

/// Tests run at the same time, except those that measure time or use the whole machine.
static MACHINE: RwLock<()> = RwLock::const_new(());

#[expect(dead_code, reason = "held for as long as the server runs")]
enum Share {
    Some(RwLockReadGuard<'static, ()>),
    All(RwLockWriteGuard<'static, ()>),
}

type Log = Arc<Mutex<VecDeque<String>>>;

/// A running server. Dropping it kills the process, and prints the log if the test failed.
pub struct Server {
    process: Child,
    log: Log,
    url: String,
    /// For complete responses, including errors.
    pub http: reqwest::Client,
    /// For streamed responses.
    pub client: Client,
    /// From the start of the process to the first 200 of `/ready`.
    pub ready_after: Duration,
    _share: Share,
}

/// A complete response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Server {
    /// Serves the golden checkpoint `name` in f32 on the CPU.
    pub async fn of(name: &str, flags: &[&str]) -> Self {
        Self::spawn(
            Self::command(name, flags),
            Share::Some(MACHINE.read().await),
        )
        .await
    }

    /// Starts the server for a test that measures time or uses the whole machine. No other test
    /// with a server runs at the same time.
    pub async fn undisturbed(flags: &[&str]) -> Self {
        Self::spawn(
            Self::command(MODEL, flags),
            Share::All(MACHINE.write().await),
        )
        .await
    }

    fn command(name: &str, flags: &[&str]) -> Command {
        Self::command_on("cpu", name, flags)
    }

    fn command_on(device: &str, name: &str, flags: &[&str]) -> Command {
        let model = model::assemble(name);
        let mut command = binary::hearth();
        command
            .arg("--model")
            .arg(model)
            .args(["--dtype", "f32", "--device", device]);
        if !flags.contains(&"--kv-tokens") {
            command.args(["--kv-tokens", "131072"]);
        }
        command.args(flags);
        command
    }

    /// Serves [`MODEL`], for tests that need no particular checkpoint.
    pub async fn start(flags: &[&str]) -> Self {
        Self::of(MODEL, flags).await
    }

    /// Serves [`MODEL`] with environment variables.
    pub async fn start_with(flags: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = Self::command(MODEL, flags);
        command.envs(environment.iter().copied());
        Self::spawn(command, Share::Some(MACHINE.read().await)).await
    }

    /// Serves [`MODEL`] on another device than the CPU, with compiled kernels stored in `cache`.
    pub async fn on(device: &str, flags: &[&str], cache: &Path) -> Self {
        Self::of_on(device, MODEL, flags, cache).await
    }

    /// Serves the golden model `name` on another device than the CPU, as [`Self::on`] does.
    pub async fn of_on(device: &str, name: &str, flags: &[&str], cache: &Path) -> Self {
        let mut command = Self::command_on(device, name, flags);
        command.env("XDG_CACHE_HOME", cache);
        Self::spawn(command, Share::Some(MACHINE.read().await)).await
    }

    /// Serves the embedded model on the CPU.
    pub async fn embedded(flags: &[&str]) -> Self {
        let mut command = binary::hearth();
        command.args(["--device", "cpu"]).args(flags);
        Self::spawn(command, Share::Some(MACHINE.read().await)).await
    }

    /// Serves the embedded model on another device, as [`Self::on`] does.
    pub async fn embedded_on(device: &str, flags: &[&str], cache: &Path) -> Self {
        let mut command = binary::hearth();
        command.args(["--device", device]).args(flags);
        command.env("XDG_CACHE_HOME", cache);
        Self::spawn(command, Share::Some(MACHINE.read().await)).await
    }

    /// Serves a GGUF file of the golden models on the CPU.
    pub async fn gguf(name: &str) -> Self {
        let path = binary::workspace().join("model/goldens/gguf").join(name);
        let mut command = binary::hearth();
        command.arg("--model").arg(path).args(["--device", "cpu"]);
        Self::spawn(command, Share::Some(MACHINE.read().await)).await
    }

    /// Starts the server with a command of the test's own.
    pub async fn run(command: Command) -> Self {
        Self::spawn(command, Share::Some(MACHINE.read().await)).await
    }

    async fn spawn(mut command: Command, share: Share) -> Self {
        command.args(["--port", "0", "--log-format", "json"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let started = Instant::now();
        let mut process = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (log, port) = read_log(&mut process);
        let port = match tokio::time::timeout(START, port).await {
            Ok(Ok(port)) => port,
            outcome => {
                let _ = process.kill();
                let lines = log.lock().unwrap().make_contiguous().join("\n");
                panic!("{command:?} is not ready ({outcome:?}):\n{lines}");
            }
        };
        let url = format!("http://127.0.0.1:{port}");
        let http = reqwest::Client::new();
        while !http
            .get(format!("{url}/ready"))
            .send()
            .await
            .unwrap()
            .status()
            .is_success()
        {
            assert!(started.elapsed() < START, "/ready stays 503");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Self {
            client: Client::new(&url).unwrap(),
            ready_after: started.elapsed(),
            process,
            log,
            url,
            http,
            _share: share,
        }
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    pub fn address(&self) -> &str {
        &self.url["http://".len()..]
    }

    /// True if one of the last lines of the log contains `text`.
    pub fn has_logged(&self, text: &str) -> bool {
        let log = self.log.lock().unwrap();
        log.iter().any(|line| line.contains(text))
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends `body` to `path` and returns the response, whatever its status is.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_raw(path, body.to_string()).await
    }

    /// Sends a body that need not be JSON.
    pub async fn post_raw(&self, path: &str, body: impl Into<reqwest::Body>) -> Answer {
        let request = self
            .http
            .post(self.url(path))
            .header("content-type", "application/json");
        let response = request.body(body).send().await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.json().await.unwrap();
        Answer {
            status,
            headers,
            body,
        }
    }

    /// Sends `body` to `path` and returns the response's body. The status must be 200.
    pub async fn ok(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body).await;
        assert_eq!(answer.status, 200, "{body}: {}", answer.body);
        answer.body
    }

    /// The engine's counters.
    pub async fn stats(&self) -> Value {
        let info = self.client.get("/server_info").await.unwrap();
        info["internal_states"][0].clone()
    }

    pub async fn stat(&self, name: &str) -> u64 {
        self.stats().await[name].as_u64().unwrap()
    }

    /// Waits until at least `count` sequences are running.
    pub async fn wait_until_running(&self, count: u64) {
        let deadline = Instant::now() + PATIENCE;
        while self.stat("running").await < count {
            assert!(
                Instant::now() < deadline,
                "never {count} running: {}",
                self.stats().await
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until no request runs or waits, checks that every KV slot is accounted for, and
    /// returns the time that it took.
    pub async fn wait_until_idle(&self) -> Duration {
        let started = Instant::now();
        loop {
            let stats = self.stats().await;
            if (stats["running"].as_u64(), stats["waiting"].as_u64()) == (Some(0), Some(0)) {
                check_slots(&stats["kv"]);
                return started.elapsed();
            }
            assert!(started.elapsed() < PATIENCE, "never idle: {stats}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Resident memory in bytes, if the system provides it.
    pub fn memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([name, &self.pid().to_string()])
            .status();
        assert!(sent.unwrap().success(), "kill {name}");
    }

    /// Waits for the end of the process and returns its exit code, `None` if a signal ended it.
    pub async fn exit_code(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the process does not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Checks that `free + cached + held` is the total, and that an idle server holds no slots.
fn check_slots(kv: &Value) {
    let slots = |name: &str| kv[name].as_u64().unwrap();
    assert_eq!(
        slots("free") + slots("cached") + slots("held"),
        slots("total"),
        "{kv}"
    );
    assert_eq!(
        (slots("held"), slots("protected")),
        (0, 0),
        "slots are held without a request: {kv}"
    );
}

/// Collects the last lines of the log, and reports the port when the server is ready.
fn read_log(process: &mut Child) -> (Log, oneshot::Receiver<u16>) {
    let lines = BufReader::new(process.stderr.take().expect("it is piped")).lines();
    let log = Log::default();
    let (report, port) = oneshot::channel();
    let kept = Arc::clone(&log);
    std::thread::spawn(move || {
        let mut report = Some(report);
        for line in lines.map_while(Result::ok) {
            let json: Value = serde_json::from_str(&line).unwrap_or_default();
            if json["message"] == "ready"
                && let (Some(port), Some(report)) = (json["port"].as_u64(), report.take())
            {
                // The receiver is gone if the test has failed already.
                let _ = report.send(u16::try_from(port).expect("a port"));
            }
            let mut kept = kept.lock().unwrap();
            if kept.len() == SHOWN_LINES {
                kept.pop_front();
            }
            kept.push_back(line);
        }
    });
    (log, port)
}

impl Drop for Server {
    fn drop(&mut self) {
        let ended = self.process.try_wait();
        // The process has ended already in tests that end it.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            let lines = self
                .log
                .lock()
                .map(|mut log| log.make_contiguous().join("\n"));
            eprintln!("--- the server's log (exit before the end of the test: {ended:?})");
            eprintln!("{}\n---", lines.unwrap_or_default());
        }
    }
}
