//! Sends traces through rotel, an independent collector from PyPI.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::json;

use super::harness::{COMPLETIONS, Server, free_port, telemetry_python};
use super::traces::{Collector, SOON, assert_within};

struct Rotel(Child);

impl Drop for Rotel {
    fn drop(&mut self) {
        // The process has ended already if it could not start.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program in the package. Prints a notice and returns `None` if it does not run here.
fn binary(python: &Path) -> Option<PathBuf> {
    let script =
        "import pathlib, rotel; print(pathlib.Path(rotel.__file__).with_name('rotel-agent'))";
    let output = Command::new(python).args(["-c", script]).output().unwrap();
    let path = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    let runs = Command::new(&path).arg("--version").output();
    if runs.is_ok_and(|output| output.status.success()) {
        return Some(path);
    }
    eprintln!("SKIPPED: there is no rotel-agent that runs here");
    None
}

#[tokio::test]
async fn a_trace_arrives_through_rotel_over_http_and_grpc() {
    let Some(python) = telemetry_python() else {
        return;
    };
    let Some(binary) = binary(&python) else {
        return;
    };
    let mut collector = Collector::start(&python);
    let (grpc, http) = (free_port(), free_port());
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("rotel-{grpc}"));
    std::fs::create_dir_all(&directory).unwrap();
    let rotel = Command::new(binary)
        .args([
            "start",
            "--otlp-grpc-endpoint",
            &format!("127.0.0.1:{grpc}"),
        ])
        .args(["--otlp-http-endpoint", &format!("127.0.0.1:{http}")])
        .args(["--exporter", "otlp", "--batch-timeout", "200ms"])
        .arg(format!(
            "--otlp-exporter-endpoint=http://127.0.0.1:{}",
            collector.grpc
        ))
        .current_dir(&directory)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let rotel = Rotel(rotel.unwrap());
    for (protocol, port, count) in [("http", http, 1), ("grpc", grpc, 2)] {
        let endpoint = format!("http://127.0.0.1:{port}");
        let flags = ["--otlp-endpoint", &endpoint, "--otlp-protocol", protocol];
        let server = Server::start_with(&flags, &SOON).await;
        server
            .ok(
                COMPLETIONS,
                &json!({"prompt": "a", "max_tokens": 3, "ignore_eos": true}),
            )
            .await;
        collector.read_until(|collector| {
            let metrics = collector
                .got
                .iter()
                .filter(|line| line["signal"] == "metric");
            let counters = metrics.filter(|line| line["name"] == "llm.generation_tokens");
            collector.spans("POST /v1/completions").len() == count
                && collector.spans("llm_request").len() == count
                && counters.count() > 0
        });
        collector.got.retain(|line| line["signal"] == "span");
    }
    drop(rotel);
    let exchanges = collector.spans("POST /v1/completions");
    for request in collector.spans("llm_request") {
        let exchange = exchanges
            .iter()
            .find(|span| span["id"] == request["parent"]);
        assert_within(request, exchange.unwrap());
        assert_eq!(request["how"], "grpc");
        assert_eq!(request["attributes"]["gen_ai.usage.output_tokens"], 3);
    }
    let _ = std::fs::remove_dir_all(directory);
}
