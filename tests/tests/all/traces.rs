//! Tests the traces and metrics that an OTLP collector receives, over HTTP and gRPC.

mod events;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::{Value, json};

use super::harness::{CHAT, COMPLETIONS, Server, telemetry_python, workspace};

/// Time limit for actions that take milliseconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// An OTLP collector written in Python (`tests/python/otlp_receiver.py`).
pub struct Collector {
    process: Child,
    pub grpc: u64,
    http: u64,
    lines: std::sync::mpsc::Receiver<Value>,
    pub got: Vec<Value>,
}

impl Collector {
    pub fn start(python: &Path) -> Self {
        let mut process = Command::new(python)
            .arg(workspace().join("tests/python/otlp_receiver.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let json = serde_json::from_str(&line).unwrap();
                if sender.send(json).is_err() {
                    return;
                }
            }
        });
        let ports: Value = lines.recv_timeout(PATIENCE).unwrap();
        Self {
            process,
            grpc: ports["grpc"].as_u64().unwrap(),
            http: ports["http"].as_u64().unwrap(),
            lines,
            got: Vec::new(),
        }
    }

    /// The URL of OTLP over HTTP.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.http)
    }

    /// Reads what the collector receives until `wanted` is true.
    pub fn read_until(&mut self, wanted: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !wanted(self) {
            assert!(Instant::now() < deadline, "{:#?}", self.got);
            let line = self.lines.recv_timeout(PATIENCE);
            self.got.push(line.expect("the collector is still running"));
            // Read everything available before checking again.
            self.got.extend(self.lines.try_iter());
        }
    }

    /// Reads everything that the collector received. Call it after the server has ended.
    fn read(&mut self) {
        // The script ends with its input, and the channel with the script's output.
        drop(self.process.stdin.take());
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.got.push(line),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => panic!("the collector does not end"),
            }
        }
    }

    pub fn spans(&self, name: &str) -> Vec<&Value> {
        let spans = self.got.iter().filter(|line| line["signal"] == "span");
        spans.filter(|span| span["name"] == name).collect()
    }

    fn span(&self, name: &str) -> &Value {
        let spans = self.spans(name);
        assert_eq!(spans.len(), 1, "{name}: {:#?}", self.got);
        spans[0]
    }

    fn metric(&self, name: &str) -> &Value {
        let metrics = self.got.iter().filter(|line| line["signal"] == "metric");
        let found = metrics.rev().find(|metric| metric["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}"))
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // The process has ended already if its script failed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn times(span: &Value) -> (u64, u64) {
    (
        span["start"].as_u64().unwrap(),
        span["end"].as_u64().unwrap(),
    )
}

fn seconds(span: &Value) -> f64 {
    let (start, end) = times(span);
    (end - start) as f64 / 1e9
}

