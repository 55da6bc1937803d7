//! One trace shows the router, the prefill server, the transfer and the decode server.

use serde_json::{Value, json};

use super::disaggregation::free_port;
use super::disaggregation_routers::Front;
use super::harness::{CHAT, Server, hearth, telemetry_python};
use super::traces::{Collector, SOON, assert_within};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

/// The span of the names that is a child of `parent`, of which there must be one.
fn child<'a>(collector: &'a Collector, name: &str, parent: &Value) -> &'a Value {
    let mut spans = collector.spans(name);
    spans.retain(|span| span["parent"] == parent["id"]);
    assert_eq!(spans.len(), 1, "{name}: {:#?}", collector.got);
    spans[0]
}

#[tokio::test]
async fn one_trace_shows_router_prefill_transfer_and_decode() {
    let Some(python) = telemetry_python() else {
        return;
    };
    let mut collector = Collector::start(&python);
    let endpoint = collector.endpoint();
    let bootstrap = free_port();
    let port = bootstrap.to_string();
    let otlp = ["--otlp-endpoint", &endpoint, "--metrics-names", "sglang"];
    let mode = |mode| {
        let own = [
            "--disaggregation-mode",
            mode,
            "--disaggregation-bootstrap-port",
            &port,
        ];
        [&own[..], &otlp].concat()
    };
    let prefill = Server::start_with(&mode("prefill"), &SOON).await;
    let decode = Server::start_with(&mode("decode"), &SOON).await;
    let mut command = hearth();
    command
        .args(["router", "--otlp-endpoint", &endpoint])
        .envs(SOON);
    let front = Front::of_pair(command, &prefill, bootstrap, &decode).await;

    let body = json!({"messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 6,
        "temperature": 0, "ignore_eos": true, "stream": true});
    let request = front.http.post(format!("{}{CHAT}", front.url));
    let request = request.header("traceparent", format!("00-{TRACE}-{CALLER}-01"));
    let response = request.json(&body).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(response.text().await.unwrap().contains("[DONE]"));
    let name = "POST /v1/chat/completions";
    // The router's own, one for each worker, and the workers' own.
    collector.read_until(|collector| {
        collector.spans(name).len() == 5
            && collector.spans("kv_transfer").len() == 2
            && collector.spans("llm_request").len() == 2
    });

    let spans = collector.spans(name);
    let of_service = |service: &str, kind: u64| {
        let mut found = spans.clone();
        found.retain(|s| s["resource"]["service.name"] == service && s["kind"] == kind);
        found
    };
    let (server, client) = (2, 3);
    let [exchange] = of_service("hearth-router", server)[..] else {
        panic!("{spans:#?}");
    };
    assert_eq!(
        (&exchange["trace"], &exchange["parent"]),
        (&json!(TRACE), &json!(CALLER))
    );
    assert_eq!(exchange["attributes"]["http.response.status_code"], 200);
    let to_workers = of_service("hearth-router", client);
    assert_eq!(to_workers.len(), 2, "{spans:#?}");
    let mut moved = Vec::new();
    for (role, direction) in [("prefill", "send"), ("decode", "receive")] {
        let mut leg = to_workers.clone();
        leg.retain(|span| span["attributes"]["hearth.worker.role"] == role);
        assert_eq!(leg.len(), 1, "{to_workers:#?}");
        let leg = leg[0];
        assert_eq!(
            (&leg["trace"], &leg["parent"]),
            (&exchange["trace"], &exchange["id"])
        );
        let worker = child(&collector, name, leg);
        assert_eq!(worker["resource"]["service.name"], "hearth");
        let request = child(&collector, "llm_request", worker);
        assert_within(request, worker);
        let transfer = child(&collector, "kv_transfer", request);
        assert_within(transfer, request);
        let attributes = &transfer["attributes"];
        assert_eq!(attributes["llm.kv_transfer.direction"], direction);
        let events = transfer["events"].as_array().unwrap().iter();
        let events: Vec<&Value> = events.map(|event| &event["name"]).collect();
        assert_eq!(events, ["peer", "first_kv"]);
        moved.push(attributes["llm.kv_transfer.bytes"].as_u64().unwrap());
    }
    assert!(moved[0] > 0 && moved[0] == moved[1], "{moved:?}");

    // The metrics of the same transfer, under SGLang's names.
    for worker in [&prefill, &decode] {
        let page = worker.http.get(worker.url("/metrics")).send().await;
        let page = page.unwrap().text().await.unwrap();
        let value = |start: &str| {
            let mut lines = page.lines().filter(|line| line.starts_with(start));
            let value = lines.next().and_then(|line| line.rsplit(' ').next());
            value
                .unwrap_or_else(|| panic!("no {start}"))
                .parse::<f64>()
                .unwrap()
        };
        let megabytes = value("sglang:kv_transfer_total_mb_sum{");
        assert!(
            (megabytes - moved[0] as f64 / 1e6).abs() < 1e-9,
            "{megabytes}"
        );
        for name in ["latency_ms", "bootstrap_ms", "speed_gb_s"] {
            assert_eq!(value(&format!("sglang:kv_transfer_{name}_count{{")), 1.0);
        }
        assert_eq!(value("sglang:num_transfer_failed_reqs_total{"), 0.0);
    }
}
