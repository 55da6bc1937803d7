//! Prometheus itself scrapes a server under load, and every query of published dashboards has an
//! answer.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::{Value, json};

use super::harness::{CHAT, COMPLETIONS, Server, workspace};
use super::metrics::{PATIENCE, six_tokens};

/// The `prometheus` beside `HEARTH_PROMTOOL`, as in Debian's package, or the one on the PATH.
/// Prints a notice and returns `None` if there is none.
fn binary() -> Option<PathBuf> {
    let promtool = std::env::var_os("HEARTH_PROMTOOL").map(PathBuf::from);
    let required = promtool.is_some();
    let path = promtool.map_or_else(|| "prometheus".into(), |p| p.with_file_name("prometheus"));
    match Command::new(&path).arg("--version").output() {
        Ok(output) if output.status.success() => Some(path),
        outcome => {
            assert!(!required, "{}: {outcome:?}", path.display());
            eprintln!("SKIPPED: there is no prometheus");
            None
        }
    }
}

struct Prometheus {
    process: Child,
    url: String,
    http: reqwest::Client,
    directory: PathBuf,
}

impl Prometheus {
    /// Starts Prometheus, which scrapes `server` four times a second and evaluates our rules.
    async fn start(binary: &Path, server: &Server) -> Self {
        let port = {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            free.local_addr().unwrap().port()
        };
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("prometheus-{port}"));
        fs::create_dir_all(&directory).unwrap();
        // The rules of the repository, with a shorter interval.
        let rules = fs::read_to_string(workspace().join("otel/rules/recording.yml")).unwrap();
        let rules = rules.replace("interval: 15s", "interval: 250ms");
        fs::write(directory.join("rules.yml"), rules).unwrap();
        let config = json!({
            "global": {"scrape_interval": "250ms", "scrape_timeout": "250ms"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{
                "job_name": "hearth", "static_configs": [{"targets": [server.address()]}],
            }],
        });
        // JSON is YAML.
        fs::write(directory.join("prometheus.yml"), config.to_string()).unwrap();
        let log = fs::File::create(directory.join("log")).unwrap();
        let process = Command::new(binary)
            .arg(format!(
                "--config.file={}",
                directory.join("prometheus.yml").display()
            ))
            .arg(format!(
                "--storage.tsdb.path={}",
                directory.join("data").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let url = format!("http://127.0.0.1:{port}");
        let http = reqwest::Client::new();
        let started = Self {
            process,
            url,
            http,
            directory,
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ready = started
                .http
                .get(format!("{}/-/ready", started.url))
                .send()
                .await;
            if ready.is_ok_and(|answer| answer.status().is_success()) {
                return started;
            }
            let log = || fs::read_to_string(started.directory.join("log")).unwrap();
            assert!(Instant::now() < deadline, "{}", log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn get(&self, path: &str, query: &[(&str, &str)]) -> Value {
        let request = self
            .http
            .get(format!("{}/api/v1/{path}", self.url))
            .query(query);
        let answer: Value = request.send().await.unwrap().json().await.unwrap();
        assert_eq!(answer["status"], "success", "{query:?}: {answer}");
        answer["data"].clone()
    }

    /// Whether `query` returns a series with a number.
    async fn answers(&self, query: &str) -> bool {
        let data = self.get("query", &[("query", query)]).await;
        let series = data["result"].as_array().unwrap();
        series.iter().any(|one| {
            let value = one["value"][1].as_str().unwrap();
            !value.contains("NaN")
        })
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // The process has ended already if it could not start.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The queries of a file in `tests/dashboards`, with Grafana's variables substituted.
fn queries(file: &str) -> Vec<String> {
    let text = fs::read_to_string(workspace().join("tests/dashboards").join(file)).unwrap();
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(substituted).collect()
}

/// The queries of our own dashboard.
fn our_queries() -> Vec<String> {
    fn collect(value: &Value, into: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                into.extend(map.get("expr").and_then(Value::as_str).map(substituted));
                map.values().for_each(|value| collect(value, into));
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, into)),
            _ => {}
        }
    }
    let text = fs::read_to_string(workspace().join("otel/dashboards/hearth.json")).unwrap();
    let mut found = Vec::new();
    collect(&serde_json::from_str(&text).unwrap(), &mut found);
    found
}

fn substituted(query: &str) -> String {
    let mut query = query.to_owned();
    for (variable, value) in [
        ("$__rate_interval", "1m"),
        ("$__interval", "1m"),
        ("$__range", "5m"),
        ("$model_name", "llama-llama3-tied"),
        ("$Deployment_id", "llama-llama3-tied"),
        ("$model", ".*"),
        ("$instance", ".*"),
    ] {
        query = query.replace(variable, value);
    }
    query
}

/// Sends requests of several kinds: complete responses and streams, cached prompts, an error.
async fn some_work(server: &Server) {
    let prompt = "the same beginning of every one of these prompts";
    server.ok(COMPLETIONS, &six_tokens(prompt)).await;
    let mut copies = six_tokens(prompt);
    (copies["n"], copies["stream"]) = (json!(2), json!(true));
    let request = server.http.post(server.url(COMPLETIONS)).json(&copies);
    let mut stream = request.send().await.unwrap().bytes_stream();
    while let Some(bytes) = stream.next().await {
        bytes.unwrap();
    }
    let chat = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3});
    server.ok(CHAT, &chat).await;
    assert_eq!(
        server.post(COMPLETIONS, &json!({"prompt": 7})).await.status,
        400
    );
}

#[tokio::test]
async fn every_query_of_the_published_dashboards_has_an_answer_in_prometheus() {
    let Some(binary) = binary() else {
        return;
    };
    let server = Server::start(&["--metrics-names", "vllm,sglang,otel,plain"]).await;
    let prometheus = Prometheus::start(&binary, &server).await;
    let mut unanswered: Vec<String> = queries("vllm.promql");
    assert_eq!(unanswered.len(), 67, "{unanswered:#?}");
    unanswered.extend(queries("sglang.promql"));
    let ours = our_queries();
    assert!(ours.len() > 20, "{ours:#?}");
    unanswered.extend(ours);
    for rule in [
        "hearth:prefix_cache_hit_rate:5m",
        "hearth:time_to_first_token_seconds:p99_5m",
        "hearth:inter_token_latency_seconds:p99_5m",
        "hearth:engine_busy:ratio_1m",
        "hearth:saturation:ratio",
    ] {
        unanswered.push(rule.to_owned());
    }
    let all = unanswered.len();
    let deadline = Instant::now() + PATIENCE;
    // Rates need a scrape before the requests and one after them.
    while !unanswered.is_empty() {
        assert!(Instant::now() < deadline, "no answer to {unanswered:#?}");
        some_work(&server).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let mut still = Vec::new();
        for query in unanswered {
            if !prometheus.answers(&query).await {
                still.push(query);
            }
        }
        unanswered = still;
    }
    println!("{all} queries were answered");

    // The lists of models that dashboards offer.
    for metric in ["vllm:generation_tokens_total", "sglang:num_running_reqs"] {
        let data = prometheus
            .get("label/model_name/values", &[("match[]", metric)])
            .await;
        assert_eq!(data, json!(["llama-llama3-tied"]), "{metric}");
    }
    let targets = prometheus.get("targets", &[]).await;
    let target = &targets["activeTargets"][0];
    assert_eq!(
        (&target["health"], &target["lastError"]),
        (&json!("up"), &json!("")),
        "{target}"
    );
    // Prometheus asks for OpenMetrics by name, and checks that the page has its end mark.
    let scraped = server.http.get(server.url("/metrics"));
    let accept = "application/openmetrics-text;version=1.0.0";
    let page = scraped.header("accept", accept).send().await.unwrap();
    assert!(page.text().await.unwrap().ends_with("# EOF\n"));
}