/// Checks that the span `inner` is a child of `outer` and lies within its time.
pub fn assert_within(inner: &Value, outer: &Value) {
    assert_eq!(inner["trace"], outer["trace"], "{inner} {outer}");
    assert_eq!(inner["parent"], outer["id"], "{inner} {outer}");
    let ((from, to), (start, end)) = (times(inner), times(outer));
    assert!(start <= from && from <= to && to <= end, "{inner} {outer}");
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

fn chat() -> Value {
    json!({
        "messages": [{"role": "user", "content": "Hello there"}], "stream": true,
        "max_tokens": 12, "temperature": 0.5, "seed": 7, "ignore_eos": true,
        "user": "ada", "metadata": {"task": "greet"},
    })
}

/// Short export intervals, so that tests do not wait for batches to fill.
pub const SOON: [(&str, &str); 2] = [
    ("OTEL_BSP_SCHEDULE_DELAY", "100"),
    ("OTEL_METRIC_EXPORT_INTERVAL", "300"),
];

/// Streams one chat with a trace context of the caller, waits until the collector has received
/// what is `wanted`, and ends the server.
async fn one_chat(
    server: &mut Server,
    collector: &mut Collector,
    wanted: impl Fn(&Collector) -> bool,
) {
    let request = server
        .http
        .post(server.url(CHAT))
        .header("traceparent", format!("00-{TRACE}-{CALLER}-01"))
        .header("x-request-id", "mine");
    let response = request.json(&chat()).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let mut stream = response.bytes_stream();
    while let Some(bytes) = stream.next().await {
        bytes.unwrap();
    }
    collector.read_until(wanted);
    server.signal("-TERM");
    assert_eq!(server.exit_code().await, Some(0));
    collector.read();
}

/// Whether the collector has the chat's HTTP exchange, its request and all of its tokens.
fn is_received(collector: &Collector) -> bool {
    let mut metrics = collector.got.iter().rev();
    let tokens = metrics.find(|line| line["name"] == "llm.generation_tokens");
    let is_there = |name| !collector.spans(name).is_empty();
    is_there("POST /v1/chat/completions")
        && is_there("llm_request")
        && tokens.is_some_and(|metric| {
            // One point for complete responses, one for streams.
            let points = metric["points"].as_array().unwrap();
            points.iter().any(|point| point["value"] == 12)
        })
}

#[tokio::test]
async fn the_trace_of_a_request_continues_its_callers_and_its_times_add_up() {
    let Some(python) = telemetry_python() else {
        return;
    };
    let mut collector = Collector::start(&python);
    let endpoint = collector.endpoint();
    let gzip = [
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_SERVICE_NAME", "llm"),
    ];
    let environment = [gzip, SOON].concat();
    let mut server = Server::start_with(&["--otlp-endpoint", &endpoint], &environment).await;
    one_chat(&mut server, &mut collector, is_received).await;

    let exchange = collector.span("POST /v1/chat/completions");
    assert_eq!(exchange["trace"], TRACE);
    assert_eq!(exchange["parent"], CALLER);
    assert_eq!(exchange["kind"], 2, "SERVER");
    assert_eq!(exchange["how"], "http+gzip");
    assert_eq!(exchange["resource"]["service.name"], "llm");
    assert_eq!(exchange["attributes"]["http.response.status_code"], 200);
    let request = collector.span("llm_request");
    assert_within(request, exchange);
    let attributes = &request["attributes"];
    for (name, wanted) in [
        ("gen_ai.operation.name", json!("chat")),
        ("gen_ai.request.max_tokens", json!(12)),
        ("gen_ai.request.temperature", json!(0.5)),
        ("gen_ai.request.seed", json!(7)),
        ("user.id", json!("ada")),
        ("metadata.task", json!("greet")),
        ("gen_ai.response.id", json!("mine")),
        ("gen_ai.response.finish_reasons", json!(["length"])),
        ("gen_ai.usage.output_tokens", json!(12)),
        ("gen_ai.usage.completion_tokens", json!(12)),
    ] {
        assert_eq!(attributes[name], wanted, "{name}: {attributes}");
    }
    let part = |name| {
        let span = collector.span(name);
        assert_within(span, request);
        span
    };
    let (queue, prefill, decode) = (part("queue"), part("prefill"), part("decode"));
    part("tokenize");
    part("detokenize");
    assert_eq!(
        times(queue).1,
        times(prefill).0,
        "it starts when it leaves the queue"
    );
    assert_eq!(
        times(prefill).1,
        times(decode).0,
        "it decodes from its first token on"
    );
    let latency = |name: &str| {
        attributes[&format!("gen_ai.latency.{name}")]
            .as_f64()
            .unwrap()
    };
    for (name, span) in [
        ("time_in_queue", queue),
        ("time_in_model_prefill", prefill),
        ("time_in_model_decode", decode),
        ("e2e", request),
    ] {
        let (said, is) = (latency(name), seconds(span));
        assert!((said - is).abs() < 1e-6, "{name}: {said} {is}");
    }
    let inference = latency("time_in_model_prefill") + latency("time_in_model_decode");
    assert!((latency("time_in_model_inference") - inference).abs() < 1e-6);
    assert!(latency("time_to_first_token") + latency("time_in_model_decode") <= latency("e2e"));

    // The metrics of the same request, without colons in their names.
    assert_eq!(collector.metric("llm.generation_tokens")["unit"], "{token}");
    let first = collector.metric("gen_ai.server.time_to_first_token");
    assert_eq!(first["points"][0]["value"], 1, "{first}");
    let metrics = collector
        .got
        .iter()
        .filter(|line| line["signal"] == "metric");
    let names: Vec<_> = metrics
        .map(|metric| metric["name"].as_str().unwrap())
        .collect();
    assert!(
        names.len() > 30 && names.iter().all(|name| !name.contains(':')),
        "{names:?}"
    );
    // Steps have no traces unless detailed traces are on.
    assert!(collector.spans("engine.step").is_empty());
}

#[tokio::test]
async fn with_detailed_traces_each_step_is_a_trace_linked_to_its_requests() {
    let Some(python) = telemetry_python() else {
        return;
    };
    let mut collector = Collector::start(&python);
    let endpoint = format!("127.0.0.1:{}", collector.grpc);
    let flags = [
        "--otlp-endpoint",
        &endpoint,
        "--otlp-protocol",
        "grpc",
        "--collect-detailed-traces",
        "all",
    ];
    let mut server = Server::start_with(&flags, &SOON).await;
    // The step that computes the prompt samples the first of the twelve tokens.
    let steps = |collector: &Collector| {
        let executed = collector.spans("engine.step").len() >= 12;
        executed && is_received(collector)
    };
    one_chat(&mut server, &mut collector, steps).await;

    let request = collector.span("llm_request");
    assert_eq!(request["how"], "grpc");
    let steps = collector.spans("engine.step");
    assert_eq!(steps.len(), 12, "{:#?}", collector.got);
    let children = |name: &str, step: &Value| {
        let spans = collector.spans(name).into_iter();
        let of_step: Vec<_> = spans
            .filter(|span| span["parent"] == step["id"])
            .cloned()
            .collect();
        assert_eq!(of_step.len(), 1, "{name}");
        assert_within(&of_step[0], step);
        of_step[0].clone()
    };
    let (mut scheduler, mut forward, mut execute) = (0.0, 0.0, 0.0);
    for step in &steps {
        assert_eq!(step["parent"], "");
        assert_ne!(step["trace"], request["trace"]);
        let links = step["links"].as_array().unwrap();
        assert_eq!(links.len(), 1, "{step}");
        assert_eq!(
            (&links[0]["trace"], &links[0]["id"]),
            (&request["trace"], &request["id"])
        );
        let parts = ["scheduler", "forward", "execute"].map(|name| children(name, step));
        let [chosen, computed, executed] = &parts;
        assert_eq!(times(chosen).1, times(executed).0);
        assert_eq!(times(executed).0, times(computed).0);
        assert!(times(computed).1 <= times(executed).1);
        assert_eq!(times(executed).1, times(step).1);
        scheduler += seconds(chosen);
        forward += seconds(computed);
        execute += seconds(executed);
    }
    for (name, sum) in [
        ("time_in_scheduler", scheduler),
        ("time_in_model_forward", forward),
        ("time_in_model_execute", execute),
    ] {
        let said = request["attributes"][&format!("gen_ai.latency.{name}")]
            .as_f64()
            .unwrap();
        assert!((said - sum).abs() < 1e-5, "{name}: {said} {sum}");
    }
}

#[tokio::test]
async fn with_detailed_traces_a_long_prompt_has_a_prefill_span_per_chunk_and_a_cache_hit_event() {
    let Some(python) = telemetry_python() else {
        return;
    };
    let mut collector = Collector::start(&python);
    let endpoint = collector.endpoint();
    let detailed = [
        "--collect-detailed-traces",
        "all",
        "--max-batch-tokens",
        "32",
    ];
    let flags = [&["--otlp-endpoint", &endpoint][..], &detailed].concat();
    let mut server = Server::start_with(&flags, &SOON).await;
    let body = |prompt: Vec<u32>| json!({"prompt": prompt, "max_tokens": 2, "ignore_eos": true});
    let shared = vec![65; 20];
    server.ok(COMPLETIONS, &body(shared.clone())).await;
    let longer = [shared, (0..80).map(|i| 66 + i % 9).collect()].concat();
    server.ok(COMPLETIONS, &body(longer)).await;
    collector.read_until(|collector| collector.spans("llm_request").len() == 2);
    server.signal("-TERM");
    assert_eq!(server.exit_code().await, Some(0));
    collector.read();

    let requests = collector.spans("llm_request");
    let events = |request: &Value| -> Vec<Value> {
        let events = request["events"].as_array().unwrap();
        events.iter().map(|event| event["name"].clone()).collect()
    };
    let (first, second): (Vec<_>, Vec<_>) = requests
        .into_iter()
        .partition(|request| events(request).is_empty());
    let ([first], [second]) = (&first[..], &second[..]) else {
        panic!("{first:#?} {second:#?}");
    };
    assert_eq!(events(second), ["cache_hit"]);
    assert_eq!(second["events"][0]["attributes"]["llm.cached_tokens"], 20);
    let chunks = |request: &Value| -> Vec<Value> {
        let spans = collector.spans("prefill").into_iter();
        let mut chunks: Vec<_> = spans
            .filter(|span| span["parent"] == request["id"])
            .cloned()
            .collect();
        chunks.sort_by_key(times);
        chunks
    };
    assert_eq!(chunks(first).len(), 1);
    let chunks = chunks(second);
    let tokens = chunks
        .iter()
        .map(|chunk| chunk["attributes"]["llm.prefill.computed_tokens"].clone());
    assert_eq!(tokens.collect::<Vec<_>>(), [32, 32, 16]);
    for pair in chunks.windows(2) {
        assert_eq!(times(&pair[0]).1, times(&pair[1]).0, "{chunks:#?}");
    }
    let said = second["attributes"]["gen_ai.latency.time_in_model_prefill"].as_f64();
    let sum: f64 = chunks.iter().map(seconds).sum();
    assert!((said.unwrap() - sum).abs() < 1e-6, "{said:?} {sum}");
}

#[tokio::test]
async fn a_malformed_trace_context_begins_a_new_trace() {
    let Some(python) = telemetry_python() else {
        return;
    };
    let mut collector = Collector::start(&python);
    let endpoint = collector.endpoint();
    let mut server = Server::start_with(&["--otlp-endpoint", &endpoint], &[]).await;
    let body = json!({"prompt": "a", "max_tokens": 1});
    let malformed = [
        "",
        "00",
        "00-0-0-01",
        "zz-é",
        "00-00000000000000000000000000000000-0000000000000000-01",
    ];
    for given in malformed {
        let request = server
            .http
            .post(server.url(COMPLETIONS))
            .header("traceparent", given);
        assert_eq!(
            request.json(&body).send().await.unwrap().status(),
            200,
            "{given}"
        );
    }
    // Spans that were not exported before are exported during the shutdown.
    server.wait_until_idle().await;
    server.signal("-TERM");
    assert_eq!(server.exit_code().await, Some(0));
    collector.read();
    let exchanges = collector.spans("POST /v1/completions");
    assert_eq!(exchanges.len(), malformed.len());
    assert!(
        exchanges.iter().all(|span| span["parent"] == ""),
        "{exchanges:#?}"
    );
}

#[tokio::test]
async fn an_unreachable_collector_delays_neither_requests_nor_the_shutdown() {
    // One collector does not exist; the other accepts connections and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    for (endpoint, protocol) in [
        ("http://127.0.0.1:9", "http"),
        ("http://127.0.0.1:9", "grpc"),
        (&silent, "http"),
    ] {
        let flags = ["--otlp-endpoint", endpoint, "--otlp-protocol", protocol];
        let mut server = Server::start_with(&flags, &SOON).await;
        let body = json!({"prompt": "a", "max_tokens": 4, "temperature": 0});
        let started = Instant::now();
        for _ in 0..20 {
            server.ok(COMPLETIONS, &body).await;
        }
        // An exporter waits ten seconds for its collector. Twenty requests that waited as well
        // would take minutes.
        assert!(started.elapsed() < PATIENCE, "{endpoint} {protocol}");
        server.wait_until_idle().await;
        let started = Instant::now();
        server.signal("-TERM");
        assert_eq!(server.exit_code().await, Some(0), "{endpoint} {protocol}");
        // The shutdown gives the last telemetry three seconds, whatever the exporters' timeouts.
        println!("the end took {:?}", started.elapsed());
        assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    }
}
