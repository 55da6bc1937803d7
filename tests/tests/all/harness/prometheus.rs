//! Runs Prometheus, and a collector that takes OTLP and writes to it.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::workspace;

/// Time limit for actions that take milliseconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The `prometheus` beside `HEARTH_PROMTOOL`, as in Debian's package, or the one on the PATH.
/// Prints a notice and returns `None` if there is none.
pub fn prometheus() -> Option<PathBuf> {
    let promtool = std::env::var_os("HEARTH_PROMTOOL").map(PathBuf::from);
    let required = promtool.is_some();
    let path = promtool.map_or_else(|| "prometheus".into(), |p| p.with_file_name("prometheus"));
    runs(path, "--version", required)
}

/// The collector `vmagent` in `HEARTH_VMAGENT`, or the one on the PATH. Prints a notice and
/// returns `None` if there is none.
fn vmagent() -> Option<PathBuf> {
    let given = std::env::var_os("HEARTH_VMAGENT").map(PathBuf::from);
    let required = given.is_some();
    runs(
        given.unwrap_or_else(|| "vmagent".into()),
        "-version",
        required,
    )
}

fn runs(path: PathBuf, flag: &str, required: bool) -> Option<PathBuf> {
    match Command::new(&path).arg(flag).output() {
        Ok(output) if output.status.success() => Some(path),
        outcome => {
            assert!(!required, "{}: {outcome:?}", path.display());
            eprintln!("SKIPPED: there is no {}", path.display());
            None
        }
    }
}

/// A port that nobody listens on, another one with each call. The system gives sockets that ask for any port
/// one from 32,768 on, so that no other test takes this one before it is used.
pub fn free_port() -> u16 {
    const FIRST: u32 = 12_000;
    const COUNT: u32 = 20_000;
    static CALLS: AtomicU32 = AtomicU32::new(0);
    loop {
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + (std::process::id() + call) % COUNT;
        let port = u16::try_from(port).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A process with a directory of its own. Dropping it kills the process and removes the directory.
struct Running {
    process: Child,
    directory: PathBuf,
}

impl Running {
    /// Starts `command` with its log in `directory`, which exists.
    fn start(command: &mut Command, directory: PathBuf) -> Self {
        let log = fs::File::create(directory.join("log")).unwrap();
        let process = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        Self { process, directory }
    }

    /// Waits until `url` answers with success.
    async fn ready(&self, url: &str) {
        let (http, deadline) = (reqwest::Client::new(), Instant::now() + PATIENCE);
        loop {
            let answer = http.get(url).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return;
            }
            let log = || fs::read_to_string(self.directory.join("log")).unwrap();
            assert!(Instant::now() < deadline, "{}", log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process has ended already if it could not start.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn directory(name: &str, port: u16) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{port}"));
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// A running Prometheus.
pub struct Prometheus {
    _running: Running,
    url: String,
    http: reqwest::Client,
}

impl Prometheus {
    /// Starts the Prometheus at `binary`, which scrapes the addresses `targets` four times a second,
    /// evaluates our rules as often, and takes what collectors write to it.
    pub async fn start(binary: &Path, targets: &[&str]) -> Self {
        let port = free_port();
        let directory = directory("prometheus", port);
        // The rules of the repository, with a shorter interval.
        let rules = fs::read_to_string(workspace().join("otel/rules/recording.yml")).unwrap();
        let rules = rules.replace("interval: 15s", "interval: 250ms");
        fs::write(directory.join("rules.yml"), rules).unwrap();
        let config = json!({
            "global": {"scrape_interval": "250ms", "scrape_timeout": "250ms"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{
                "job_name": "hearth", "static_configs": [{"targets": targets}],
            }],
        });
        let file = directory.join("prometheus.yml");
        // JSON is YAML.
        fs::write(&file, config.to_string()).unwrap();
        let mut command = Command::new(binary);
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                directory.join("data").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--web.enable-remote-write-receiver")
            .arg("--enable-feature=exemplar-storage");
        let running = Running::start(&mut command, directory);
        let url = format!("http://127.0.0.1:{port}");
        running.ready(&format!("{url}/-/ready")).await;
        Self {
            _running: running,
            url,
            http: reqwest::Client::new(),
        }
    }

    /// The `data` of the answer of a path of `/api/v1`.
    pub async fn get(&self, path: &str, query: &[(&str, &str)]) -> Value {
        let request = self
            .http
            .get(format!("{}/api/v1/{path}", self.url))
            .query(query);
        let answer: Value = request.send().await.unwrap().json().await.unwrap();
        assert_eq!(answer["status"], "success", "{query:?}: {answer}");
        answer["data"].clone()
    }

    /// The series that `query` returns.
    pub async fn series(&self, query: &str) -> Vec<Value> {
        let data = self.get("query", &[("query", query)]).await;
        data["result"].as_array().unwrap().clone()
    }

    /// The part of `queries` that returns no series with a number.
    pub async fn unanswered(&self, queries: Vec<String>) -> Vec<String> {
        let mut unanswered = Vec::new();
        for query in queries {
            let series = self.series(&query).await;
            let mut values = series.iter().map(|one| one["value"][1].as_str().unwrap());
            if !values.any(|value| !value.contains("NaN")) {
                unanswered.push(query);
            }
        }
        unanswered
    }
}

/// A running collector, which takes OTLP over HTTP and writes to Prometheus with the names and
/// labels of OpenTelemetry's translation.
pub struct Collector(#[expect(dead_code, reason = "held for as long as it runs")] Running);

impl Collector {
    /// True if there is one that can be started.
    pub fn exists() -> bool {
        vmagent().is_some()
    }

    /// The value of `--otlp-endpoint` for a collector on `port`.
    pub fn endpoint(port: u16) -> String {
        format!("http://127.0.0.1:{port}/opentelemetry")
    }

    /// Starts a collector on `port` that writes to `prometheus`.
    pub async fn start(port: u16, prometheus: &Prometheus) -> Self {
        let directory = directory("vmagent", port);
        let mut command = Command::new(vmagent().unwrap());
        // The translation of resource attributes, which this collector leaves to its configuration.
        let labels = workspace().join("otel/compose/vmagent-labels.yml");
        command
            .arg(format!("-httpListenAddr=127.0.0.1:{port}"))
            .arg("-opentelemetry.usePrometheusNaming")
            .arg(format!("-remoteWrite.url={}/api/v1/write", prometheus.url))
            .arg("-remoteWrite.forcePromProto")
            .arg("-remoteWrite.flushInterval=100ms")
            .arg(format!(
                "-remoteWrite.tmpDataPath={}",
                directory.join("data").display()
            ))
            .arg(format!("-remoteWrite.relabelConfig={}", labels.display()));
        let running = Running::start(&mut command, directory);
        running
            .ready(&format!("http://127.0.0.1:{port}/health"))
            .await;
        Self(running)
    }
}
